"""Declares commands and options, and parses arguments, with cyclopts. No other module imports cyclopts.

Help is plain text. Invalid arguments raise `InvalidInput`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from cyclopts import App, CycloptsError, Group, Parameter, UnusedCliTokensError

from orchestrator.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Commands", "global_options", "option", "option_group", "positional"]

C = TypeVar("C", bound=type)

_ALIASES: Final = {"list": "ls", "show": "get"}
_GLOBAL: Final = Group("Global options", sort_key=100)


def option(*names: str, metavar: str | None = None, many: bool = False, help: str = "") -> Parameter:  # noqa: A002
    """Describe an option; `many`: it may be repeated; without `help` the docstring describes it."""
    # Lists get no `--empty-…`, flags no `--no-…`: both only fill the help.
    negative: dict[str, Any] = {"negative_iterable": (), "show_default": False} if many else {"negative": ()}
    described: dict[str, Any] = {"help": help} if help else {}
    return Parameter(name=names or None, metavar=metavar, **negative, **described)


def positional(metavar: str, *, help: str = "") -> Parameter:  # noqa: A002
    """Describe an argument that is given by its position; without `help` the docstring describes it."""
    described: dict[str, Any] = {"help": help} if help else {}
    return Parameter(metavar=metavar, negative=(), **described)


def option_group(title: str) -> Callable[[C], C]:
    """Register a dataclass as a group of options that several commands take; `title` is its heading in the help."""

    def made(values: C) -> C:
        return Parameter(name="*", group=Group(title, sort_key=50))(values)

    return made


def global_options(values: C) -> C:
    """Register a dataclass as the group of options that every command takes."""
    return Parameter(name="*", group=_GLOBAL)(values)


class Commands:
    """A command with sub-commands, or the program itself."""

    def __init__(self, name: str, *examples: str, about: str = "") -> None:
        self.app = App(
            name=name,
            help=about,
            help_epilogue=_examples(examples),
            help_formatter="plain",
            help_format="plaintext",
            version_flags=[],
            suppress_keyboard_interrupt=False,
            default_parameter=Parameter(show_default=False, negative=()),
        )

    def lazy(self, name: str, path: str, about: str) -> None:
        """Add a command that is imported when it is used: `path` names its `App` as `module:attribute`."""
        self.app.command(path, name=name, help=about, sort_key=len(list(self.app)))

    def command(
        self, name: str, *examples: str, alias: str | None = None
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Add a function as a sub-command; its docstring is its help. `ls` is an alias of `list`, `get` of `show`."""
        alias = alias or _ALIASES.get(name)

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            self.app.command(function, name=name, help_epilogue=_examples(examples))
            if alias:
                self.app.command(function, name=alias, help_epilogue=_examples(examples), show=False)
            return function

        return add

    def itself(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Register a function to run when no sub-command is given."""
        self.app.default(function)
        return function

    def run(self, tokens: Sequence[str]) -> Any:
        """Parse the arguments, run the command and return what it returned.

        Raises:
            InvalidInput: an argument is invalid.
        """
        try:
            # cyclopts takes a lone hyphen for an option.
            arranged = ["@-" if word == "-" else word for word in globals_after_words(tokens)]
            return self.app(arranged, exit_on_error=False, print_error=False, result_action="return_value")
        except UnusedCliTokensError as wrong:
            raise InvalidInput(f"too many arguments: {' '.join(wrong.unused_tokens or ())}; see --help") from None
        except CycloptsError as wrong:
            raise InvalidInput(_sentence(str(wrong))) from None

    def completion(self, shell: Literal["bash", "zsh", "fish"]) -> str:
        """Return the completion script of a shell, for `orc` and `orchestrator`."""
        script = self.app.generate_completion(shell=shell, prog_name="orc")
        script = script.replace("#compdef orc\n", "#compdef orc orchestrator\n", 1)
        return f"{script.rstrip()}\n\n{_ALSO[shell]}"


# The generated zsh script neither calls its function when autoloaded nor registers it when sourced.
_ALSO: Final = {
    "bash": "complete -F _orc orchestrator\n",
    "zsh": """\
if [[ ${funcstack[1]} == _orc ]]; then
  _cyclopts_orc "$@"
else
  compdef _cyclopts_orc orc orchestrator
fi
""",
    "fish": "complete -c orchestrator -w orc\n",
}


VALUED: Final = frozenset({"--config", "--url", "--prefix", "--pool", "--data-dir", "--output", "-o"})
FLAGS: Final = frozenset({"--debug"})


def globals_after_words(tokens: Sequence[str]) -> list[str]:
    """Move global options behind the words of the command, so that `orc -o json tasks list` parses."""
    words: list[str] = []
    moved: list[str] = []
    rest = list(tokens)
    while rest and len(words) < 2:
        name, equals, _ = rest[0].partition("=")
        if name in VALUED:
            count = 1 if equals else 2
            moved += rest[:count]
            rest = rest[count:]
        elif rest[0] in FLAGS or (rest[0].startswith("-o") and not rest[0].startswith("--")):
            moved.append(rest.pop(0))
        elif rest[0].startswith("-"):
            break
        else:
            words.append(rest.pop(0))
    return [*words, *moved, *rest]


def _examples(lines: Sequence[str]) -> str:
    return "\n".join(["Examples:", *(f"  {line}" for line in lines)]) if lines else " "  # None would inherit


def _sentence(message: str) -> str:
    line = " ".join(message.split())
    text, _, listed = line.partition(" Available commands: ")
    # A suggestion needs no list, and a list that is cut helps less than the help.
    line = (text if "Did you mean" in text or listed.endswith("...") else line).rstrip(".")
    return f"{line[:1].lower()}{line[1:]}; see --help"
