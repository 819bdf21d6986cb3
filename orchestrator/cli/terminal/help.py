"""Lays out the help of a command as plain text, wrapped once at the width of the terminal."""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import textwrap
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from orchestrator.cli.terminal.arguments import GLOBAL, usage
from orchestrator.cli.terminal.output import write

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from orchestrator.cli.terminal.arguments import Argument, CommandFunction

WIDTH_MIN: Final = 40
WIDTH_MAX: Final = 120
"""Longer lines are hard to read."""
NAMES_MAX: Final = 30
"""A longer name has its text on the next line."""
_SECTION: Final = re.compile(r"(Args|Returns|Raises|Attributes):")
_ITEM: Final = re.compile(r"(\w+): (.*)")


class Described(NamedTuple):
    """The docstring of a command: its paragraphs, and the text of each parameter."""

    paragraphs: tuple[str, ...]
    parameters: dict[str, str]


class Section(NamedTuple):
    """Options under one heading: name and text of each."""

    heading: str
    rows: tuple[tuple[str, str], ...]


def describe(function: Any) -> Described:
    """Read the docstring of a function."""
    paragraphs: list[str] = []
    parameters: dict[str, str] = {}
    for block in inspect.cleandoc(function.__doc__ or "").split("\n\n"):
        first, *lines = block.splitlines() or [""]
        if not _SECTION.fullmatch(first):
            paragraphs.append(" ".join(block.split()))
        elif first == "Args:":
            parameters |= _items(lines)
    return Described(tuple(paragraphs), parameters)


def _items(lines: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for line in lines:
        # Further lines of an item are indented deeper.
        if (item := _ITEM.match(line.strip())) and not line.startswith(" " * 8):
            name, text = item.groups()
            found[name] = text
        elif name:
            found[name] += f" {line.strip()}"
    return found


def sections(leaf: CommandFunction) -> list[Section]:
    """Return the arguments and options of a command under their headings, the global options last."""
    arguments, said = leaf.arguments, describe(leaf.function).parameters
    grouped: dict[str, list[tuple[str, str]]] = {}
    for each in arguments:
        heading = each.heading or ("Options" if each.names else "Arguments")
        text = each.help or (_field_text(each) if each.group else said.get(each.field, ""))
        grouped.setdefault(heading, []).append((_names(each), " ".join(text.split())))
    order = ["Arguments", "Options", *(heading for heading in grouped if heading not in {"Arguments", "Options"})]
    named = sorted((heading for heading in order if heading in grouped), key=lambda heading: heading == GLOBAL)
    return [Section(heading, tuple(grouped[heading])) for heading in named]


def _names(each: Argument) -> str:
    if not each.names:
        return each.metavar
    # The short name stands in front, as in the help of other programs.
    return f"{', '.join(reversed(each.names))} {each.metavar}".rstrip()


def _field_text(each: Argument) -> str:
    """Return the docstring of a field, which stands below it in the source of its class."""
    assert each.group is not None
    return _field_texts(each.group).get(each.field, "")


_TEXTS: Final[dict[type, dict[str, str]]] = {}


def _field_texts(group: type) -> dict[str, str]:
    if group not in _TEXTS:
        _TEXTS[group] = {}
        for each in reversed(group.__mro__[:-1]):
            _TEXTS[group] |= _own_texts(each)
    return _TEXTS[group]


def _own_texts(group: type) -> dict[str, str]:
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(group))).body
    assert isinstance(made, ast.ClassDef)
    return {
        field.target.id: text.value.value
        for field, text in zip(made.body, made.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


# -------------------------------------------------------------------------------------------------------------- layout


def print_command(path: str, leaf: CommandFunction) -> None:
    """Print the help of a command without sub-commands."""
    parts = [_usage(usage(path, leaf.arguments)), *map(_paragraph, describe(leaf.function).paragraphs)]
    parts += [_rows(each.heading, each.rows) for each in sections(leaf)]
    write("\n".join([*parts, *_examples(leaf.examples)]))


def print_group(
    path: str,
    about: str,
    groups: Mapping[str, str],
    leaves: Mapping[str, CommandFunction],
    examples: Sequence[str],
) -> None:
    """Print the help of a command with sub-commands: what each does, in one line."""
    rows = [*groups.items(), *((name, describe(leaf.function).paragraphs[0]) for name, leaf in leaves.items())]
    parts = [_usage(f"{path} COMMAND [OPTIONS]")]
    if about:
        parts.append(_paragraph(about))
    parts.append(_rows("Commands", rows))
    parts.append(_paragraph(f"`{path} COMMAND --help` explains a command."))
    write("\n".join([*parts, *_examples(examples)]))


def _width() -> int:
    return max(WIDTH_MIN, min(WIDTH_MAX, shutil.get_terminal_size().columns))


def _usage(text: str) -> str:
    return _wrap(f"Usage: {text}", indent=" " * 11, first="")


def _paragraph(text: str) -> str:
    return _wrap(text, indent="", first="")


def _wrap(text: str, *, indent: str, first: str) -> str:
    lines = textwrap.wrap(
        text,
        _width(),
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "".join(f"{line}\n" for line in lines)


def _rows(heading: str, rows: Sequence[tuple[str, str]]) -> str:
    column = max((len(names) for names, _ in rows if len(names) <= NAMES_MAX), default=NAMES_MAX)
    column = min(column, _width() // 2)
    indent = " " * (column + 4)
    lines = [f"{heading}:\n"]
    for names, text in rows:
        if len(names) > column:
            lines.append(f"  {names}\n")
            lines.append(_wrap(text, indent=indent, first=indent))
        else:
            lines.append(_wrap(text, indent=indent, first=f"  {names.ljust(column)}  ") or f"  {names}\n")
    return "".join(lines)


def _examples(examples: Sequence[str]) -> list[str]:
    # A line that was wrapped could not be copied.
    return ["Examples:\n" + "".join(f"  {line}\n" for line in examples)] if examples else []
