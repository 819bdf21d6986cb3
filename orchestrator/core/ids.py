"""Makes task and worker ids, checks names, and encodes foreign ids.

Knows no Redis key; `store.keys` builds those.
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
_UNRESERVED: Final = re.compile(r"[A-Za-z0-9._-]{1,256}")
"""Common ids, which stay as they are."""
_ENCODED: Final = re.compile(r"(?:[A-Za-z0-9._-]|%[0-9A-F]{2})+")
_UNSAFE_IN_HOST: Final = re.compile(r"[^A-Za-z0-9.-]+")

_FOREIGN_MAX_BYTES: Final = 256
_HOST_MAX_CHARS: Final = 64
SHARD_BITS: Final = 7
"""Bits before the maker that name the shard of the pool (protocol rule 24). They are 0 until a pool has shards."""
_HIGH_MAX: Final = 0xFFF
# Includes the variant of the UUID in its two upper bits.
_LOW_MIN: Final = 0x8000
_LOW_STEP: Final = 1 << SHARD_BITS
_LOW_MAX: Final = 0xC000 - _LOW_STEP
_SOME_ID: Final = "00000000-0000-7000-8000-000000000000"
_SHOWN_ID: Final = "0190f6e5-4d2a-7c3b-9f10-2b6c8d4e1a55"
_PREFIX_MIN: Final = 4
TASK_ID_CHARS: Final = len(_SOME_ID)
_DIGITS: Final = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
"""In the order of their bytes, as Redis sorts."""
_PAIRS: Final = tuple(first + second for first in _DIGITS for second in _DIGITS)


class TaskIds:
    """Makes time-ordered ids that never go backwards, even if the clock does.

    Attributes:
        node: last group of digits of every id: its maker. The first digit tells whether a client reads the replies of
            these tasks: 8 to f yes, 0 to 7 no (`lua/includes/ending.lua` reads it).
    """

    def __init__(self, *, listens: bool) -> None:
        self._lock = threading.Lock()
        half = int.from_bytes(os.urandom(6), "big") >> 1
        self.node = f"{half | 1 << 47 if listens else half:012x}"
        self._tail = f"-{self.node}"
        self._last_ms = 0
        self._high, self._low = 0, _LOW_MAX
        self._head = ""

    def next(self) -> str:
        """Return a UUIDv7 in its usual text form, greater than every earlier one."""
        now_ms = time.time_ns() // 1_000_000
        with self._lock:
            if now_ms > self._last_ms:
                self._begin(now_ms)
            elif self._low < _LOW_MAX:
                # The same millisecond, or a clock that was set back.
                self._low += _LOW_STEP
            elif self._high < _HIGH_MAX:
                self._format_head(self._last_ms, self._high + 1, _LOW_MIN)
            else:
                self._begin(self._last_ms + 1)
            return f"{self._head}{self._low:x}{self._tail}"

    def take(self, count: int) -> list[str]:
        """Return as many ids as `next` would return now, one after another."""
        taken: list[str] = []
        while len(taken) < count:
            # `next` brings the clock and a new counter; the rest of this counter is taken at once.
            taken.append(self.next())
            with self._lock:
                head, tail, first = self._head, self._tail, self._low + _LOW_STEP
                last = min(_LOW_MAX, self._low + (count - len(taken)) * _LOW_STEP)
                taken += [f"{head}{low:x}{tail}" for low in range(first, last + 1, _LOW_STEP)]
                self._low = last
        return taken

    def _begin(self, ms: int) -> None:
        # Both parts begin in their lower half, so that a busy millisecond has room to count up.
        random_bits = int.from_bytes(os.urandom(3), "big")
        self._format_head(ms, random_bits & 0x7FF, _LOW_MIN + (random_bits >> 11 & 0x3F) * _LOW_STEP)

    def _format_head(self, ms: int, high: int, low: int) -> None:
        # 48 bits of time, version, 12 of counter, variant, 7 of counter, 7 of shard, 48 of maker (RFC 9562, 6.2, 6.4).
        self._last_ms, self._high, self._low = ms, high, low
        digits = f"{ms:012x}"
        self._head = f"{digits[:8]}-{digits[8:]}-7{high:03x}-"


_task_ids = TaskIds(listens=False)


def _reset_in_child() -> None:
    # A forked child must not be the same maker as its parent, nor inherit a lock that a thread held.
    _task_ids.__init__(listens=False)  # type: ignore[misc]  # in place: other modules may have bound `next`


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)


def new_task_id() -> str:
    """Return a task id without a reply address: a UUIDv7, greater than every earlier one of this function."""
    return _task_ids.next()


def new_short_id() -> str:
    """Return an id of 14 characters that sorts by time: 42 bits of ms, 19 of counter, 23 of its maker.

    Records and messages have it, because indices copy their ids.
    """
    id_ = new_task_id()
    counter = int(id_[15:18], 16) << 7 | int(id_[19:23], 16) >> SHARD_BITS & 0x7F
    number = (task_ms(id_) & (1 << 42) - 1) << 42 | counter << 23 | int(id_[24:], 16) & (1 << 23) - 1
    return "".join([_PAIRS[number >> shift & 4095] for shift in (72, 60, 48, 36, 24, 12, 0)])


def new_token() -> str:
    """Return 8 random bytes as hex, to identify one request."""
    return os.urandom(8).hex()


def new_worker_id(host: str | None = None) -> str:
    """Return the name of one run of a worker process: host, process id and a random part.

    Args:
        host: by default the host name of the machine. Invalid characters become `-`.
    """
    machine = _UNSAFE_IN_HOST.sub("-", host or socket.gethostname()).strip(".-")[:_HOST_MAX_CHARS] or "worker"
    return f"{machine}:{os.getpid()}:{os.urandom(4).hex()}"


def check_name(kind: str, value: str) -> str:
    """Return `value` if it is a valid name of an agent, skill, pool, limit or worker.

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
    """Return `value` if it is a valid task id.

    Raises:
        InvalidInput: it is not.
    """
    if isinstance(value, str) and _TASK_ID.fullmatch(value):
        return value
    raise InvalidInput(f"{_shown(value)} is not a task id; copy it as it was printed, such as {_SHOWN_ID}")


