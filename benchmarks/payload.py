"""Arguments and result of the measured tasks: about 100 bytes in, a small dict out.

On request, handlers also append their start to a file that all processes share.
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
    """Return the arguments of one task, about 100 bytes as JSON."""
    return {"number": number, "url": "https://example.org/articles/2024/redis-streams", "style": "short", "sent_ns": 0}


def stamped(number: int) -> dict[str, Any]:
    """Return arguments with the submit time, on the monotonic clock of the machine."""
    return {**arguments(number), "sent_ns": time.monotonic_ns()}


def note_start(sent_ns: int) -> None:
    """Append the waiting time of a stamped task; unstamped tasks cost one comparison."""
    if sent_ns:
        waited_ns = time.monotonic_ns() - sent_ns
        os.write(_opened(STARTS_FILE_VARIABLE), _START.pack(waited_ns))


def read_waits_ms(path: Path) -> list[float]:
    """Return the waiting times of the stamped tasks, in the order of their starts."""
    return [waited_ns / 1e6 for (waited_ns,) in _START.iter_unpack(_whole_records(path, _START))]


def note_attempt() -> None:
    """Append the process and the time of an attempt."""
    os.write(_opened(ATTEMPTS_FILE_VARIABLE), _ATTEMPT.pack(os.getpid(), time.monotonic_ns()))


def read_attempts(path: Path) -> list[Attempt]:
    """Return all attempts so far, in order."""
    return [Attempt(pid, started_ns) for pid, started_ns in _ATTEMPT.iter_unpack(_whole_records(path, _ATTEMPT))]


@cache
def _opened(variable: str) -> int:
    # Opened at the first use, so in the process of the handler and not in its forked parent.
    return os.open(os.environ[variable], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _whole_records(path: Path, record: struct.Struct) -> bytes:
    data = path.read_bytes() if path.exists() else b""
    return data[: len(data) // record.size * record.size]
