"""Configures logging. Events have past-tense names and keys, never formatted sentences.

Loggers pass their events to the standard library. One chain of structlog processors formats all its records, so that
third-party log lines get the same shape; a program that embeds the client without configuring logging sees plain lines.
Importing this module configures nothing and does not load structlog.

Common keys: agent, worker, task, attempt, command, error.
"""

from __future__ import annotations

import logging
import re
import sys
from contextlib import suppress
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, MutableMapping

    from structlog.typing import Processor

    _Event: TypeAlias = MutableMapping[str, Any]

Level: TypeAlias = Literal["debug", "info", "warning", "error"]
Format: TypeAlias = Literal["auto", "console", "json"]

MASK: Final = "********"

_context: ContextVar[Mapping[str, object]] = ContextVar("log_context", default=MappingProxyType({}))


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

    def _write(self, level: int, event: str, values: Mapping[str, object]) -> None:
        bound = {**self._values, **values}
        for name, value in _context.get().items():
            bound.setdefault(name, value)
        # `log` would walk the stack for a file name that is not printed.
        message = _Message(event, bound)
        exc_info = _exc_info(bound.pop("exc_info", None))
        record = self._logger.makeRecord(self._logger.name, level, "", 0, message, (), exc_info)
        self._logger.handle(record)


def get_logger(name: str) -> Logger:
    """Return the logger of a module; pass `__name__`."""
    return Logger(logging.getLogger(name), {})


def bind_context(**values: object) -> None:
    """Add keys to every log record of this context: this task and the tasks that it starts, or this thread."""
    _context.set({**_context.get(), **values})


def configure_logging(
    level: Level = "info",
    format: Format = "auto",  # noqa: A002 - named like the setting
    stream: TextIO | None = None,
    *,
    secrets: Iterable[str] = (),
) -> None:
    """Send all log records of this process to one stream. A later call replaces an earlier one.

    Args:
        level: lowest level to write.
        format: `console` for people, `json` for machines; `auto` selects `console` on a terminal.
        stream: standard error by default.
        secrets: values to mask, such as the password of the server.
    """
    import structlog  # as above

    target = sys.stderr if stream is None else stream
    terminal = target.isatty()
    console = format == "console" or (format == "auto" and terminal)
    shared: list[Processor] = [
        _add_context,
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,  # plain text: a rich traceback would print local variables
    ]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[_unpack, *shared],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            _Scrubber(secrets, keep_lines=not console),
            _console_renderer(colors=terminal) if console else _render_json,
        ],
    )
    # Agents that use structlog get the same format.
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    handler = _Handler(target)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(_LEVELS[level])


def set_level(level: Level) -> None:
    """Write events of this level and above."""
    logging.getLogger().setLevel(_LEVELS[level])


