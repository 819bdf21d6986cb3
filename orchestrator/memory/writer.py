"""Sends changes of one memory, and the limits that bound them."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import InvalidInput, MemoryFull, SubjectErased
from orchestrator.core.reading import read_text
from orchestrator.locks.fenced_writer import WRITE_WAIT_S, FencedWriter
from orchestrator.memory.listings import follow
from orchestrator.memory.scripts import MemoryChange, MemoryReply, pack_limits
from orchestrator.memory.vector_indexing import index_vectors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestrator.core.settings import MemorySettings
    from orchestrator.locks.fenced_writer import CallerRow
    from orchestrator.locks.model import WriteGuard
    from orchestrator.locks.waiter import LockWaiter
    from orchestrator.memory.scripts import RecordRow
    from orchestrator.memory.vector_indexing import NewVector
    from orchestrator.store.calls import Call
    from orchestrator.store.scoped import ScopedStore, StateAction

MAX_ROWS: Final = 100
"""Records in one call: each one is about twenty writes, and the server runs nothing else meanwhile."""
MAX_CALL_BYTES: Final = 1024 * 1024


class MemoryWriter(FencedWriter):
    """Makes the changes of one handle; without a guard they present no lock."""

    __slots__ = ()

    def __init__(
        self, scope: ScopedStore, guard: WriteGuard | None = None, *, waiter: LockWaiter, wait_s: float = WRITE_WAIT_S
    ) -> None:
        super().__init__(
            scope, guard, waiter=waiter, wait_s=wait_s,
            max_value_bytes=lambda settings: settings.memory.max_record_bytes,
        )  # fmt: skip

    @property
    def settings(self) -> MemorySettings:
        """The settings of now."""
        return self.scope.settings.memory

    async def change(
        self,
        make_call: Callable[[MemoryChange], Call[MemoryReply]],
        op_id: str | None,
        action: StateAction | None = None,
        *,
        part: str = "",
        named: Sequence[str] = (),
        new_vectors: Callable[[MemoryReply], Sequence[NewVector]] = lambda _: (),
    ) -> MemoryReply:
        """Send a change. The caller handles every status but `fenced`, `occupied`, `full`, `erased` and `another`.

        Args:
            make_call: makes the call of a script.
            op_id: id of the change.
            action: what the record of the programs' actions calls it; None: it has no record.
            part: number of the call, if a change with one op id has many.
            named: the records that the change names; a repeat names the same ones.
            new_vectors: returns the vectors that the change has stored.

        Raises:
            Fenced, LockLost: another owner has the lock.
            Occupied: another owner holds the scope alone.
            MemoryFull: a cap was reached.
            SubjectErased: a person that a record is about was erased a moment ago.
            InvalidInput: the op id names a change of other records, or a vector is of another space.
            StoreError: Redis did not do it; a repeat with the same `op_id` is made once.
        """
        digest = "" if op_id is None else _digest(named)

        def make(caller: CallerRow) -> Call[MemoryReply]:
            # Op ids of users are printable: neither a tab nor a line end is in them.
            op = f"{caller.op}\t{part}" if part else caller.op
            return make_call(
                MemoryChange(self.scope.keys, caller._replace(op=f"{op}\n{digest}"), pack_limits(self.settings))
            )

        reply = await self.send(make, op_id, action)
        if reply.listings_pending:
            await follow(self.scope)
        if reply.vectors_pending:
            await index_vectors(self.scope, new_vectors(reply))
        if reply.status == "full":
            raise self._full(read_text(reply.rest[0]))
        if reply.status == "erased":
            raise SubjectErased
        if reply.status == "another":
            raise self.named_another(op_id)
        if reply.status == "space":
            advice = "nothing was changed. Use the same embedder, or call drop_vectors() first"
            raise other_space(self.scope.keys.words, read_text(reply.rest[0]), advice=advice)
        return reply

    def _full(self, what: str) -> MemoryFull:
        settings = self.settings
        name, cap = {
            "records": ("memory.max_im_records", settings.max_im_records),
            "bytes": ("memory.max_bytes", settings.max_bytes),
        }[what]
        return MemoryFull(self.scope.keys.words, what, name, cap)

    def named_another(self, op_id: str | None) -> InvalidInput:
        """Return the error for an op id that another change has used."""
        return InvalidInput(
            f"op_id {op_id!r} names another change of the memory of {self.scope.keys.words}, which has been made; "
            "nothing was changed; give each change its own op_id, as f'{ctx.task_id}/step'"
        )


def other_space(owner: str, space: str, *, advice: str) -> InvalidInput:
    """Return the error for a vector that the stored vectors cannot be compared with."""
    dims, _, embedder = space.partition(":")
    maker = f"the embedder {embedder!r}" if embedder else "their caller"
    return InvalidInput(
        f"the memory of {owner} has vectors with {dims} dimensions from {maker}, and vectors of two spaces cannot be "
        f"compared; {advice}"
    )


def _digest(named: Sequence[str]) -> str:
    return sha256(repr(list(named)).encode()).hexdigest()[:16]


def longest_s(settings: MemorySettings, rows: Sequence[RecordRow]) -> float:
    """Return for how long records may be in memory: in both tiers, and on their way to long-term storage."""
    own_s = max((row.ttl_ms for row in rows), default=0) / 1000
    # The outbox lives on while records are added to it.
    return max(settings.stm_ttl_s, own_s) + settings.im_ttl_s + 2 * settings.outbox_ttl_s
