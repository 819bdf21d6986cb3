"""Declares the options and positional arguments of commands, and reads them from the signatures of functions."""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

C = TypeVar("C", bound=type)

GLOBAL: Final = "Global options"


class Parameter(NamedTuple):
    """Describes an option, or an argument that is given by its position if it has no names."""

    names: tuple[str, ...]
    metavar: str | None = None
    many: bool = False
    help: str = ""
    positional: bool = False


def option(*names: str, metavar: str | None = None, many: bool = False, help: str = "") -> Parameter:  # noqa: A002
    """Describe an option; `many`: it may be repeated; without `help` the docstring describes it."""
    return Parameter(names, metavar, many, help)


def positional(metavar: str, *, help: str = "") -> Parameter:  # noqa: A002
    """Describe an argument that is given by its position; without `help` the docstring describes it."""
    return Parameter((), metavar, help=help, positional=True)


_GROUPS: Final[dict[type, str]] = {}
"""Headings of the dataclasses whose fields are options."""


def option_group(title: str) -> Callable[[C], C]:
    """Register a dataclass as a group of options that several commands take; `title` is its heading in the help."""

    def made(values: C) -> C:
        _GROUPS[values] = title
        return values

    return made


def global_options(values: C) -> C:
    """Register a dataclass as the group of options that every command takes."""
    return option_group(GLOBAL)(values)


# ------------------------------------------------------------------------------------------------------------ arguments


class Argument(NamedTuple):
    """One option or positional argument of a command.

    Attributes:
        field: name of the parameter, or of the field of its group.
        owner: name of the parameter that gets the group; None without a group.
        group: class of the group; None without a group.
        names: of the option, the long one first; empty for a positional argument.
        metavar: stands for the value in the help; empty for a flag.
        type: `str`, `int`, `float`, `bool` or `Path`.
        choices: the values that it may have; empty if any.
        many: whether it may be given several times.
        required: whether the command needs it.
        help: its text; empty if the docstring has it.
    """

    field: str
    owner: str | None
    group: type | None
    names: tuple[str, ...]
    metavar: str
    type: Any
    choices: tuple[str, ...]
    many: bool
    required: bool
    help: str

    @property
    def is_flag(self) -> bool:
        """True for an option without a value."""
        return self.type is bool

    @property
    def heading(self) -> str:
        """Heading of its group in the help."""
        return "" if self.group is None else _GROUPS[self.group]

    @property
    def shown(self) -> str:
        """The name by which messages call it."""
        return self.names[0] if self.names else self.metavar


def _arguments(function: Callable[..., Any]) -> Iterator[Argument]:
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if parameter.annotation in _GROUPS:
            group = parameter.annotation
            for field in _fields(group):
                yield field._replace(owner=name, group=group)
            continue
        required = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
        yield _argument(
            name, parameter.annotation, required=required, repeated=parameter.kind is parameter.VAR_POSITIONAL
        )


def _fields(group: type) -> Iterator[Argument]:
    from dataclasses import fields
    from typing import get_type_hints

    hints = get_type_hints(group, include_extras=True)
    for each in fields(group):
        yield _argument(each.name, hints[each.name], required=False, repeated=False)


def _argument(name: str, annotation: Any, *, required: bool, repeated: bool) -> Argument:
    described = Parameter(())
    if get_origin(annotation) is Annotated:
        annotation, *metadata = get_args(annotation)
        described = next((each for each in metadata if isinstance(each, Parameter)), described)
    type_, choices, many = _simple(annotation)
    is_positional = described.positional
    names = () if is_positional else _long_first(described.names or (f"--{name.rstrip('_').replace('_', '-')}",))
    metavar = described.metavar or ("" if type_ is bool else "|".join(choices) or name.upper())
    return Argument(
        field=name,
        owner=None,
        group=None,
        names=names,
        metavar=metavar,
        type=type_,
        choices=choices,
        many=many or repeated,
        required=required,
        help=described.help,
    )


def _long_first(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=lambda name: not name.startswith("--")))


def _simple(annotation: Any) -> tuple[Any, tuple[str, ...], bool]:
    """Return the type of one value, the values that it may have, and whether there may be several."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        (annotation,) = (each for each in get_args(annotation) if each is not type(None))
        return _simple(annotation)
    if origin is tuple:
        type_, choices, _ = _simple(get_args(annotation)[0])
        return type_, choices, True
    if origin is Literal:
        return str, get_args(annotation), False
    return annotation, (), False


class CommandFunction:
    """A function as a command: its signature is read when it is used."""

    def __init__(self, function: Callable[..., Any], examples: Sequence[str]) -> None:
        self.function, self.examples = function, tuple(examples)

    @property
    def arguments(self) -> list[Argument]:
        """Its options and positional arguments, in the order of the signature."""
        return list(_arguments(self.function))


def usage(path: str, arguments: Sequence[Argument]) -> str:
    """Return the form of a command on one line: what it needs by name, what may be left out in brackets."""
    needed = [f"{each.names[0]} {each.metavar}" for each in arguments if each.names and each.required]
    words = [
        f"{each.metavar}{'...' * each.many}" if each.required else f"[{each.metavar}{'...' * each.many}]"
        for each in arguments
        if not each.names
    ]
    own = any(each.names and not each.required for each in arguments)
    return " ".join([path, *words, *needed, *(["[OPTIONS]"] if own else [])])
