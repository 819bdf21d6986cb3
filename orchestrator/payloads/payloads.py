"""Moves large values to the payload store and back, for clients, workers and the command line.

Hashing, encoding and files work in threads, so that a large value does not block the event loop.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio
from anyio import to_thread

from orchestrator.core.errors import ConfigError, PayloadChanged, PayloadError, PayloadStoreUnavailable
from orchestrator.core.formats import Feature
from orchestrator.core.log import get_logger
from orchestrator.payloads.compression import ZSTD, compress, decompress, decompress_head, zstd_module
from orchestrator.payloads.opening import open_store
from orchestrator.payloads.reference import (
    Reference,
    digest_of,
    folder_of,
    is_reference,
    name_of,
    pack_reference,
    unpack_reference,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from orchestrator.core.live_settings import LiveSettings
    from orchestrator.core.settings import Settings
    from orchestrator.payloads.store import PayloadStore

AT_ONCE: Final = 4
"""Values of one call that are written at the same time, because each is held in memory."""
_log = get_logger(__name__)


class Caps(NamedTuple):
    """Limits of the sizes of values, in bytes of JSON.

    Attributes:
        inline_bytes: what is larger goes to the store.
        max_bytes: what is larger is refused.
    """

    inline_bytes: int
    max_bytes: int


def argument_caps(settings: Settings) -> Caps:
    """Return the limits of arguments."""
    return _caps(settings, settings.queue.max_args_bytes)


def result_caps(settings: Settings) -> Caps:
    """Return the limits of results."""
    return _caps(settings, settings.results.max_bytes)


def _caps(settings: Settings, most: int) -> Caps:
    payload = settings.payload
    if not payload.store:
        return Caps(most, most)
    return Caps(min(payload.inline_bytes, most), max(payload.max_bytes, most))


class Packed(NamedTuple):
    """A value on its way to the store.

    Attributes:
        data: the object.
        stored: the packed reference, which takes its place in Redis.
    """

    part: str
    data: bytes
    stored: bytes


def pack(part: str, data: bytes, *, compression: str) -> Packed:
    """Make the reference to a value; compresses and hashes it, so call it in a thread.

    Args:
        part: of the task.
        data: JSON.
        compression: the setting `payload.compression`.
    """
    stored, encoding = data, ""
    if compression == ZSTD and (compressed := compress(data)) is not None:
        stored, encoding = compressed, ZSTD
    reference = Reference(part, len(data), digest_of(stored), len(stored), encoding)
    return Packed(part, stored, pack_reference(reference))


def _unpack(reference: Reference, data: bytes) -> bytes:
    """Check an object and return the value in it; takes long, so call it in a thread.

    Raises:
        ValueError: it is not what was stored.
        ConfigError: it is compressed, and no module can read that.
    """
    if digest_of(data) != reference.digest:
        raise ValueError("its SHA-256 is another")
    return decompress(data, reference.size) if reference.encoding == ZSTD else data


def _unpacked(task_id: str, stored: bytes) -> Reference:
    try:
        return unpack_reference(stored)
    except ValueError as damaged:
        raise PayloadError(
            f"the reference of task {task_id} to its payload cannot be decoded: {damaged}; it is damaged, or of a "
            "newer version of this program"
        ) from None


def _unreadable(name: str) -> PayloadStoreUnavailable:
    return PayloadStoreUnavailable(
        f"{name} is compressed with zstd, which this process cannot read; install redis-orchestrator[zstd]"
    )


class Payloads:
    """The payload store of a process, and the checks of what it returns.

    Args:
        live: the settings of the process.
        require: refuses a feature that some programs of the pool may not understand.

    Attributes:
        store: None if the settings name none.
    """

    def __init__(self, live: LiveSettings, require: Callable[[Feature], Awaitable[None]]) -> None:
        self._require = require
        self.store: PayloadStore | None = open_store(live.current)
        self._live = live
        if self.store is not None and live.current.payload.compression == ZSTD:  # a missing package is told at once
            zstd_module()

    async def put(self, task_id: str, packed: Packed) -> None:
        """Store a value. A repeat is safe.

        Raises:
            PayloadStoreUnavailable: it was not stored.
            UpgradeUnfinished: the pool admits programs that take a reference for invalid JSON.
        """
        await self._require(Feature.STORED_PAYLOADS)
        await self._open().put(name_of(task_id, packed.part), packed.data)

    async def put_result(self, task_id: str, part: str, data: bytes) -> bytes:
        """Store a result and return what Redis stores in its place; errors as of `put`."""
        compression = self._live.current.payload.compression
        packed = await to_thread.run_sync(partial(pack, part, data, compression=compression))
        await self.put(task_id, packed)
        return packed.stored

    async def load(self, task_id: str, stored: bytes) -> bytes:
        """Return the JSON of arguments or of a result: as stored in Redis, or from the store, checked.

        Raises:
            PayloadMissing: the store does not have it.
            PayloadChanged: the store has something else.
            PayloadStoreUnavailable: the store does not answer, or is not configured here.
        """
        if not is_reference(stored):
            return stored
        reference = _unpacked(task_id, stored)
        name, store = name_of(task_id, reference.part), self._open()
        data = await store.get(name, max_bytes=reference.stored)
        if len(data) != reference.stored:
            size = f"more than {reference.stored}" if len(data) > reference.stored else len(data)
            raise PayloadChanged(name, store.address, f"it has {size} bytes and not {reference.stored}")
        try:
            return await to_thread.run_sync(_unpack, reference, data)
        except ConfigError:
            raise _unreadable(name) from None
        except ValueError as changed:
            raise PayloadChanged(name, store.address, str(changed)) from None

    async def load_head(self, task_id: str, stored: bytes, *, max_bytes: int) -> bytes:
        """Return the beginning of a value in the store without reading the rest, so that its digest is not checked.

        Raises:
            PayloadError: as of `load`.
        """
        reference = _unpacked(task_id, stored)
        name, store = name_of(task_id, reference.part), self._open()
        data = await store.get(name, max_bytes=min(reference.stored, max_bytes))
        if reference.encoding != ZSTD:
            return data[:max_bytes]
        try:
            return decompress_head(data, max_bytes)
        except ConfigError:
            raise _unreadable(name) from None
        except ValueError as changed:
            raise PayloadChanged(name, store.address, str(changed)) from None

    async def discard(self, task_id: str, part: str) -> None:
        """Delete a value that no task refers to; what fails is left to the sweep of the supervisor."""
        try:
            await self._open().delete([name_of(task_id, part)])
        except PayloadError as failure:
            _log.debug("payload_left", task=task_id, error=str(failure))

    async def delete_tasks(self, ids: Iterable[str]) -> int:
        """Delete all values of tasks that were deleted; return their number. Without a store there are none.

        Raises:
            PayloadStoreUnavailable: some are left; a repeat goes on, and so does the sweep.
        """
        store = self.store
        if store is None:
            return 0
        deleted, failures = 0, list[PayloadError]()
        room = anyio.Semaphore(AT_ONCE)

        async def delete(id_: str) -> None:
            nonlocal deleted
            async with room:
                try:
                    if names := await store.names_below(folder_of(id_)):
                        await store.delete(names)
                        deleted += len(names)
                except PayloadError as failure:
                    failures.append(failure)

        async with anyio.create_task_group() as group:
            for id_ in ids:
                group.start_soon(delete, id_)
        if failures:
            raise failures[0]
        return deleted

    async def discard_tasks(self, ids: Iterable[str]) -> None:
        """Delete all values of tasks that were deleted; what fails is left to the sweep of the supervisor."""
        try:
            await self.delete_tasks(ids)
        except PayloadError as failure:
            _log.warning("payloads_left", error=str(failure))

    def _open(self) -> PayloadStore:
        if self.store is None:
            raise PayloadStoreUnavailable(
                "the value is in a payload store, and none is configured here; set payload.store as in the other "
                "programs of the pool"
            )
        return self.store
