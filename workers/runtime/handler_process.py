"""A process that runs `process=True` handlers: it reads calls from a socket, runs them one by one, and replies.

A frame is a length (4 bytes, big endian) and MessagePack. The process imports the handler by name, validates its
arguments and encodes its result, so that only JSON and text travel. It says when it is ready, and waits for the worker
to permit the call, so that a worker that drains begins no handler.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import io
import os
import runpy
import signal
import socket
import sys
import types
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, NoReturn, TypeVar

import msgspec

from orchestrator.core.errors import InvalidInput
from orchestrator.core.hangup import ignore_hangup
from orchestrator.core.log import Format, Level, configure_logging, mask_secrets, set_level
from orchestrator.core.redaction import hiding_texts
from orchestrator.core.secret_environment import remember_secrets
from orchestrator.tracing.active import under
from orchestrator.tracing.environment import exported_spans
from orchestrator.workers.runtime.places import place_of
from orchestrator.workers.runtime.verdicts import (
    ArgumentsInvalid,
    HandlerRaised,
    ValidationFailed,
    class_names,
    describe,
    sole,
    traceback_of,
)
from orchestrator.workers.signals import AttemptSignal, Reject, Retry, Snooze
from orchestrator.workers.skill import Skill, make_options, make_skill

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

M = TypeVar("M")

FLUSH_S: Final = 1.0
"""Time to export the last spans. It must fit into `handler_processes.END_S`."""

_HEAD: Final = 4
_SCRIPT: Final = "__mp_main__"
"""Name under which the process imports the main script, so that its `if __name__` block does not run."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """The first frame.

    Attributes:
        main: file of the script that runs the worker, if any.
        variables: variables of the settings that are not in the environment, because they hold secrets.
        secrets: values that the log masks.
        worker: process id of the worker.
    """

    main: str | None
    level: Level
    format: Format
    variables: dict[str, str]
    secrets: tuple[str, ...]
    worker: int = 0

    def __repr__(self) -> str:
        return "Hello()"  # without the secrets


class Request(msgspec.Struct, frozen=True, array_like=True):
    """One call.

    Attributes:
        level: log level of the worker.
        secrets: values that the log masks beside those of before, since the settings were reloaded.
    """

    module: str
    qualname: str
    skill: str
    args: bytes
    max_bytes: int
    level: Level
    trace: str = ""
    redact: bool = False
    secrets: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Request({self.module}:{self.qualname})"  # without arguments and secrets


class Begin(msgspec.Struct, frozen=True, array_like=True):
    """The permission to call the handler, after the process has replied that it is ready."""


class HandlerReply(msgspec.Struct, frozen=True, array_like=True):
    """The result of a call as JSON, or the text of what it raised; `ready` says that the handler can be called."""

    kind: Literal["ready", "returned", "misfit", "invalid", "retry", "snooze", "reject", "raised"]
    data: bytes = b""
    text: str = ""
    delay_ms: int | None = None
    at_ms: int = 0
    kinds: tuple[tuple[str, ...], ...] = ()
    raised_at: str = ""


def handler_in(module: types.ModuleType, qualname: str) -> Any:
    """Find a function in a module by its qualified name; for a skill, its handler.

    Raises:
        AttributeError: the module has no such name.
    """
    found: Any = module
    for part in qualname.split("."):
        found = getattr(found, part)
    return found.handler if isinstance(found, Skill) else found


# ------------------------------------------------------------------------------------------- in the worker


def write_frame(writer: asyncio.StreamWriter, value: msgspec.Struct) -> None:
    """Write one frame."""
    data = msgspec.msgpack.encode(value)
    writer.write(len(data).to_bytes(_HEAD, "big") + data)


async def read_frame(reader: asyncio.StreamReader, kind: type[M]) -> M:
    """Read one frame."""
    size = int.from_bytes(await reader.readexactly(_HEAD), "big")
    return msgspec.msgpack.decode(await reader.readexactly(size), type=kind)


def raise_failure(answer: HandlerReply) -> NoReturn:
    """Raise what the handler raised in its process."""
    match answer.kind:
        case "misfit":
            raise ArgumentsInvalid(answer.text)
        case "invalid":
            raise ValidationFailed(answer.text)
        case "reject":
            reject = Reject(answer.text)
            reject.raised_at = answer.raised_at
            raise reject
        case "retry":
            retry = Retry(reason=answer.text)
            retry.delay_ms, retry.raised_at = answer.delay_ms, answer.raised_at
            raise retry
        case "snooze":
            snooze = Snooze(0, reason=answer.text)
            snooze.delay_ms, snooze.at_ms, snooze.raised_at = answer.delay_ms or 0, answer.at_ms, answer.raised_at
            raise snooze
    raise HandlerRaised(answer.text, answer.data, answer.kinds, answer.raised_at)


# ---------------------------------------------------------------------------------------- in the process


def serve(number: int) -> None:
    """Answer calls on the socket with this file number until the worker closes it."""
    # The worker handles Ctrl-C and SIGTERM; it closes the socket or kills this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The worker reloads the settings; a SIGHUP to all processes must not cost an attempt.
    ignore_hangup()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What a handler prints appears at once, and is not lost when the worker kills this process.
        sys.stdout.reconfigure(line_buffering=True)
    with socket.socket(fileno=number) as connection, ExitStack() as ending:
        connection.set_inheritable(False)
        frames = connection.makefile("rb")
        hello = _receive(frames, Hello)
        if hello is None:
            return
        remember_secrets(hello.variables)
        configure_logging(level=hello.level, format=hello.format, secrets=hello.secrets)
        traced = False
        while (request := _receive(frames, Request)) is not None:
            set_level(request.level)
            mask_secrets(request.secrets)
            call = _prepare(request, hello.main)
            if request.trace and not traced:
                # After the import of the handler, whose module may set a tracer provider.
                traced = True
                ending.enter_context(exported_spans("orc-worker", f"{hello.worker}:{os.getpid()}", flush_s=FLUSH_S))
            if not isinstance(call, HandlerReply):
                _send(connection, HandlerReply("ready"))
                if _receive(frames, Begin) is None:
                    return
                call = call()
            _send(connection, call)


def _send(connection: socket.socket, reply: HandlerReply) -> None:
    data = msgspec.msgpack.encode(reply)
    connection.sendall(len(data).to_bytes(_HEAD, "big") + data)


def _receive(frames: BinaryIO, kind: type[M]) -> M | None:
    head = frames.read(_HEAD)
    if len(head) < _HEAD:
        return None  # the worker has closed the socket
    return msgspec.msgpack.decode(frames.read(int.from_bytes(head, "big")), type=kind)


def _prepare(request: Request, main: str | None) -> Callable[[], HandlerReply] | HandlerReply:
    """Import the handler and read its arguments; return what calls it, or the reply if that failed."""
    try:
        skill = find_skill(request.module, request.qualname, request.skill, main, redact=request.redact)
        values = skill.bind(request.args, None)
    except InvalidInput as misfit:
        return HandlerReply("misfit", text=str(misfit))
    except BaseException as broken:  # noqa: BLE001 - an import may raise anything
        return _raised_reply(broken, redact=request.redact)
    return functools.partial(_answer, skill, values, request)


def _answer(skill: Skill[Any, Any], values: dict[str, Any], request: Request) -> HandlerReply:
    try:
        with under(request.trace), hiding_texts() if request.redact else nullcontext():
            value = _call(skill.handler, values)
    except BaseException as raised:  # noqa: BLE001 - also SystemExit: only a crash may end this process
        if isinstance(signal_ := sole(raised), AttemptSignal):
            return _signal_reply(signal_, place_of(signal_, skill))
        return _raised_reply(raised, skill, redact=skill.options.redact)
    try:
        return HandlerReply("returned", data=skill.dump_result(value, max_bytes=request.max_bytes))
    except InvalidInput as invalid:
        return HandlerReply("invalid", text=str(invalid))


def _call(handler: Callable[..., Any], values: dict[str, Any]) -> Any:
    value = handler(**values)
    return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def _raised_reply(raised: BaseException, skill: Skill[Any, Any] | None = None, *, redact: bool) -> HandlerReply:
    text, trace = describe(raised, redact=redact), traceback_of(raised, redact=redact)
    at = place_of(sole(raised), skill)
    return HandlerReply("raised", data=trace, text=text, kinds=class_names(raised), raised_at=at)


def _signal_reply(signal_: AttemptSignal, raised_at: str) -> HandlerReply:
    text = signal_.reason
    if isinstance(signal_, Retry):
        return HandlerReply("retry", text=text, delay_ms=signal_.delay_ms, raised_at=raised_at)
    if isinstance(signal_, Snooze):
        delay_ms, at_ms = signal_.delay_ms, signal_.at_ms
        return HandlerReply("snooze", text=text, delay_ms=delay_ms, at_ms=at_ms, raised_at=raised_at)
    return HandlerReply("reject", text=text, raised_at=raised_at)


@functools.cache
def find_skill(module: str, qualname: str, name: str, main: str | None, *, redact: bool) -> Skill[Any, Any]:
    """Import a handler by its name; return a skill that validates its arguments and results."""
    script = _script(main) if module == "__main__" and main else importlib.import_module(module)
    handler = handler_in(script, qualname)
    # The worker applies limits and retries; this process only validates values.
    options = make_options(timeout=None, silence=None, max_attempts=1, max_deaths=1, backoff=0, redact=redact)
    return make_skill(handler, name=name, options=options, process=False)


@functools.cache
def _script(path: str) -> types.ModuleType:
    module = types.ModuleType(_SCRIPT)
    sys.modules[_SCRIPT] = sys.modules["__main__"] = module
    module.__dict__.update(runpy.run_path(path, run_name=_SCRIPT))
    return module
