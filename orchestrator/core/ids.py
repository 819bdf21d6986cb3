"""Makes task and worker ids, checks the names that we hand out, and encodes the ids that others hand to us.

Nothing here knows a Redis key: `store.keys` puts the parts together.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from orchestrator.core.errors import InvalidInput

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:-]{0,127}")
_TASK_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_ENCODED: Final = re.compile(r"(?:[A-Za-z0-9._-]|%[0-9A-F]{2})+")
_UNSAFE_IN_HOST: Final = re.compile(r"[^A-Za-z0-9.-]+")

_FOREIGN_MAX_BYTES: Final = 256
_HOST_MAX_CHARS: Final = 64
_RANDOM_BITS: Final = 74


class _TaskIds:
    """Time-ordered ids that never go backwards within a process, whatever the clock does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_ms = 0
        self._last_random = 0

    def next(self) -> str:
        fresh = int.from_bytes(os.urandom(10), "big") >> 6
        now_ms = time.time_ns() // 1_000_000
        with self._lock:
            if now_ms > self._last_ms:
                # The top bit stays clear, so that a busy millisecond has room to count upwards.
                ms, tail = now_ms, fresh >> 1
            else:
                # The same millisecond, or a clock that was set back: count on from the last id by a random step.
                ms, tail = self._last_ms, self._last_random + 1 + (fresh & 0xFFFF_FFFF)
                if tail >> _RANDOM_BITS:
                    ms, tail = ms + 1, fresh >> 1
            self._last_ms, self._last_random = ms, tail
        return _uuid7_text(ms, tail)


def _uuid7_text(ms: int, tail: int) -> str:
    """Lay out 48 bits of time and 74 of randomness around the version and variant bits of RFC 9562."""
    high = (ms << 16) | 0x7000 | (tail >> 62)
    low = (0b10 << 62) | (tail & ((1 << 62) - 1))
    digits = f"{high:016x}{low:016x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


_task_ids = _TaskIds()


def _forget_in_child() -> None:
    # A forked child must neither count on from its parent's last id nor inherit a lock that a thread held.
    _task_ids.__init__()  # type: ignore[misc]  # in place: other modules may have bound `next`


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def new_task_id() -> str:
    """Make a task id: a UUIDv7 in its usual text form, greater than every one made before in this process."""
    return _task_ids.next()


def new_worker_id(host: str | None = None) -> str:
    """Make the name of one life of one worker process: host, process number and a random part.

    Args:
        host: where the worker runs; the machine's host name by default. Characters that a name may not have become `-`.
    """
    machine = _UNSAFE_IN_HOST.sub("-", host or socket.gethostname()).strip(".-")[:_HOST_MAX_CHARS] or "worker"
    return f"{machine}:{os.getpid()}:{os.urandom(4).hex()}"


def check_name(kind: str, value: str) -> str:
    """Return `value` when it may name an agent, skill, pool, limit or worker.

    Raises:
        InvalidInput: it has other characters, begins with a sign, is empty or longer than 128 characters.
    """
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise InvalidInput(
        f"{kind} {_shown(value)} is not a valid name; use 1 to 128 letters, digits or . _ @ : - "
        "and begin with a letter or digit"
    )


def check_task_id(value: str) -> str:
    """Return `value` when it has the form of a task id.

    Raises:
        InvalidInput: it has not; no such task can exist.
    """
    if isinstance(value, str) and _TASK_ID.fullmatch(value):
        return value
    raise InvalidInput(
        f"{_shown(value)} is not a task id; copy it as it was printed, such as 0190f6e5-4d2a-7c3b-9f10-2b6c8d4e1a55"
    )


def encode_foreign(kind: str, value: str) -> str:
    """Percent-encode an id that we did not make (session, idempotency key, lane, lock, client), reversibly.

    Letters, digits and `. _ -` stay as they are, so that common ids remain readable in Redis.

    Raises:
        InvalidInput: it is empty, longer than 256 bytes of UTF-8, or no valid text (lone surrogates).
    """
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{kind} {_shown(value)} is refused; give a text of 1 to {_FOREIGN_MAX_BYTES} bytes")
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise InvalidInput(
            f"{kind} {_shown(value)} holds half a character (a lone surrogate); send valid Unicode"
        ) from None
    if len(data) > _FOREIGN_MAX_BYTES:
        raise InvalidInput(
            f"{kind} {_shown(value)} has {len(data)} bytes of at most {_FOREIGN_MAX_BYTES}; send a digest instead"
        )
    return quote(data, safe="").replace("~", "%7E")


def decode_foreign(encoded: str) -> str:
    """Give back the id that `encode_foreign` was given.

    Raises:
        InvalidInput: the text was not made by `encode_foreign`.
    """
    if not _ENCODED.fullmatch(encoded):
        raise InvalidInput(f"{_shown(encoded)} is not an encoded id")
    try:
        return unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"{_shown(encoded)} is not an encoded id") from None


def _shown(value: object) -> str:
    """Show what was refused, on one line and cut to a bearable length."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
