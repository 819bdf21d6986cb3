"""Keeps large arguments and results out of the scripts: each is a field of its own in the record of its task.

A script takes about a microsecond for each kilobyte that it reads, and it reads each argument twice. So a client writes
large arguments into the record by plain commands, in front of their submit and in the same round trip; a worker does so
with a large result, in front of its verdict. The script gets a reference, which names the field, and checks that the
field is there. If not, it returns `lost`, and the value is sent through the script. A value without its script expires
after `SENT_S`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from anyio.lowlevel import checkpoint
from msgspec.structs import replace

from orchestrator.core.errors import ServerUnavailable, StoreError
from orchestrator.core.group_commit import split_to_fit
from orchestrator.core.reading import read_text, read_whole
from orchestrator.store.calls import opaque
from orchestrator.tasks.model import decode_envelope, encode_envelope
from orchestrator.tasks.scripts import UnusualRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orchestrator.store.calls import Argument
    from orchestrator.store.keys import PoolKeys
    from orchestrator.store.store import Store
    from orchestrator.tasks.scripts import SubmitRow

ROW_BYTES: Final = 4096
"""Longer values leave the rows of scripts. Shorter ones cost more in a field than in a row."""
SENT_S: Final = 60
ARGS: Final = "args"
_READ_BYTES: Final = 256 * 1024
"""Bytes of the values of one round trip: the server reuses the memory of a short reply."""
_SHARE: Final = 4
"""A field takes the server about a quarter of the time of a value in a row."""
_MARK: Final = b"\x02"
_OPAQUE_BYTES: Final = len(bytes(opaque(b"")))


class LargeValue(NamedTuple):
    """A value that is written into a field of its own."""

    task_id: str
    field: str
    data: bytes


def result_field(generation: str) -> str:
    """Return the field of the result of an attempt."""
    return f"result:{generation}"


def reference_to(value: LargeValue) -> bytes:
    """Return what takes the place of a value; no JSON text and no reference to the payload store begins like this."""
    return reference_of(value.field, len(value.data))


def reference_of(field: str, size: int) -> bytes:
    """Return the reference to a value of a field."""
    return _MARK + f"{field} {size}".encode()


def size_of(reference: bytes) -> int:
    """Return the bytes of the value that a reference names."""
    return read_whole(reference.rpartition(b" ")[2])


def is_apart(stored: bytes | None) -> bool:
    """Return whether stored bytes name a field, and are no value."""
    return stored is not None and stored[:1] == _MARK


def field_of(stored: bytes) -> str:
    """Return the field that a reference names."""
    return read_text(stored[len(_MARK) :].partition(b" ")[0])


def call_bytes(size: int) -> int:
    """Return what a value counts of the bytes of one call, if large values are written apart."""
    return size // _SHARE if size > ROW_BYTES else size


def split_row(row: SubmitRow) -> tuple[SubmitRow, LargeValue | None]:
    """Return a row with a reference to its arguments, and the arguments; or the row itself if they are not large."""
    if len(row.envelope) <= ROW_BYTES:
        return row, None
    envelope = decode_envelope(memoryview(row.envelope)[_OPAQUE_BYTES:])
    if len(envelope.args) <= ROW_BYTES:
        return row, None
    value = LargeValue(row.id, ARGS, envelope.args)
    packed = opaque(encode_envelope(replace(envelope, args=reference_to(value))))
    if isinstance(row, UnusualRow):
        return replace(row, envelope=packed, apart=1), value
    return UnusualRow(row.id, packed, apart=1), value


def write_commands(keys: PoolKeys, values: Iterable[LargeValue]) -> list[Sequence[Argument]]:
    """Return the commands that write values in front of a script. They change no value that is there."""
    commands: list[Sequence[Argument]] = [("MULTI",)]
    for value in values:
        key = keys.task(value.task_id)
        commands.append(("HSETNX", key, value.field, value.data))
        # Only a record that did not exist has no lifetime.
        commands.append(("EXPIRE", key, SENT_S, "NX"))
    return [*commands, ("EXEC",)]


async def read_values(store: Store, wanted: Sequence[tuple[str, bytes]]) -> list[bytes | StoreError | None]:
    """Read values by the ids of their tasks and their references; None if a value is gone.

    Raises:
        ServerUnavailable: Redis does not answer.
    """
    found: list[bytes | StoreError | None] = []
    for part in split_to_fit(wanted, _size_of, max_bytes=_READ_BYTES):
        found += await store.pipeline([("HGET", store.keys.task(id_), field_of(stored)) for id_, stored in part])
    if failure := next((one for one in found if isinstance(one, ServerUnavailable)), None):
        raise failure
    return found


def _size_of(wanted: tuple[object, ...]) -> int:
    stored: Any = wanted[1]
    return size_of(stored)


class _Abandoned(Exception):
    """The caller that read for others was cancelled."""


class ValueReader:
    """Reads single values; callers of the same turn of the event loop share a round trip."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asked: list[tuple[str, bytes, asyncio.Future[bytes | None]]] = []

    async def read(self, task_id: str, stored: bytes) -> bytes | None:
        """Read the value of a reference; None if it is gone.

        Raises:
            StoreError: Redis does not answer, or refuses.
        """
        while True:
            answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
            self._asked.append((task_id, stored, answer))
            if len(self._asked) == 1:
                await self._read_asked()
            try:
                return await answer
            except _Abandoned:
                continue

    async def _read_asked(self) -> None:
        asked = self._asked
        try:
            try:
                await checkpoint()
            finally:
                self._asked = []
            for part in split_to_fit(asked, _size_of, max_bytes=_READ_BYTES):
                try:
                    replies = await read_values(self._store, [(id_, stored) for id_, stored, _ in part])
                except StoreError as failure:
                    replies = [failure] * len(part)
                for (_, _, answer), reply in zip(part, replies, strict=True):
                    _settle(answer, reply)
        except BaseException:
            for _, _, answer in asked[1:]:
                _settle(answer, _Abandoned())
            raise


def _settle(answer: asyncio.Future[bytes | None], reply: bytes | Exception | None) -> None:
    if answer.done():  # or its caller was cancelled
        return
    if isinstance(reply, Exception):
        answer.set_exception(reply)
    else:
        answer.set_result(reply)