_LEVELS: Final[Mapping[Level, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class _Handler(logging.StreamHandler[TextIO]):
    """Handler of `configure_logging`; its type lets a second call find it."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """Report the error, unless standard error is closed."""
        with suppress(ValueError):
            super().handleError(record)


class _Message:
    """An event with its keys, inside a standard log record; prints well with plain handlers."""

    __slots__ = ("event", "values")

    def __init__(self, event: str, values: Mapping[str, object]) -> None:
        self.event = event
        self.values = values

    def __str__(self) -> str:
        return " ".join([self.event, *(f"{name}={_text_of(value, repr)}" for name, value in self.values.items())])


def _exc_info(given: object) -> Any:
    """Convert the value of `exc_info=` (an exception, True or None) for a log record."""
    if isinstance(given, BaseException):
        return type(given), given, given.__traceback__
    return sys.exc_info() if given else None


def _unpack(_logger: object, _method: str, event: _Event) -> _Event:
    """Move the keys of an event out of its log record."""
    message = event["_record"].msg
    return {**message.values, **event, "event": message.event} if isinstance(message, _Message) else event


def _add_context(_logger: object, _method: str, event: _Event) -> _Event:
    """Add the keys of `bind_context` to the records of other libraries."""
    for name, value in _context.get().items():
        event.setdefault(name, value)
    return event


# ------------------------------------------------------------------------------------------------ secrets and odd bytes

_SECRET_WORDS: Final = r"password|passwd|passphrase|token|secret|authorization|api_?key|credentials?"  # noqa: S105 - a pattern
_SECRET_KEY: Final = re.compile(rf"(?:.*[_.])?(?:{_SECRET_WORDS})", re.IGNORECASE)
_URL_PASSWORD: Final = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://[^\s/:@]*):[^\s/]+@")
_ASSIGNED: Final = re.compile(
    rf"""((?:{_SECRET_WORDS})["']?\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s,;&)}}\]"']+)""", re.IGNORECASE
)
_CREDENTIALS: Final = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]+", re.IGNORECASE)

# Control characters that terminals obey (C1 and DEL), and those that reorder text (bidirectional overrides).
_UNSAFE: Final = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSAFE_ON_CONSOLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSAFE_IN_LINES: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_MAX_DEPTH: Final = 6


class _Scrubber:
    """Masks secrets and escapes characters that could forge lines or control a terminal."""

    def __init__(self, secrets: Iterable[str], *, keep_lines: bool) -> None:
        # Longest first, so that a secret that contains another one is masked as a whole.
        known = sorted({secret for secret in secrets if len(secret) >= 4}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None
        # JSON escapes ordinary control characters itself, and its readers need the line breaks.
        self._unsafe = _UNSAFE if keep_lines else _UNSAFE_ON_CONSOLE

    def __call__(self, _logger: object, _method: str, event: _Event) -> _Event:
        clean = {self.text(str(name), self._unsafe): self._value(name, value, 0) for name, value in event.items()}
        for name in ("exception", "stack"):  # many lines on purpose
            if isinstance(event.get(name), str):
                clean[name] = self.text(event[name], _UNSAFE_IN_LINES)
        return clean

    def _value(self, name: object, value: object, depth: int) -> object:
        if value is None or isinstance(value, bool | int | float):
            # A number under such a name may be a secret; None and flags are not.
            return value if value is None or isinstance(value, bool) or not _is_secret(name) else MASK
        if _is_secret(name):
            return MASK
        if isinstance(value, str):
            return self.text(value, self._unsafe)
        if depth < _MAX_DEPTH and isinstance(value, dict):
            return {
                self.text(str(key), self._unsafe): self._value(key, inner, depth + 1) for key, inner in value.items()
            }
        if depth < _MAX_DEPTH and isinstance(value, list | tuple | set | frozenset):
            return [self._value(None, inner, depth + 1) for inner in value]
        # The text of enumerations, paths and masked secrets is what to print; other types fall back to their repr.
        return self.text(_text_of(value, str), self._unsafe)

    def text(self, text: str, unsafe: re.Pattern[str]) -> str:
        """Mask text that looks like a secret, then escape unsafe characters."""
        if self._known is not None:
            text = self._known.sub(MASK, text)
        text = _URL_PASSWORD.sub(rf"\1:{MASK}@", text)
        text = _ASSIGNED.sub(rf"\1{MASK}", _CREDENTIALS.sub(rf"\1 {MASK}", text))
        return unsafe.sub(_escaped, text)


def _is_secret(name: object) -> bool:
    return isinstance(name, str) and _SECRET_KEY.fullmatch(name.replace("-", "_")) is not None


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "backslashreplace").decode("ascii")


def _text_of(value: object, write: Callable[[object], str]) -> str:
    try:
        return write(value)
    except Exception as failed:  # noqa: BLE001 - a log line must not fail for what it shows
        return f"<unprintable {type(value).__name__}: {type(failed).__name__}>"


def _render_json(_logger: object, _method: str, event: _Event) -> str:
    import msgspec

    first = ("timestamp", "level", "logger", "event")
    ordered = {**{name: event[name] for name in first if name in event}, **event}
    return msgspec.json.encode(ordered).decode()


def _console_renderer(*, colors: bool) -> Processor:
    from structlog.dev import ConsoleRenderer, plain_traceback  # as above

    return ConsoleRenderer(colors=colors, exception_formatter=plain_traceback, pad_event_to=28)
