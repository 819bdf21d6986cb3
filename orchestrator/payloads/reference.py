"""References to stored values, and the names of their objects.

A reference takes the place of the JSON bytes of arguments or of a result. Its first byte is a control character, with
which no JSON text begins, and every value of a user is encoded as JSON. So no value of a user is read as a reference.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec

from orchestrator.core.ids import check_task_id, task_ms
from orchestrator.core.reading import msgpack_reader

ARGS: Final = "args"
"""Part of the arguments of a task; the part of a result is `RESULT` and the generation of its attempt."""
RESULT: Final = "result-"

_MARK: Final = b"\x01"
_PART: Final = re.compile(r"args|result-[0-9]{1,20}")
_DAY: Final = re.compile(r"[0-9]{8}")


class Reference(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Takes the place of a stored value in Redis.

    Attributes:
        part: `args`, or `result-` and the generation of the attempt.
        size: bytes of the value as JSON.
        digest: SHA-256 of the object.
        stored: bytes of the object.
        encoding: `zstd` if the object is compressed, else empty.
    """

    part: str
    size: int
    digest: bytes
    stored: int
    encoding: str = ""


class ObjectName(NamedTuple):
    """The parts of the name of an object.

    Attributes:
        part: None for the rest of an unfinished write.
    """

    task_id: str
    part: str | None


_decode: Final = msgpack_reader(Reference)
_encode: Final = msgspec.msgpack.Encoder().encode


def is_reference(stored: bytes | None) -> bool:
    """Return whether stored bytes are a reference and not JSON."""
    return stored is not None and stored[:1] == _MARK


def pack_reference(reference: Reference) -> bytes:
    """Return the bytes that take the place of the JSON."""
    return _MARK + _encode(reference)


def unpack_reference(stored: bytes) -> Reference:
    """Return the reference in stored bytes.

    Raises:
        ValueError: they are damaged, or of a newer version.
    """
    reference = _decode(stored[len(_MARK) :])
    if not _PART.fullmatch(reference.part):
        raise ValueError(f"{reference.part!r} names no part of a task")
    return reference


def digest_of(data: bytes) -> bytes:
    """Return the SHA-256 of an object; `sha256sum` prints the same. Releases the interpreter lock."""
    return hashlib.sha256(data).digest()


def folder_of(task_id: str) -> str:
    """Return the first part of the names of a task's objects: the day of its submit and its id.

    Raises:
        InvalidInput: that is not the form of a task id.
    """
    day = datetime.fromtimestamp(task_ms(check_task_id(task_id)) / 1000, UTC)
    return f"{day:%Y%m%d}/{task_id}"


def name_of(task_id: str, part: str) -> str:
    """Return the name of an object in the part of the store that belongs to the pool."""
    return f"{folder_of(task_id)}/{part}"


def parse_name(name: str) -> ObjectName | None:
    """Return the task of an object, or None for the name of something else."""
    day, _, rest = name.partition("/")
    task_id, _, part = rest.partition("/")
    try:
        if not _DAY.fullmatch(day) or not part or "/" in part or folder_of(task_id) != f"{day}/{task_id}":
            return None
    except ValueError:
        return None
    return ObjectName(task_id, part if _PART.fullmatch(part) else None)
