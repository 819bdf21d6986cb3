"""Adds the declared options of a task or a schedule to a command."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from datetime import datetime
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, Final

from orchestrator.cli.terminal import inputs
from orchestrator.cli.terminal.parsing import option
from orchestrator.core.durations import Duration

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from orchestrator.tasks.options import Option

    Run = Callable[..., Coroutine[Any, Any, Any]]

Arguments = Annotated[
    tuple[str, ...],
    option(
        "--arg",
        "-a",
        metavar="NAME=VALUE",
        many=True,
        help="One argument; VALUE is JSON when it parses, otherwise text. Overrides the body.",
    ),
]

_LISTS: Final = (Sequence[str], str | Sequence[str] | None)
"""Types of options that may be repeated."""
_READERS: Final[dict[Any, Callable[[str, str], Any]]] = {
    Duration | None: inputs.duration_s,
    datetime | None: inputs.moment,
    str | int: lambda _flag, text: inputs.priority(text),
}
"""Reads the text of a value, by the type of its option. Other types are read by the parser."""


def takes_options(declared: Iterable[Option]) -> Callable[[Run], Run]:
    """Replace the parameter `options` of a command by the declared options; it gets those that were typed."""
    by_parameter = {each.flag[2:].replace("-", "_"): each for each in declared}

    def decorated(run: Run) -> Run:
        @functools.wraps(run)
        async def command(*words: Any, **flags: Any) -> Any:
            typed = {name: flags.pop(name) for name in by_parameter if name in flags}
            options = {
                by_parameter[name].name: _read(by_parameter[name], value)
                for name, value in typed.items()
                if value is not None and value != ()
            }
            return await run(*words, **flags, options=options)

        own = inspect.signature(run, eval_str=True).parameters
        parameters: list[Parameter] = []
        for parameter in own.values():
            parameters += map(_parameter, by_parameter.items()) if parameter.name == "options" else [parameter]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return decorated


def _read(each: Option, value: Any) -> Any:
    reader = _READERS.get(each.type)
    return reader(each.flag, value) if reader else value


def _parameter(named: tuple[str, Option]) -> Parameter:
    name, each = named
    many = each.type in _LISTS
    described = option(each.flag, metavar=each.metavar or None, many=many, help=_help(each))
    type_ = tuple[str, ...] if many else str if each.type in _READERS else each.type
    annotation: Any = Annotated[type_ if many else type_ | None, described]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=() if many else None, annotation=annotation)


def _help(each: Option) -> str:
    examples = {"DURATION": "90s, 5m, 2h", "TIME": "2030-01-31T12:00:00Z"}
    text = each.text.replace("`", "")
    if each.metavar in examples:
        text = f"{text.removesuffix('.')} ({examples[each.metavar]})."
    return f"{text} May be repeated." if each.type in _LISTS else text
