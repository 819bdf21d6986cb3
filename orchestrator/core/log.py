"""Configures logging. Events have past-tense names and keys, never formatted sentences.

Loggers pass their events to the standard library. One handler writes all its records, so that third-party log lines get
the same shape; a program that embeds the client without configuring logging sees plain lines. Importing this module
configures nothing and does not load structlog.

`tools/log_events.py` declares the name, the level and the keys of every event; `make check` compares the code with it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO, TypeAlias

from orchestrator.core.errors import ServerUnavailable
from orchestrator.core.log_output import JournalOutput, LineOutput, is_journal
from orchestrator.core.redaction import texts_hidden, traceback_without_texts
from orchestrator.core.scrubbing import MASK, Scrubber, learn_secrets, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from orchestrator.core.log_output import LogOutput

__all__ = [
    "MASK",
    "Format",
    "Level",
    "Logger",
    "add_context_source",
    "bind_context",
    "configure_logging",
    "get_logger",
    "hide_texts_of",
    "hush_outages",
    "level_in_use",
    "mask_secrets",
    "override_level",
    "set_level",
    "share_level",
]

Level: TypeAlias = Literal["debug", "info", "warning", "error"]
Format: TypeAlias = Literal["auto", "console", "json", "journal"]

_context: ContextVar[Mapping[str, object]] = ContextVar("log_context", default=MappingProxyType({}))
_sources: list[Callable[[], Mapping[str, object]]] = []


class Logger:
    """Writes the events of one module. Cheap when the level is off; immutable, because `bind` returns a new one."""

    __slots__ = ("_logger", "_values")

    def __init__(self, logger: logging.Logger, values: Mapping[str, object]) -> None:
        self._logger = logger
        self._values = values

    def bind(self, **values: object) -> Logger:
        """Return a logger that adds these keys to every event."""
        return Logger(self._logger, {**self._values, **values})

    def debug(self, event: str, /, **values: object) -> None:
        """Write an event that helps to follow one task."""
        if self._logger.isEnabledFor(logging.DEBUG):
            self._write(logging.DEBUG, event, values)

    def info(self, event: str, /, **values: object) -> None:
        """Write an event that operators read later."""
        if self._logger.isEnabledFor(logging.INFO):
            self._write(logging.INFO, event, values)

    def warning(self, event: str, /, **values: object) -> None:
        """Write a failure that was handled."""
        if self._logger.isEnabledFor(logging.WARNING):
            self._write(logging.WARNING, event, values)

    def error(self, event: str, /, **values: object) -> None:
        """Write a failure that was not handled."""
        if self._logger.isEnabledFor(logging.ERROR):
            self._write(logging.ERROR, event, values)

    def exception(self, event: str, /, **values: object) -> None:
        """Write an error with the exception that is being handled."""
        if self._logger.isEnabledFor(logging.ERROR):
            self._write(logging.ERROR, event, {"exc_info": True, **values})

    def failure(self, event: str, /, *, error: BaseException, **values: object) -> None:
        """Write that a call failed: as a warning, or at debug when the process has told that Redis does not answer."""
        told = isinstance(error, ServerUnavailable) and time.monotonic() < _hushed.until_s
        level = logging.DEBUG if told else logging.WARNING
        if self._logger.isEnabledFor(level):
            self._write(level, event, {**values, "error": str(error)})

    @property
    def writes_debug(self) -> bool:
        """Return whether events of the level debug are written, for callers that prepare one at some cost."""
        return self._logger.isEnabledFor(logging.DEBUG)

    @property
    def writes_info(self) -> bool:
        """Return whether events of the level info are written."""
        return self._logger.isEnabledFor(logging.INFO)

    def _write(self, level: int, event: str, values: Mapping[str, object]) -> None:
        if level >= logging.INFO and self._logger.name.startswith(_OURS) and not _repeats.admit(event):
            return
        bound = {**self._values, **values}
        for name, value in _current_context():
            bound.setdefault(name, value)
        # `log` would walk the stack for a file name that is not printed.
        message = LogMessage(event, bound)
        exc_info = _exc_info(bound.pop("exc_info", None))
        # Texts that were made while there was the exception, or the frames.
        traceback_text, stack = bound.pop("traceback", None), bound.pop("stack", None)
        record = self._logger.makeRecord(self._logger.name, level, "", 0, message, (), exc_info)
        record.exc_text = None if traceback_text is None else str(traceback_text)
        record.stack_info = None if stack is None else str(stack)
        self._logger.handle(record)


def get_logger(name: str) -> Logger:
    """Return the logger of a module; pass `__name__`."""
    return Logger(logging.getLogger(name), {})


def hush_outages(until_s: float) -> None:
    """Let `Logger.failure` write at debug that Redis does not answer, until this monotonic time."""
    _hushed.until_s = until_s


class _Hushed:
    until_s = 0.0


_hushed: Final = _Hushed()


def bind_context(**values: object) -> None:
    """Add keys to every log record of this context: this task and the tasks that it starts, or this thread."""
    _context.set({**_context.get(), **values})


def add_context_source(source: Callable[[], Mapping[str, object]]) -> None:
    """Add the keys that `source` returns to every log record of this process; it is asked for each record."""
    if source not in _sources:
        _sources.append(source)


def _current_context() -> Iterator[tuple[str, object]]:
    yield from _context.get().items()
    for source in _sources:
        yield from source().items()


def configure_logging(
    level: Level = "info",
    format: Format = "auto",  # noqa: A002 - named like the setting
    stream: TextIO | None = None,
    *,
    secrets: Iterable[str] = (),
) -> None:
    """Send all log records of this process to one stream, or to the journal. A later call replaces an earlier one.

    Args:
        level: lowest level to write.
        format: `console` for people, `json` for machines, `journal` for the journal of systemd; `auto` selects
            `journal` if systemd connected the stream to it, `console` on a terminal, else `json`.
        stream: standard error by default. Nothing is written if it is closed.
        secrets: values to mask, such as the password of the server; `mask_known` masks them too.
    """
    import structlog  # as above
    from structlog.contextvars import get_contextvars, merge_contextvars

    learn_secrets(secrets)
    target = sys.stderr if stream is None else stream
    terminal = target is not None and target.isatty()
    if format == "auto":
        format = "journal" if is_journal(target) else "console" if terminal else "json"  # noqa: A001
    output: LogOutput
    if format == "journal":
        output = JournalOutput(target)
    else:
        output = LineOutput(target, _console_renderer(colors=terminal) if format == "console" else _render_json)
    # Agents that use structlog get the same format.
    structlog.configure(
        processors=[
            _add_context,
            merge_contextvars,
            structlog.processors.StackInfoRenderer(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    handler = _Handler(output, Scrubber(secrets, keep_lines=format != "console"), get_contextvars)
    root = logging.getLogger()
    _repeats.tell()
    for old in [old for old in root.handlers if isinstance(old, _Handler)]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    set_level(level)


def set_level(level: Level) -> None:
    """Write events of this level and above, unless `override_level` has set another one."""
    _levels.configured = level
    _levels.apply()


def override_level(level: Level | None, *, of: str = "") -> None:
    """Write events of this level and above in place of the level of `set_level`; None ends that.

    Args:
        level: of one pool; in `share_level` the most detailed level of all pools applies to all.
        of: the pool.
    """
    _levels.overrides.pop(of, None)
    if level is not None:
        _levels.overrides[of] = level
    _levels.apply()


@contextmanager
def share_level(*, pools: int) -> Iterator[None]:
    """Serve several pools in the block: the level of `set_level` is that of each one without an override."""
    _levels.pools = pools
    try:
        yield
    finally:
        _levels.pools = 1
        _levels.apply()


def level_in_use() -> Level:
    """Return the level that `override_level` or else `set_level` has set."""
    levels = list(_levels.overrides.values())
    if len(levels) < _levels.pools:
        levels.append(_levels.configured)
    return min(levels, key=_LEVELS.__getitem__)


def mask_secrets(secrets: Iterable[str]) -> None:
    """Mask these values too, beside those of `configure_logging`; in texts that are stored, too."""
    learn_secrets(secrets)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Handler):
            handler.scrubber.add(secrets)


_LEVELS: Final[Mapping[Level, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class _Levels:
    """The level of the settings, and those that operators have set in its place, by pool."""

    def __init__(self) -> None:
        self.configured: Level = "info"
        self.overrides: dict[str, Level] = {}
        self.pools = 1

    def apply(self) -> None:
        """Set the level of the root logger."""
        logging.getLogger().setLevel(_LEVELS[level_in_use()])


_levels: Final = _Levels()


class _Handler(logging.Handler):
    """Writes records to one output. Never raises, and never writes a record that is not scrubbed."""

    def __init__(self, output: LogOutput, scrubber: Scrubber, more: Callable[[], Mapping[str, Any]]) -> None:
        super().__init__()
        self._output, self.scrubber, self._more = output, scrubber, more

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        lost = self._output.dropped
        try:
            self._output.write(record.levelno, self.scrubber(_event_of(record, self._more)))
        except Exception as failed:  # noqa: BLE001 - values are of any type, and a log line must not stop its caller
            if not isinstance(record.msg, LogMessage) or record.msg.event != "log_record_failed":
                _log.error("log_record_failed", error=type(failed).__name__, source=record.name)
        if lost and self._output.dropped == lost:
            # Lines are written again.
            self._output.dropped = 0
            _log.warning("log_lines_dropped", count=lost)
            if self._output.dropped:
                # There was room for the event, and none for the count; a later event brings it.
                self._output.dropped = lost

    def close(self) -> None:
        """Write what waits."""
        _repeats.tell()
        self._output.close()
        super().close()

    def forget(self) -> None:
        """Drop what waits, after a fork."""
        self._output.forget()


def _forget_in_child() -> None:
    _repeats.__init__()  # type: ignore[misc]  # another thread may have held the lock
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Handler):
            handler.forget()


os.register_at_fork(after_in_child=_forget_in_child)


class LogMessage:
    """An event with its keys, inside a standard log record; prints well with plain handlers."""

    __slots__ = ("event", "values")

    def __init__(self, event: str, values: Mapping[str, object]) -> None:
        self.event = event
        self.values = values

    def __str__(self) -> str:
        return " ".join([self.event, *(f"{name}={text_of(value, repr)}" for name, value in self.values.items())])


_log = get_logger(__name__)


class _Repeats:
    """Bounds the lines of each event of this program in each second, and tells how many it left out.

    A failure that repeats, such as of forged commands or of damaged entries, would else cost
    the processor time of the process and hide all other lines.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until_s = 0.0
        self._lines: dict[str, int] = {}

    def admit(self, event: str) -> bool:
        """Return whether a line of the event may be written now."""
        if event == _LEFT_OUT:
            return True
        now_s = time.monotonic()
        if now_s >= self._until_s:
            self.tell()
        with self._lock:
            if not self._lines:
                self._until_s = now_s + PERIOD_S
            count = self._lines[event] = self._lines.get(event, 0) + 1
        if count == LINES_PER_PERIOD + 1:
            self._tell_later()
        return count <= LINES_PER_PERIOD

    def _tell_later(self) -> None:
        """Tell at the end of the second; without an event loop, the next line or the end of the process tells."""
        with suppress(RuntimeError, KeyError):
            sys.modules["asyncio"].get_running_loop().call_later(PERIOD_S, self.tell)

    def tell(self) -> None:
        """End the second, and write how many lines it left out."""
        with self._lock:
            lines, self._lines = self._lines, {}
        left_out = {event: count - LINES_PER_PERIOD for event, count in lines.items() if count > LINES_PER_PERIOD}
        if left_out:
            _log.warning("log_lines_left_out", count=sum(left_out.values()), events=left_out)


