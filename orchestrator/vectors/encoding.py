"""Converts vectors to bytes and back. Works without numpy."""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any, Final, NamedTuple

from orchestrator.core.errors import InvalidInput

MAX_DIMS: Final = 4096
NUMBER_BYTES: Final = 8
"""Bytes in front of a stored vector: its number as a double."""
_FLOAT_BYTES: Final = 4
_MAX_LENGTH: Final = 1e9
"""Length beyond which, as below its inverse, squares of 32-bit floats may be lost: here and in Redis."""


class StoredVector(NamedTuple):
    """A vector as `emb` holds it: the number that its record's header names, and 32-bit floats, little-endian."""

    number: int
    floats: bytes


def encode_vector(what: str, vector: Any) -> bytes:
    """Return a vector as 32-bit floats, little-endian. A very short or very long one gets the length 1.

    Args:
        what: what the vector is of, for messages.
        vector: numbers, or such bytes.

    Raises:
        InvalidInput: not 1 to 4096 finite numbers of which one is not 0.
    """
    if isinstance(vector, bytes | bytearray | memoryview):
        data = bytes(vector)
        if len(data) % _FLOAT_BYTES:
            raise InvalidInput(f"{what} has {len(data)} bytes; give 32-bit floats, little-endian, 4 bytes each")
        floats = decode_floats(data)
    else:
        floats = _convert(what, vector)
    if not 1 <= len(floats) <= MAX_DIMS:
        raise InvalidInput(f"{what} has {len(floats)} dimensions; give 1 to {MAX_DIMS}")
    # One that is not finite makes the length so.
    length = math.hypot(*floats)
    if not math.isfinite(length) or length == 0:
        raise InvalidInput(f"{what} must have finite numbers, and not only zeros")
    if not 1 / _MAX_LENGTH <= length <= _MAX_LENGTH:
        floats = array("f", [number / length for number in floats])
    return _swapped(floats).tobytes()


def _convert(what: str, vector: Any) -> array[float]:
    # The keys of a mapping and the members of a set are numbers in no order of dimensions.
    if not isinstance(vector, Mapping | AbstractSet):
        with suppress(TypeError, ValueError, OverflowError):
            return array("f", vector)
    raise InvalidInput(f"{what} must be numbers or float32 bytes, not {vector!r:.80}")


def decode_floats(data: bytes) -> array[float]:
    """Return the numbers of a vector in bytes."""
    floats = array("f")
    floats.frombytes(data)
    return _swapped(floats)


def split_stored(stored: bytes) -> StoredVector:
    """Split a value of `emb` into its number and its floats."""
    return StoredVector(int(struct.unpack_from("<d", stored)[0]), stored[NUMBER_BYTES:])


def dims_of(data: bytes) -> int:
    """Return the number of dimensions of a vector in bytes."""
    return len(data) // _FLOAT_BYTES


def space_of(data: bytes, embedder: str) -> str:
    """Return the name of the space of a vector: vectors of one space can be compared."""
    return f"{dims_of(data)}:{embedder}"


def _swapped(floats: array[float]) -> array[float]:
    if sys.byteorder == "big":
        floats = floats[:]
        floats.byteswap()
    return floats
