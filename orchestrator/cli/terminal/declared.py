"""Builds the commands of the command line that give one control command, from its declaration."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any, Final

from orchestrator.cli.terminal.command_options import USUAL, CommandOptions, send_and_show
from orchestrator.cli.terminal.confirm import ask
from orchestrator.cli.terminal.inputs import duration_s
from orchestrator.cli.terminal.inputs import value as read_value
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import Commands, option, positional
from orchestrator.cli.terminal.targets import say_unknown
from orchestrator.control.commands import JSON, KINDS, Command, given_fields, make_command
from orchestrator.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from orchestrator.services import Services

    Around = Callable[[Services, Command], AbstractAsyncContextManager[None]]

EXIT_CODES = (
    "Exit code: 0 every process answered or none runs; 5 an answer is missing, the command is active all the same."
)
HOW_LONG = "for_s"
_METAVARS: Final = {"at_most": "N"}
DURATION_HELP = "How long: 90s, 5m, 2h, or seconds."
JSON_HELP = "JSON when it parses, otherwise text; @FILE and @- read it from a file or standard input."


def noun(name: str, *examples: str) -> Commands:
    """Create a command with a sub-command for each declared control command of this noun."""
    commands = Commands(name, *examples)
    for model in KINDS.values():
        words = model.verb.split()
        if words[:1] == [name] and len(words) == 2:
            commands.command(words[1], *examples_of(model))(declared(model))
    return commands


def examples_of(model: type[Command]) -> list[str]:
    """Return the examples of a declared command, one per line."""
    reset = _reset_of(model)
    return [f"orc {model.verb} {typed}".rstrip() for typed in model.examples] + ([f"orc {reset.verb}"] if reset else [])


def declared(model: type[Command], around: Around | None = None) -> Callable[..., int]:
    """Return the function of a declared command: it asks for confirmation, gives the command and shows the receipts.

    Args:
        model: the command.
        around: runs before the command is given and after its receipts are shown.
    """
    # Not a coroutine, so that Ctrl-C ends the question.
    reset = _reset_of(model)
    names = [name for name, field in given_fields(model).items() if field.is_required()]

    def run(*typed: str, options: CommandOptions = USUAL, common: Globals = DEFAULTS, **flags: Any) -> int:
        import anyio

        wait, yes = flags.pop("wait", False), flags.pop("yes", False)
        chosen = model
        if reset is not None:
            if flags.pop("reset", False) == bool(typed):
                raise InvalidInput(f"give {' '.join(names).upper()} or --reset")
            chosen = model if typed else reset
        if wait and options.no_wait:
            raise InvalidInput("--wait and --no-wait contradict each other")
        command = _command(chosen, dict(zip(names, typed, strict=False)) | flags)
        if model.confirm:
            ask(model.confirm, yes=yes)
        return anyio.run(_give, command, options, common, wait, around)

    parameters = list(_parameters(model))
    run.__doc__ = f"{(model.__doc__ or '').rstrip()}\n\n    {EXIT_CODES}"
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return run


def _reset_of(model: type[Command]) -> type[Command] | None:
    return next((other for other in KINDS.values() if other.verb == f"{model.verb} --reset"), None)


def _parameters(model: type[Command]) -> Iterator[Parameter]:
    reset = _reset_of(model)
    fields = given_fields(model)
    for name, field in fields.items():
        if field.is_required():
            help_ = JSON_HELP if JSON in field.metadata else field.description or ""
            word, help_ = ("DURATION", DURATION_HELP) if name == HOW_LONG else (name.upper(), help_)
            typed = positional(word, help=help_)
            if reset:
                annotation: Any = Annotated[str | None, typed]
                yield Parameter(name, Parameter.POSITIONAL_ONLY, default=None, annotation=annotation)
            else:
                yield Parameter(name, Parameter.POSITIONAL_ONLY, annotation=Annotated[str, typed])
    for name, field in fields.items():
        if not field.is_required():
            yield _flag(
                name, field.description or "", None if field.annotation is bool else _METAVARS.get(name, name.upper())
            )
    if reset:
        yield _flag("reset", reset.__doc__ or "")
    if model.drains:
        yield _flag("wait", "Wait until the running tasks that it affects have ended.")
    if model.confirm:
        yield _flag("yes", "Do not ask for confirmation.")
    yield Parameter("options", Parameter.KEYWORD_ONLY, default=USUAL, annotation=CommandOptions)
    yield Parameter("common", Parameter.KEYWORD_ONLY, default=DEFAULTS, annotation=Globals)


def _flag(name: str, help_: str, metavar: str | None = None) -> Parameter:
    described = option(f"--{name.replace('_', '-')}", metavar=metavar, help=help_)
    annotation = Annotated[str | None, described] if metavar else Annotated[bool, described]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None if metavar else False, annotation=annotation)


def _command(model: type[Command], values: Mapping[str, Any]) -> Command:
    from orchestrator.core.payload import encode_json

    def encoded(name: str, value: Any) -> Any:
        if name == HOW_LONG:
            return duration_s("DURATION", value)
        if JSON not in model.model_fields[name].metadata:
            return value
        return encode_json(name, read_value(value), max_bytes=32_768, max_depth=64).decode()

    kind = model.model_fields["kind"].default
    try:
        return make_command(kind, {name: encoded(name, value) for name, value in values.items()})
    except InvalidInput as invalid:
        raise InvalidInput(str(invalid).replace(f"{HOW_LONG}: Input", "DURATION in seconds")) from None


async def _give(
    command: Command,
    options: CommandOptions,
    common: Globals,
    wait: bool,  # noqa: FBT001
    around: Around | None,
) -> int:
    from orchestrator.views.targets import resolve

    async with common.services() as services:
        command, unknown = await resolve(services, command)
        say_unknown(unknown)
        async with around(services, command) if around else nullcontext():
            return await send_and_show(services, command, options, common, until_done=wait)