PERIOD_S: Final = 1.0
LINES_PER_PERIOD: Final = 100
"""Lines of one event that a process writes in a period; they cost 1 % of a processor."""
_OURS: Final = "orchestrator."
_LEFT_OUT: Final = "log_lines_left_out"
_repeats: Final = _Repeats()


def _exc_info(given: object) -> Any:
    """Convert the value of `exc_info=` (an exception, True or None) for a log record."""
    if isinstance(given, BaseException):
        return type(given), given, given.__traceback__
    return sys.exc_info() if given else None


def _event_of(record: logging.LogRecord, more: Callable[[], Mapping[str, Any]]) -> dict[Any, Any]:
    """Return the event in a record of this program, of structlog, or of another library."""
    message = record.msg
    values: Mapping[Any, Any]
    if isinstance(message, LogMessage):
        name, values = message.event, message.values
    elif isinstance(message, dict) and hasattr(record, "_logger"):
        name, values = message.get("event", ""), message
    else:
        name, values = record.getMessage(), dict(_current_context())
    stamp = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
    fixed = {"timestamp": f"{stamp[:-6]}Z", "level": record.levelname.lower(), "logger": record.name, "event": name}
    exc_info = record.exc_info or (_exc_info(values.get("exc_info")) if "exc_info" in values else None)
    event: dict[Any, Any] = {**fixed, **more(), **values, **fixed}
    event.pop("exc_info", None)
    if exc_info and exc_info[1] is not None:
        hidden = texts_hidden() or record.name in _hidden_loggers
        text = traceback_without_texts(exc_info[1]) if hidden else "".join(traceback.format_exception(*exc_info))
        event["exception"] = text.rstrip("\n")
    elif isinstance(message, LogMessage) and record.exc_text:
        event["exception"] = record.exc_text.rstrip("\n")
    if record.name in _hidden_loggers:
        # asyncio prints a task with its exception on the lines after the first.
        event["event"] = str(name).partition("\n")[0]
    if record.stack_info:
        event["stack"] = record.stack_info
    return event


def hide_texts_of(logger: str) -> None:
    """Write only the first line of what another library logs, and no texts of its exceptions."""
    _hidden_loggers.add(logger)


_hidden_loggers: Final[set[str]] = set()


def _add_context(_logger: object, _method: str, event: Any) -> Any:
    """Add the keys of `bind_context` to the events of structlog."""
    for name, value in _current_context():
        event.setdefault(name, value)
    return event


def _render_json(_level: int, event: Mapping[str, Any]) -> str:
    import msgspec

    return msgspec.json.encode(event).decode()


def _console_renderer(*, colors: bool) -> Callable[[int, Mapping[str, Any]], str]:
    from structlog.dev import ConsoleRenderer, plain_traceback  # as above

    render = ConsoleRenderer(colors=colors, exception_formatter=plain_traceback, pad_event_to=28)
    return lambda level, event: str(render(None, logging.getLevelName(level).lower(), dict(event)))
