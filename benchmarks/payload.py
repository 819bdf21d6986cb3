"""The work that every measured system does: about 100 bytes of arguments in, a small dict out.

Handlers that are asked to also note when they started, by appending a few bytes to a file that all processes share.
"""

from __future__ import annotations

import os
import struct
import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

STARTS_FILE_VARIABLE = "BENCH_STARTS_FILE"
ATTEMPTS_FILE_VARIABLE = "BENCH_ATTEMPTS_FILE"
RESULT = {"ok": True, "words": 120}
_START = struct.Struct("<q")
_ATTEMPT = struct.Struct("<qq")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a handler, on the monotonic clock."""

    pid: int
    started_ns: int


def arguments(number: int) -> dict[str, Any]:
    """Arguments of one task; 100 bytes as JSON, give or take the digits of its number."""
    return {"number": number, "url": "https://example.org/articles/2024/redis-streams", "style": "short", "sent_ns": 0}


def stamped(number: int) -> dict[str, Any]:
    """Arguments that carry the moment of their submission, on the clock that all processes of a machine share."""
    return {**arguments(number), "sent_ns": time.monotonic_ns()}


def note_start(sent_ns: int) -> None:
    """Append how long a stamped task waited for its handler; unstamped tasks pay one comparison."""
    if sent_ns:
        waited_ns = time.monotonic_ns() - sent_ns
        os.write(_opened(STARTS_FILE_VARIABLE), _START.pack(waited_ns))


def read_waits_ms(path: Path) -> list[float]:
    """How long each stamped task waited, in the order of the starts."""
    return [waited_ns / 1e6 for (waited_ns,) in _START.iter_unpack(_whole_records(path, _START))]


def note_attempt() -> None:
    """Append which process started an attempt, and when."""
    os.write(_opened(ATTEMPTS_FILE_VARIABLE), _ATTEMPT.pack(os.getpid(), time.monotonic_ns()))


def read_attempts(path: Path) -> list[Attempt]:
    """All attempts so far, in order."""
    return [Attempt(pid, started_ns) for pid, started_ns in _ATTEMPT.iter_unpack(_whole_records(path, _ATTEMPT))]


@cache
def _opened(variable: str) -> int:
    # At the first use, so in the process that runs the handler and not in the parent that forked it.
    return os.open(os.environ[variable], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _whole_records(path: Path, record: struct.Struct) -> bytes:
    data = path.read_bytes() if path.exists() else b""
    return data[: len(data) // record.size * record.size]
