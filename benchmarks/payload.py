"""The work that every measured system does: about 100 bytes of arguments in, a small dict out."""

from __future__ import annotations

import os
import struct
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

STARTS_FILE_VARIABLE = "BENCH_STARTS_FILE"
RESULT = {"ok": True, "words": 120}
_START = struct.Struct("<q")


def arguments(number: int) -> dict[str, Any]:
    """Arguments of one task; 100 bytes as JSON, a few more with a long number."""
    return {"number": number, "url": "https://example.org/articles/2024/redis-streams", "style": "short", "sent_ns": 0}


def stamped(number: int) -> dict[str, Any]:
    """Arguments that carry the moment of their submission, on the clock that all processes of a machine share."""
    return {**arguments(number), "sent_ns": time.monotonic_ns()}


def note_start(sent_ns: int) -> None:
    """Append how long a stamped task waited for its handler; unstamped tasks pay one comparison."""
    if sent_ns:
        waited_ns = time.monotonic_ns() - sent_ns
        os.write(_starts_file(), _START.pack(waited_ns))


def read_waits_ms(path: Path) -> list[float]:
    """How long each stamped task waited, in the order of the starts."""
    return [waited_ns / 1e6 for (waited_ns,) in _START.iter_unpack(path.read_bytes())] if path.exists() else []


_opened: list[int] = []


def _starts_file() -> int:
    # Opened at the first use, so in the process that runs the handler and not in the parent that forked it.
    if not _opened:
        _opened.append(os.open(os.environ[STARTS_FILE_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
    return _opened[0]
