"""Compares the events that tests make the product log with their declarations."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.log import LogMessage
from tools.log_events import EVENTS, LOG_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

EVERYWHERE: Final = {"pool", "worker", "trace_id", "span_id", "exc_info"}
"""Keys of `bind_context` and of the current span, and the exception of a record."""
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "text": (str, Enum),
    "number": (int, float),
    "flag": (bool,),
    "list": (list, tuple, set, frozenset),
    "table": (dict,),
}


def violations_of(name: str, values: Mapping[str, object]) -> list[str]:
    """Return what differs from the declaration of an event; values may be None."""
    event = EVENTS.get(name)
    if event is None:
        return [f"{name} is not declared in tools/log_events.py"]
    found = [f"{name}: {key} is missing" for key in event.required - set(values)]
    for key, value in values.items():
        if key not in event.allowed | EVERYWHERE:
            found.append(f"{name}: {key} is not declared")
        elif key in LOG_KEYS and value is not None:
            kind = LOG_KEYS[key].type
            if not isinstance(value, _TYPES[kind]) or (kind == "number" and isinstance(value, bool)):
                found.append(f"{name}: {key}={value!r} is no {kind}")
    return found


@contextmanager
def checked_events() -> Iterator[list[str]]:
    """Check each event that this process logs meanwhile; yield the violations."""
    found: list[str] = []
    make = logging.getLogRecordFactory()

    def make_checked(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        if isinstance(record.msg, LogMessage) and record.name in sys.modules:
            found.extend(violations_of(record.msg.event, record.msg.values))
        return record

    logging.setLogRecordFactory(make_checked)
    try:
        yield found
    finally:
        logging.setLogRecordFactory(make)
