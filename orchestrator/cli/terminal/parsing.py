"""Declares commands and options from the signatures of functions, and parses arguments.

The parser reads the signature of the command that is used and of no other one, so that a command starts quickly.
docs/internals/adr/0076 has the measurements. Invalid arguments raise `InvalidInput`.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from orchestrator.cli.terminal.arguments import (
    CommandFunction,
    option,
    option_group,
    positional,
    usage,
)
from orchestrator.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from orchestrator.cli.terminal.arguments import Argument

__all__ = ["Commands", "option", "option_group", "positional"]

_ALIASES: Final = {"list": "ls", "show": "get"}
_HELP: Final = frozenset({"--help", "-h"})
END: Final = "--"
"""The words behind it are no options."""
_NUMBERS: Final = {int: "a whole number", float: "a number"}

VALUED: Final = frozenset({"--config", "--url", "--prefix", "--pool", "--data-dir", "--output", "-o"})
FLAGS: Final = frozenset({"--debug"})
_KNOWN: Final = _HELP | VALUED | FLAGS


# ------------------------------------------------------------------------------------------------------------- commands


class _Lazy(NamedTuple):
    """A command whose module is imported when it is used."""

    place: str
    about: str

    def load(self) -> Commands:
        """Import the module."""
        module, _, name = self.place.partition(":")
        found: Commands = getattr(import_module(module), name)
        return found


class Commands:
    """A command with sub-commands, or the program itself.

    Attributes:
        name: as it is typed.
        examples: lines for the help.
        about: first line of the help.
        own: what runs when no sub-command is given.
    """

    def __init__(self, name: str, *examples: str, about: str = "") -> None:
        self.name, self.examples, self.about = name, examples, about
        self.own: CommandFunction | None = None
        self._lazy: dict[str, _Lazy] = {}
        self._leaves: dict[str, CommandFunction] = {}
        self._aliases: dict[str, str] = {}

    def lazy(self, name: str, place: str, about: str) -> None:
        """Add a command that is imported when it is used: `place` names its `Commands` as `module:attribute`."""
        self._lazy[name] = _Lazy(place, about)

    def command(
        self, name: str, *examples: str, alias: str | None = None
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Add a function as a sub-command; its docstring is its help. `ls` is an alias of `list`, `get` of `show`."""
        alias = alias or _ALIASES.get(name)

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            self._leaves[name] = CommandFunction(function, examples)
            if alias:
                self._aliases[alias] = name
            return function

        return add

    def itself(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Register a function to run when no sub-command is given."""
        self.own = CommandFunction(function, self.examples)
        return function

    @property
    def lazies(self) -> Mapping[str, str]:
        """First line of the help of each command that is imported when it is used."""
        return {name: each.about for name, each in self._lazy.items()}

    @property
    def leaves(self) -> Mapping[str, CommandFunction]:
        """The sub-commands that are functions, by name."""
        return self._leaves

    def load(self, name: str) -> Commands:
        """Import a command."""
        return self._lazy[name].load()

    def run(self, tokens: Sequence[str]) -> Any:
        """Parse the arguments, run the command and return what it returned.

        Raises:
            InvalidInput: an argument is invalid.
        """
        # A lone hyphen is standard input, as `@-` is; it is no option.
        return self._run("", ["@-" if word == "-" else word for word in globals_after_words(tokens)])

    def _run(self, before: str, tokens: Sequence[str]) -> Any:
        path = f"{before} {self.name}".strip()
        word = tokens[0] if tokens and not tokens[0].startswith("-") else None
        if word is not None:
            if word in self._lazy:
                return self._lazy[word].load()._run(path, tokens[1:])  # noqa: SLF001 - of the same class
            name = self._aliases.get(word, word)
            if name in self._leaves:
                return self._call(f"{path} {name}", self._leaves[name], tokens[1:])
        if self.own is not None:
            return self._call(path, self.own, tokens)
        if word is not None:
            raise InvalidInput(self._unknown(path, word))
        unknown = [name for token in tokens if (name := token.partition("=")[0]).startswith("-") and name not in _KNOWN]
        if unknown:
            raise InvalidInput(_unknown_option(path, unknown[0], sorted(_KNOWN)))
        from orchestrator.cli.terminal.help import print_group

        print_group(path, self.about, self.lazies, self.leaves, self.examples)
        return 0

    def _call(self, path: str, leaf: CommandFunction, tokens: Sequence[str]) -> Any:
        if _asks_for_help(tokens):
            from orchestrator.cli.terminal.help import print_command

            print_command(path, leaf)
            return 0
        positional, named = _Parser(path, leaf.arguments).parse(tokens)
        done = leaf.function(*positional, **named)
        if inspect.iscoroutine(done):
            import asyncio

            return asyncio.run(done)
        return done

    def _unknown(self, path: str, word: str) -> str:
        known = [*self._lazy, *self._leaves]
        if near := nearest(word, known):
            return f"unknown command {word!r}; did you mean `{path} {near}`?"
        return f"unknown command {word!r}; `{path} --help` lists the commands"


def _asks_for_help(tokens: Sequence[str]) -> bool:
    before = tokens[: tokens.index(END)] if END in tokens else tokens
    return bool(_HELP.intersection(before))


# -------------------------------------------------------------------------------------------------------------- parsing


class _Parser:
    """Parses the tokens of one command."""

    def __init__(self, path: str, arguments: Sequence[Argument]) -> None:
        self._path, self._arguments = path, arguments
        self._options = {name: each for each in arguments for name in each.names}
        self._typed: dict[Argument, list[str]] = {}

    def parse(self, tokens: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and the named arguments of the function."""
        self._place(self._words(list(tokens)))
        positional: list[Any] = []
        named: dict[str, Any] = {}
        groups: dict[str, tuple[type, dict[str, Any]]] = {}
        for each in self._arguments:
            values = [self._value(each, text) for text in self._typed.get(each, ())]
            if not values:
                if each.required:
                    raise InvalidInput(f"{each.shown} is missing; usage: {usage(self._path, self._arguments)}")
                continue
            value = tuple(values) if each.many else values[-1]
            if each.owner is not None and each.group is not None:
                groups.setdefault(each.owner, (each.group, {}))[1][each.field] = value
            elif each.names:
                named[each.field] = value
            elif each.many:
                positional += values
            else:
                positional.append(value)
        named |= {owner: group(**values) for owner, (group, values) in groups.items()}
        return positional, named

    def _words(self, tokens: list[str]) -> list[str]:
        """Read the options and return the other words."""
        words: list[str] = []
        while tokens:
            token = tokens.pop(0)
            if token == END:
                return words + tokens
            if not token.startswith("-") or _is_number(token):
                words.append(token)
            elif token.startswith("--"):
                name, equals, value = token.partition("=")
                self._option(name, value if equals else None, tokens)
            else:
                self._short(token, tokens)
        return words

    def _short(self, token: str, tokens: list[str]) -> None:
        name, rest = token[:2], token[2:]
        known = self._options.get(name)
        if known is not None and known.is_flag and rest:
            self._option(name, None, tokens)
            self._short(f"-{rest}", tokens)
        else:
            self._option(name, rest.removeprefix("=") or None, tokens)

    def _option(self, name: str, value: str | None, tokens: list[str]) -> None:
        if name not in self._options:
            raise InvalidInput(_unknown_option(self._path, name, list(self._options)))
        each = self._options[name]
        if each.is_flag:
            if value is not None:
                raise InvalidInput(f"{name} takes no value")
            self._typed[each] = ["true"]
            return
        if value is None:
            # The value of `--reason --yes` was forgotten; a text that begins with a hyphen is given as --reason=TEXT.
            if not tokens or tokens[0].partition("=")[0] in self._options:
                raise InvalidInput(f"{name} needs a value: {name} {each.metavar}")
            value = tokens.pop(0)
        if each in self._typed and not each.many:
            raise InvalidInput(f"{name} is given twice; give it once")
        self._typed.setdefault(each, []).append(value)

    def _place(self, words: list[str]) -> None:
        """Give the words to the positional arguments."""
        for each in self._arguments:
            if not each.names and words:
                taken = words if each.many else words[:1]
                self._typed[each], words = taken, words[len(taken) :]
        if words:
            raise InvalidInput(f"too many arguments: {' '.join(words)}; usage: {usage(self._path, self._arguments)}")

    @staticmethod
    def _value(each: Argument, text: str) -> Any:
        if each.choices and text not in each.choices:
            near = nearest(text, each.choices)
            hint = f"did you mean {near}?" if near else f"it is one of {', '.join(each.choices)}"
            raise InvalidInput(f"{each.shown} {text!r} is not known; {hint}")
        if each.type is bool:
            return True
        try:
            return each.type(text)
        except ValueError:
            raise InvalidInput(f"{each.shown} {text!r} is not {_NUMBERS.get(each.type, 'valid')}") from None


def _is_number(token: str) -> bool:
    try:
        float(token)
    except ValueError:
        return False
    return True


def _unknown_option(path: str, name: str, known: Sequence[str]) -> str:
    if near := nearest(name, known):
        return f"unknown option {name}; did you mean {near}?"
    return f"unknown option {name}; `{path} --help` lists the options"


def nearest(word: str, known: Sequence[str]) -> str | None:
    """Return the known word that was probably meant, or None: a word that begins so, or differs in few letters."""
    from difflib import get_close_matches

    bare = {each.lstrip("-"): each for each in known}
    typed = word.lstrip("-").lower()
    begun = [each for each in bare if len(typed) > 2 and each.startswith(typed)]
    near = begun if len(begun) == 1 else get_close_matches(typed, bare, n=1)
    return bare[near[0]] if near else None


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
