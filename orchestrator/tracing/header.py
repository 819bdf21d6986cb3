"""Packs a W3C trace context into one text: the `traceparent`, and behind a space the `tracestate` if there is one.

Reads and writes it without OpenTelemetry, so that a program without it hands the context on and shows the trace id.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

STATE_CHARS: Final = 512
"""Longest `tracestate` that a task carries. The W3C recommendation asks for at least that much."""
LONG_MEMBER_CHARS: Final = 128
"""The members above this length are dropped first, as the recommendation says."""

_PARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


class TraceContext(NamedTuple):
    """A span that a text names, and its vendor state."""

    trace_id: int
    span_id: int
    flags: int
    state: str


def pack(trace_id: int, span_id: int, flags: int, state: str = "") -> str:
    """Return the text that a task carries. State that is too long loses members."""
    parent = f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"
    return f"{parent} {kept}" if state and (kept := _bounded(state)) else parent


def unpack(text: str) -> TraceContext | None:
    """Return what a text names, or None if it is no trace context."""
    parent, _, state = text.partition(" ")
    found = _PARENT.fullmatch(parent)
    if found is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    return TraceContext(trace_id, span_id, flags, state) if trace_id and span_id else None


def trace_id_of(text: str) -> str | None:
    """Return the trace id as 32 hexadecimal digits, or None if the text is no trace context."""
    found = unpack(text)
    return None if found is None else f"{found.trace_id:032x}"


def _bounded(state: str) -> str:
    if len(state) <= STATE_CHARS:
        return state
    members = [member for member in state.split(",") if len(member) <= LONG_MEMBER_CHARS]
    while len(",".join(members)) > STATE_CHARS:
        members.pop()
    return ",".join(members)
