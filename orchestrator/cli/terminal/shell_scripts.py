"""Writes the completion scripts of bash, zsh and fish from the declared commands.

A script has the words of every command. It finds the command by its words on the line, as `/tasks/submit`, and offers
sub-commands, options (after a hyphen) and the values that an option or argument may have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from orchestrator.cli.terminal.help import describe, sections

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.cli.terminal.arguments import CommandFunction
    from orchestrator.cli.terminal.parsing import Commands

_TEXT_MAX: Final = 80


class _CommandWords(NamedTuple):
    """Words that can follow those of one command, with their texts; options, and the values of each."""

    words: dict[str, str]
    options: dict[str, str]
    values: dict[str, tuple[str, ...]]
    flags: frozenset[str]


def completion_script(program: Commands, shell: Literal["bash", "zsh", "fish"]) -> str:
    """Return the completion script of a shell, for `orc` and `orchestrator`."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](dict(_offers("", program)))


def _offers(path: str, commands: Commands) -> Iterator[tuple[str, _CommandWords]]:
    loaded = {name: commands.load(name) for name in commands.lazies}
    words = dict(commands.lazies) | {name: describe(leaf.function)[0][0] for name, leaf in commands.leaves.items()}
    yield path, _CommandWords(words, {}, {}, frozenset()) if commands.own is None else _offer(commands.own)
    for name, each in loaded.items():
        yield from _offers(f"{path}/{name}", each)
    for name, leaf in commands.leaves.items():
        yield f"{path}/{name}", _offer(leaf)


def _offer(leaf: CommandFunction) -> _CommandWords:
    texts = {name.split(" ")[0].rstrip(","): text for section in sections(leaf) for name, text in section.rows}
    named = [each for each in leaf.arguments if each.names]
    words = {choice: "" for each in leaf.arguments if not each.names for choice in each.choices}
    return _CommandWords(
        words,
        {name: texts.get(each.names[-1], "") for each in named for name in each.names},
        {name: each.choices for each in named for name in each.names if each.choices},
        frozenset(name for each in named if each.is_flag for name in each.names),
    )


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _short(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 1].rstrip()}…"


def _cases(offers: dict[str, _CommandWords], indent: str) -> list[str]:
    """Return the lines of a `case` that set `found` to the values of the option before the word."""
    lines: list[str] = []
    for path, offer in offers.items():
        for name, values in offer.values.items():
            lines.append(f"{indent}{_quote(f'{path} {name}')}) found=({' '.join(map(_quote, values))}) ;;")
    return lines


# ---------------------------------------------------------------------------------------------------------------- bash


def _bash(offers: dict[str, _CommandWords]) -> str:
    paths = "|".join(path for path in offers if path)
    lines = [
        "_orc() {",
        "  local word at= i current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}",
        "  local -a found=() words=() options=()",
        "  for ((i = 1; i < COMP_CWORD; i++)); do",
        f'    case "$at/${{COMP_WORDS[i]}}" in {paths}) at="$at/${{COMP_WORDS[i]}}" ;; esac',
        "  done",
        '  case "$at $previous" in',
        *_cases(offers, "    "),
        "  esac",
        "  if ((${#found[@]} == 0)); then",
        '    case "$at" in',
    ]
    for path, offer in offers.items():
        words, options = " ".join(map(_quote, offer.words)), " ".join(offer.options)
        lines.append(f"      {_quote(path)}) words=({words}) options=({options}) ;;")
    lines += [
        "    esac",
        '    if [[ $current == -* ]]; then found=("${options[@]}" --help); else found=("${words[@]}"); fi',
        "  fi",
        '  COMPREPLY=($(compgen -W "${found[*]}" -- "$current"))',
        "}",
        "complete -o default -F _orc orc",
        "complete -o default -F _orc orchestrator",
    ]
    return "\n".join(lines) + "\n"


# ----------------------------------------------------------------------------------------------------------------- zsh


def _zsh(offers: dict[str, _CommandWords]) -> str:
    paths = "|".join(path for path in offers if path)
    lines = [
        "#compdef orc orchestrator",
        "_orc() {",
        "  local word at= previous=${words[CURRENT-1]}",  # `path` is the search path of zsh
        "  local -a found described options",
        "  for word in ${words[2,CURRENT-1]}; do",
        f'    case "$at/$word" in ({paths}) at="$at/$word" ;; esac',
        "  done",
        '  case "$at $previous" in',
        *_cases(offers, "    ("),
        "  esac",
        "  if ((${#found})); then compadd -a found; return; fi",
        '  case "$at" in',
    ]
    for path, offer in offers.items():
        lines.append(f"    ({_quote(path)})")
        lines.append(f"      described=({_described(offer.words)})")
        lines.append(f"      options=({_described(offer.options)}) ;;")
    lines += [
        "  esac",
        "  if [[ ${words[CURRENT]} == -* ]]; then",
        "    _describe option options",
        "  else",
        "    _describe command described || _files",
        "  fi",
        "}",
        # The script is either sourced or the body of an autoloaded function.
        'if [[ ${funcstack[1]} == _orc ]]; then _orc "$@"; else compdef _orc orc orchestrator; fi',
    ]
    return "\n".join(lines) + "\n"


def _described(words: dict[str, str]) -> str:
    return " ".join(_quote(f"{word}:{_short(text)}" if text else word) for word, text in words.items())


# ---------------------------------------------------------------------------------------------------------------- fish


def _fish(offers: dict[str, _CommandWords]) -> str:
    lines = [
        f"set -g __orc_paths {' '.join(path for path in offers if path)}",
        "function __orc_at",
        "  set -l at ''",
        "  for word in (commandline -opc)[2..-1]",
        '    contains -- "$at/$word" $__orc_paths; and set at "$at/$word"',
        "  end",
        '  test "$at" = "$argv[1]"',
        "end",
    ]
    for path, offer in offers.items():
        begin = f"complete -c orc -n \"__orc_at '{path}'\""
        lines += [f"{begin} -f -a {_fish_quote(word)}{_fish_text(text)}" for word, text in offer.words.items()]
        for name, text in offer.options.items():
            flag = f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
            value = "" if name in offer.flags else " -r"
            if values := offer.values.get(name):
                value = f" -x -a {_fish_quote(' '.join(values))}"
            lines.append(f"{begin} {flag}{value}{_fish_text(text)}")
    lines.append("complete -c orchestrator -w orc")
    return "\n".join(lines) + "\n"


def _fish_text(text: str) -> str:
    return f" -d {_fish_quote(_short(text))}" if text else ""


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
