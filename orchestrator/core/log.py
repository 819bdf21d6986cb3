"""Logging: past-tense event names plus keys, never formatted sentences. `configure_logging` sets up structlog once.

Our loggers are thin and hand their events to the standard library, whose records all pass one chain of structlog
processors: other people's log lines get the same shape, and a program that embeds the client without configuring
anything sees plain lines. Nothing is configured, and structlog not even loaded, when this is imported.

Names of keys are fixed: agent, worker, task, attempt, queue, lock, fence, session, namespace.
"""

from __future__ import annotations

import logging
import re
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, MutableMapping

    from structlog.typing import Processor

    _Event: TypeAlias = MutableMapping[str, Any]

Level: TypeAlias = Literal["debug", "info", "warning", "error"]
Format: TypeAlias = Literal["auto", "console", "json"]

MASK: Final = "********"


class Logger:
    """Writes events of one part of the program. Cheap when the level is off; immutable: `bind` gives a new one."""

    __slots__ = ("_logger", "_values")

    def __init__(self, logger: logging.Logger, values: Mapping[str, object]) -> None:
        self._logger = logger
        self._values = values

    def bind(self, **values: object) -> Logger:
        """Give a logger that adds these keys to every event."""
        return Logger(self._logger, {**self._values, **values})

    def debug(self, event: str, /, **values: object) -> None:
        """Write what helps to follow one task."""
        if self._logger.isEnabledFor(logging.DEBUG):
            self._write(logging.DEBUG, event, values)

    def info(self, event: str, /, **values: object) -> None:
        """Write what an operator wants to know afterwards."""
        if self._logger.isEnabledFor(logging.INFO):
            self._write(logging.INFO, event, values)

    def warning(self, event: str, /, **values: object) -> None:
        """Write what went wrong and was dealt with."""
        if self._logger.isEnabledFor(logging.WARNING):
            self._write(logging.WARNING, event, values)

    def error(self, event: str, /, **values: object) -> None:
        """Write what went wrong and was not dealt with."""
        if self._logger.isEnabledFor(logging.ERROR):
            self._write(logging.ERROR, event, values)

    def exception(self, event: str, /, **values: object) -> None:
        """Write an error together with the exception that is being handled."""
        if self._logger.isEnabledFor(logging.ERROR):
            self._write(logging.ERROR, event, {"exc_info": True, **values})

    def _write(self, level: int, event: str, values: Mapping[str, object]) -> None:
        bound = {**self._values, **values}
        # `makeRecord` itself, because `log` would walk the stack for a file name that nobody prints.
        message = _Message(event, bound)
        exc_info = _exc_info(bound.pop("exc_info", None))
        record = self._logger.makeRecord(self._logger.name, level, "", 0, message, (), exc_info)
        self._logger.handle(record)


def get_logger(name: str) -> Logger:
    """Give the logger of a module; call it with `__name__`."""
    return Logger(logging.getLogger(name), {})


def configure_logging(
    level: Level = "info",
    format: Format = "auto",  # noqa: A002 - named like the setting
    stream: TextIO | None = None,
    *,
    secrets: Iterable[str] = (),
) -> None:
    """Send everything that this process logs, whoever logs it, to one stream. A later call replaces an earlier one.

    Args:
        level: lowest level that is written.
        format: `console` for people, `json` for machines; `auto` looks whether the stream is a terminal.
        stream: standard error by default.
        secrets: values that are masked wherever they appear, such as the password of the server.
    """
    import structlog  # as above

    target = sys.stderr if stream is None else stream
    terminal = target.isatty()
    console = format == "console" or (format == "auto" and terminal)
    shared: list[Processor] = [
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
    # Agents that use structlog themselves come out the same way.
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
    """Write events of this level and above from now on."""
    logging.getLogger().setLevel(_LEVELS[level])


_LEVELS: Final[Mapping[Level, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class _Handler(logging.StreamHandler[TextIO]):
    """Ours, so that a second call of `configure_logging` finds the handler of the first."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """Complain, unless somebody has closed standard error: then a log line must not fail for that."""
        with suppress(ValueError):
            super().handleError(record)


class _Message:
    """An event and its keys on the way through the standard library; reads well for handlers that only know text."""

    __slots__ = ("event", "values")

    def __init__(self, event: str, values: Mapping[str, object]) -> None:
        self.event = event
        self.values = values

    def __str__(self) -> str:
        return " ".join([self.event, *(f"{name}={_text_of(value, repr)}" for name, value in self.values.items())])


def _exc_info(given: object) -> Any:
    """Turn what `exc_info=` may be (an exception, True, nothing) into what a log record holds."""
    if isinstance(given, BaseException):
        return type(given), given, given.__traceback__
    return sys.exc_info() if given else None


def _unpack(_logger: object, _method: str, event: _Event) -> _Event:
    """Take the keys of our own events out of the record again."""
    message = event["_record"].msg
    return {**message.values, **event, "event": message.event} if isinstance(message, _Message) else event


# ------------------------------------------------------------------------------------------------ secrets and odd bytes

_SECRET_WORDS: Final = r"password|passwd|passphrase|token|secret|authorization|api_?key|credentials?"  # noqa: S105 - a pattern
_SECRET_KEY: Final = re.compile(rf"(?:.*[_.])?(?:{_SECRET_WORDS})", re.IGNORECASE)
_URL_PASSWORD: Final = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://[^\s/:@]*):[^\s/]+@")
_ASSIGNED: Final = re.compile(
    rf"""((?:{_SECRET_WORDS})["']?\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s,;&)}}\]"']+)""", re.IGNORECASE
)
_CREDENTIALS: Final = re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]+", re.IGNORECASE)

# Terminals obey these (C1 controls and DEL), or draw text in another order than it is (bidirectional overrides).
_UNSAFE: Final = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSAFE_ON_CONSOLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSAFE_IN_LINES: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_MAX_DEPTH: Final = 6


class _Scrubber:
    """Masks secrets, and escapes characters that could forge lines or command a terminal."""

    def __init__(self, secrets: Iterable[str], *, keep_lines: bool) -> None:
        # Longest first, so that a secret that contains another one leaves nothing of itself.
        known = sorted({secret for secret in secrets if len(secret) >= 4}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None
        # JSON escapes the ordinary control characters by itself, and its readers want the lines back.
        self._unsafe = _UNSAFE if keep_lines else _UNSAFE_ON_CONSOLE

    def __call__(self, _logger: object, _method: str, event: _Event) -> _Event:
        clean = {self.text(str(name), self._unsafe): self._value(name, value, 0) for name, value in event.items()}
        for name in ("exception", "stack"):  # many lines on purpose
            if isinstance(event.get(name), str):
                clean[name] = self.text(event[name], _UNSAFE_IN_LINES)
        return clean

    def _value(self, name: object, value: object, depth: int) -> object:
        if value is None or isinstance(value, bool | int | float):
            # A number under such a name may still be a secret; only None and flags tell nothing.
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
        # Enumerations, paths and masked secrets say what they are; where there is no such text, str is repr.
        return self.text(_text_of(value, str), self._unsafe)

    def text(self, text: str, unsafe: re.Pattern[str]) -> str:
        """Mask what looks like a secret inside a text, then escape what is unsafe to print."""
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
