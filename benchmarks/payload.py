"""Arguments and result of the measured tasks: about 100 bytes in and a small dict out, or a body both ways.

On request, handlers also append their start to a file that all processes share.
"""

from __future__ import annotations

import contextlib
import os
import random
import string
import struct
import time
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

STARTS_FILE_VARIABLE = "BENCH_STARTS_FILE"
ATTEMPTS_FILE_VARIABLE = "BENCH_ATTEMPTS_FILE"
SIZE_VARIABLE = "BENCH_PAYLOAD_BYTES"
"""Size of the bodies that the client of a peer submits."""
RESULT = {"ok": True, "words": 120}
_BULK_BYTES = 10_000_000
"""Limit of the bodies of one bulk call, for every system."""
_START = struct.Struct("<q")
_ATTEMPT = struct.Struct("<qqqq")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a numbered task, on the monotonic clock; `ended_ns` is 0 unless the handler ended."""

    number: int
    pid: int
    started_ns: int
    ended_ns: int = 0


def arguments(number: int) -> dict[str, Any]:
    """Return the arguments of one task, about 100 bytes as JSON."""
    return {"number": number, "url": "https://example.org/articles/2024/redis-streams", "style": "short", "sent_ns": 0}


def sized_arguments(payload_bytes: int) -> Callable[[int], dict[str, Any]]:
    """Return a function that makes the arguments of a task; 0 bytes stand for arguments without a body."""
    return partial(_with_body, payload_bytes=payload_bytes) if payload_bytes else arguments


def _with_body(number: int, *, payload_bytes: int) -> dict[str, Any]:
    text = _random_text(2 * payload_bytes)
    start = number * 7919 % payload_bytes
    return {**arguments(number), "body": text[start : start + payload_bytes]}


def size_of_client() -> int:
    """Return the size of bodies that this process submits, which its environment gives."""
    return int(os.environ.get(SIZE_VARIABLE, "0"))


def bulk_of(payload_bytes: int) -> int:
    """Return the number of tasks of one bulk call."""
    return max(1, min(1000, _BULK_BYTES // payload_bytes)) if payload_bytes else 1000


def result_of(number: int, body: str) -> dict[str, Any]:
    """Return the result of a handler: small, or as large as the arguments."""
    return {**RESULT, "number": number, "body": body} if body else {**RESULT, "number": number}


@cache
def _random_text(length: int) -> str:
    # Letters and digits, which a system that compresses cannot make much smaller; the same in every run.
    return "".join(random.Random(length).choices(string.ascii_letters + string.digits, k=length))


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


@contextlib.contextmanager
def noted_attempt(number: int) -> Iterator[None]:
    """Append number, process and time of an attempt when it starts, and again when it ends."""
    file, pid, started_ns = _opened(ATTEMPTS_FILE_VARIABLE), os.getpid(), time.monotonic_ns()
    os.write(file, _ATTEMPT.pack(number, pid, started_ns, 0))
    yield
    os.write(file, _ATTEMPT.pack(number, pid, started_ns, time.monotonic_ns()))


def read_attempts(path: Path) -> list[Attempt]:
    """Return all attempts so far, in the order of their starts."""
    found: dict[tuple[int, int, int], Attempt] = {}
    for record in _ATTEMPT.iter_unpack(_whole_records(path, _ATTEMPT)):
        found[record[:3]] = Attempt(*record)
    return list(found.values())


@cache
def _opened(variable: str) -> int:
    # Opened at the first use, so in the process of the handler and not in its forked parent.
    return os.open(os.environ[variable], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _whole_records(path: Path, record: struct.Struct) -> bytes:
    data = path.read_bytes() if path.exists() else b""
    return data[: len(data) // record.size * record.size]
