"""Splits a RESP stream into messages; supports RESP2 and RESP3.

It does not interpret messages, so that a relay passes on exactly the received bytes.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

CRLF: Final = b"\r\n"

_LINE: Final = frozenset(b"+-:_#,(")
_SIZED: Final = frozenset(b"$!=")
_PER_COUNT: Final = {ord("*"): 1, ord("~"): 1, ord(">"): 1, ord("%"): 2, ord("|"): 2}
_ATTRIBUTE: Final = ord("|")
_STRING: Final = ord("$")

REPLY_TYPES: Final = frozenset(_LINE | _SIZED | set(_PER_COUNT))
REQUEST_TYPES: Final = frozenset(b"*$")


class ProtocolError(ValueError):
    """Bytes that are no RESP of this module; the rest of the stream is unusable."""


class Framer:
    """Splits one direction of a connection into frames, and reads each byte a bounded number of times.

    Nested messages need no stack: a counter of missing elements tells when the outermost one is complete.
    """

    __slots__ = ("_buffer", "_missing", "_position", "_searched", "_types")

    def __init__(self, types: frozenset[int] = REPLY_TYPES) -> None:
        self._types = types
        self._buffer = bytearray()
        self._position = 0
        self._missing = 1
        self._searched = 0

    @property
    def pending_bytes(self) -> int:
        """Bytes of an incomplete frame."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Take received bytes and return the completed frames.

        Raises:
            ProtocolError: the bytes are no RESP; frames of the same call are lost.
        """
        self._buffer += data
        ends = self._scan()
        if not ends:
            return []
        with memoryview(self._buffer) as view:
            frames = [bytes(view[start:end]) for start, end in itertools.pairwise((0, *ends))]
        done = ends[-1]
        del self._buffer[:done]
        self._position -= done
        self._searched = max(self._searched - done, 0)
        return frames

    def _scan(self) -> list[int]:  # noqa: C901 - one loop over elements; a call for each would double its cost
        buffer, size = self._buffer, len(self._buffer)
        position, missing, types = self._position, self._missing, self._types
        ends: list[int] = []
        while position < size:
            kind = buffer[position]
            if kind not in types:
                raise ProtocolError(_refusal(bytes(buffer[position : position + 32]), types))
            line_end = buffer.find(CRLF, max(position, self._searched))
            if line_end < 0:
                self._searched = max(position, size - 1)
                break
            following = line_end + 2
            missing_after = missing - 1
            if kind in _SIZED:
                length = _count(buffer, position, line_end)
                if length >= 0:
                    following += length + 2
                    if following > size:
                        break
                    if buffer[following - 2 : following] != CRLF:
                        raise ProtocolError(f"a string of {length} bytes does not end in CR LF")
            elif kind in _PER_COUNT:
                missing_after += max(_count(buffer, position, line_end), 0) * _PER_COUNT[kind]
                if kind == _ATTRIBUTE:
                    missing_after += 1
            position, missing = following, missing_after
            if missing == 0:
                ends.append(position)
                missing = 1
        self._position, self._missing = position, missing
        return ends


def arguments(frame: bytes, limit: int | None = None) -> Iterator[bytes]:
    """Yield at most `limit` arguments of a complete request frame, its name first."""
    line_end = frame.index(CRLF)
    count = max(_count(frame, 0, line_end), 0)
    position = line_end + 2
    for _ in range(count if limit is None else min(count, limit)):
        if frame[position] != _STRING:
            raise ProtocolError(f"an argument must be a bulk string, not {frame[position : position + 32]!r}")
        line_end = frame.index(CRLF, position)
        length = _count(frame, position, line_end)
        position = line_end + 2
        yield frame[position : position + length]
        position += length + 2


def first_text(frame: bytes) -> bytes:
    """Return the first element of an array or push frame if it is a plain string, else an empty value."""
    line_end = frame.index(CRLF)
    if frame[:1] not in (b"*", b">") or frame[line_end + 2 : line_end + 3] != b"$":
        return b""
    return next(arguments(frame, limit=1), b"")


def _count(buffer: bytes | bytearray, position: int, line_end: int) -> int:
    digits = bytes(buffer[position + 1 : line_end])
    if not digits.isdigit() and digits != b"-1":
        raise ProtocolError(f"{digits[:32]!r} is no length; streamed strings and aggregates are not supported")
    return int(digits)


def _refusal(start: bytes, types: frozenset[int]) -> str:
    if types == REQUEST_TYPES:
        return f"a request is an array of bulk strings, not {start!r}; inline commands are not relayed"
    return f"{start!r} does not begin a RESP message"