def check_task_prefix(value: str) -> str:
    """Return `value` if a task id can begin with it.

    Raises:
        InvalidInput: none can, or it is shorter than 4 characters.
    """
    if len(value) >= _PREFIX_MIN and _TASK_ID.fullmatch(value + _SOME_ID[len(value) :]):
        return value
    raise InvalidInput(
        f"{_shown(value)} is not a task id; give the id, such as {_SHOWN_ID}, or its first characters, at least "
        f"{_PREFIX_MIN}"
    )


def task_ms(id_: str) -> int:
    """Return the time at which a task id was made, which its first 48 bits have; Unix ms of the client's clock.

    An id that no client made has the time 0.
    """
    try:
        return int(id_[:8] + id_[9:13], 16)
    except ValueError:
        return 0


def check_text(kind: str, value: str) -> str:
    """Return `value` if it is a valid name inside a key: a path, a field, a member of a board.

    Raises:
        InvalidInput: it is not text, empty, longer than 256 bytes, or not printable.
    """
    if not isinstance(value, str) or not value or not value.isprintable():
        raise InvalidInput(f"{kind} {value!r:.80} is refused; give a text of 1 to 256 bytes that can be printed")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{kind} {value!r:.80} contains an unpaired surrogate; send valid Unicode") from None
    if size > _FOREIGN_MAX_BYTES:
        raise InvalidInput(f"{kind} {value[:40]!r}… has {size} bytes of at most {_FOREIGN_MAX_BYTES}")
    return value


def encode_foreign(kind: str, value: str) -> str:
    """Percent-encode a foreign id (session, idempotency key, lane, lock, client), reversibly.

    Letters, digits and `. _ -` stay, so that common ids remain readable in Redis.

    Raises:
        InvalidInput: it is empty, longer than 256 bytes of UTF-8, or has unpaired surrogates.
    """
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{kind} {_shown(value)} is refused; give a text of 1 to {_FOREIGN_MAX_BYTES} bytes")
    if type(value) is str and _UNRESERVED.fullmatch(value):
        return value
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{kind} {_shown(value)} contains an unpaired surrogate; send valid Unicode") from None
    if len(data) > _FOREIGN_MAX_BYTES:
        raise InvalidInput(
            f"{kind} {_shown(value)} has {len(data)} bytes of at most {_FOREIGN_MAX_BYTES}; send a digest instead"
        )
    return quote(data, safe="").replace("~", "%7E")


def decode_foreign(encoded: str) -> str:
    """Decode an id from `encode_foreign`.

    Raises:
        InvalidInput: `encoded` is not an encoded id.
    """
    if not _ENCODED.fullmatch(encoded):
        raise InvalidInput(f"{_shown(encoded)} is not an encoded id")
    try:
        return unquote_to_bytes(encoded).decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"{_shown(encoded)} is not an encoded id") from None


def _shown(value: object) -> str:
    """Format a refused value on one line of limited length."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
