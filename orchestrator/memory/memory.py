"""The handle for a memory: `orc.memory(agent)`, and `ctx.memory` under the attempt's lock.

Handles own no connection. Every change is one script: one round trip, atomic, and made once however often it is sent.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from orchestrator.core.durations import Duration, to_ms, to_seconds
from orchestrator.core.errors import InvalidInput, NotFound
from orchestrator.core.ids import check_text, decode_foreign
from orchestrator.core.reading import read_text, read_whole
from orchestrator.locks.fenced_writer import WRITE_WAIT_S
from orchestrator.memory import queries, scripts, tiers, upkeep, vector_upkeep
from orchestrator.memory.differences import compare
from orchestrator.memory.encoding import check_number, check_version, encode_record, is_whole
from orchestrator.memory.forgetting import MAX_FORGOTTEN, ForgetPreview, forget, preview
from orchestrator.memory.model import TIERS, UNSET, MemoryQuery, Record, RecordChange, Unset
from orchestrator.memory.similar import current_rung, find_similar
from orchestrator.memory.states import StateMemory
from orchestrator.memory.text_vectors import TextVectors, text_of
from orchestrator.memory.vector_indexing import NewVector, index_vectors, read_vectors
from orchestrator.memory.writer import MAX_CALL_BYTES, MAX_ROWS, MemoryWriter, longest_s
from orchestrator.subjects.places import Place, noted
from orchestrator.vectors.cache import VectorCache
from orchestrator.vectors.encoding import encode_vector
from orchestrator.vectors.rungs import VectorIndexing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from typing import Literal

    from orchestrator.embedding.model import Embedder
    from orchestrator.locks.model import WriteGuard
    from orchestrator.locks.waiter import LockWaiter
    from orchestrator.memory.forgetting import Forgotten, RecordFilter
    from orchestrator.memory.model import Json, Recall, RecordAccess, SimilarRecords, StoredRecord, Tier, ValueChange
    from orchestrator.memory.scripts import MemoryReply, RecordRow
    from orchestrator.memory.tiers import TransitionReport
    from orchestrator.memory.upkeep import MemoryStats, SweepReport
    from orchestrator.secondary.model import SecondaryStore
    from orchestrator.store.scoped import ScopedStore, StateAction


class Memory:
    """Stores and recalls the records of one agent, one user, one domain, or of all programs.

    Changes through `ctx.memory` and `ctx.memory_of(...)` present a lock of the attempt, so that an attempt that lost
    its task changes nothing. Changes through `orc.memory(...)` take no lock; of two concurrent ones the last wins. Both
    wait while an exclusive owner holds the scope, as a task with `lock="agent"` its agent, and then raise `Occupied`.

    A record in the memory of a user is about that user: it gets the user as its `subject`.

    Attributes:
        kind: `agent`, `user`, `domain` or `global`.
        id: name of the agent, id of the user, name of the domain, or `all`.
    """

    __slots__ = ("_scope", "_texts", "_vector_cache", "_writer", "id", "kind")

    def __init__(
        self,
        scope: ScopedStore,
        guard: WriteGuard | None = None,
        *,
        waiter: LockWaiter,
        wait_s: float = WRITE_WAIT_S,
        texts: TextVectors | None = None,
        vector_cache: VectorCache | None = None,
    ) -> None:
        self.kind: str = scope.keys.kind
        self.id: str = scope.keys.id
        self._scope, self._writer = scope, MemoryWriter(scope, guard, waiter=waiter, wait_s=wait_s)
        self._texts = texts
        self._vector_cache = VectorCache() if vector_cache is None else vector_cache

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kind}:{self.id!r})"

    def under(self, lock: WriteGuard, *, wait: Duration = WRITE_WAIT_S) -> Memory:
        """Return a memory whose changes present a lock that the caller holds.

        Args:
            lock: a lease of this scope, as `orc.locks("agent:ada").hold(...)` returns; after its loss every change is
                refused.
            wait: seconds or timedelta that a change waits while another owner holds the scope alone.

        Raises:
            InvalidInput: `wait` is not a duration.
        """
        wait_s = to_seconds("wait", wait)
        return Memory(
            self._scope, lock, waiter=self._writer.waiter, wait_s=wait_s,
            texts=self._texts, vector_cache=self._vector_cache,
        )  # fmt: skip

    def with_embedder(self, embedder: Embedder, text: Callable[[Json], str] = text_of) -> Memory:
        """Return a memory that makes the vectors of its records and questions itself.

        `store`, `store_many` and `update(content=...)` embed the contents before they write, `store_many` all of them
        in one call of the embedder. A record that brings its `embedding` keeps it. A content whose text has nothing to
        compare, as an empty one, gets no vector. `similar` also takes a text.

        Every program that stores vectors in one memory uses the same embedder.

        Args:
            embedder: as `WordLlamaEmbedder()`, `HashedNgrams()` or one of your own; see `Embedder`.
            text: returns the text of a content. By default, a text is taken as it is, of an object its field `text`,
                and of anything else its JSON.

        Raises:
            InvalidInput: not an embedder.
        """
        texts = TextVectors.checked(embedder, text)
        made = copy(self)
        made._texts = texts  # noqa: SLF001 - of this class
        return made

    # ----------------------------------------------------------------------------------------------------- change

    async def store(self, record: Record, *, tier: Tier = "stm", op_id: str | None = None) -> RecordChange:
        """Store a record with all its index entries. A record of the same id is replaced, in whichever tier it is.

        Args:
            record: the record.
            tier: `stm` or `im`. The oldest short-term records beyond `memory.max_stm_records` move to `im`.
            op_id: id of the change; repeated within ten minutes, the change is made once.

        Raises:
            InvalidInput: an invalid value, or an `op_id` of another record; nothing was stored.
            EmbeddingError: the embedder failed; nothing was stored.
            MemoryFull: a cap was reached; nothing was stored.
            Fenced, LockLost: another owner has the lock; nothing was stored.
            Occupied: another owner holds the scope alone; nothing was stored.
            SubjectErased: the person that the record is about was erased less than 20 minutes ago; nothing was stored.
            StoreError: Redis did not do it; a repeat with the same `op_id` is made once.
        """
        return (await self._store(await self._encode([record]), tier, op_id))[0]

    async def store_many(
        self, records: Sequence[Record], *, tier: Tier = "stm", op_id: str | None = None
    ) -> list[RecordChange]:
        """Store many records in order, up to 100 of them and 1 MiB in a round trip; see `store`.

        A round trip stores all of its records or none.

        Args:
            records: the records.
            tier: as in `store`.
            op_id: id of the change. After an error, a repeat with the same records stores each of them once.

        Raises:
            InvalidInput, MemoryFull, Fenced, LockLost, Occupied, StoreError: as `store`. An invalid record refuses all
                of them; after another error, the first ones may have been stored.
        """
        rows = await self._encode(records)
        changes: list[RecordChange] = []
        for number, part in enumerate(_parts(rows)):
            changes += await self._store(part, tier, op_id, part=f"many {number}")
        return changes

    async def _encode(self, records: Sequence[Record]) -> list[RecordRow]:
        cell_size = self._writer.settings.cell_size
        given = any(isinstance(record, Record) and record.embedding is not None for record in records)
        if not given and self._texts is None:
            return [encode_record(self._writer, record, cell_size=cell_size) for record in records]
        indexing = await self._indexing()
        rows = [encode_record(self._writer, record, cell_size=cell_size, indexing=indexing) for record in records]
        if self._texts is not None:
            # Only now, because an invalid record is refused before the embedder is asked.
            bare = [i for i, record in enumerate(records) if record.embedding is None]
            vectors = await self._texts.of_contents([records[i].content for i in bare])
            for i, vector in zip(bare, vectors, strict=True):
                rows[i] = rows[i]._replace(**indexing.columns(vector)._asdict())
        spaces = {row.space for row in rows if row.space}
        if len(spaces) > 1:
            raise InvalidInput(
                f"the embeddings have {', '.join(sorted(space.partition(':')[0] for space in spaces))} dimensions; "
                "those of one memory have the same number"
            )
        return rows

    async def _indexing(self) -> VectorIndexing:
        embedder = "" if self._texts is None else self._texts.embedder.name
        return VectorIndexing(await current_rung(self._scope), embedder)

    async def _store(
        self, rows: Sequence[RecordRow], tier: Tier, op_id: str | None, part: str = ""
    ) -> list[RecordChange]:
        writer, (name,) = self._writer, queries.check_tiers((tier,))
        subjects = {decode_foreign(row.subject) for row in rows if row.subject}
        async with noted(self._scope, Place.of_memory(self._scope.keys), subjects, longest_s(writer.settings, rows)):
            # A repeat makes new ids for records without one.
            named = [f"{row.kind} {row.step}" if row.made else f"={row.id}" for row in rows]
            reply = await writer.change(
                lambda change: scripts.store(change, tier=name, rows=rows),
                op_id,
                part=part,
                named=named,
                new_vectors=lambda reply: _new_vectors(rows, reply),
            )
        if len(reply.rest) != 3 * len(rows) + 1:
            raise writer.named_another(op_id)
        made = reply.status == "duplicate"
        return [
            RecordChange(
                read_text(id_) or row.id, version, duplicate=made or status == b"duplicate", older=status == b"older"
            )
            for row, status, version, id_ in zip(rows, *(reply.rest[i:-1:3] for i in range(3)), strict=True)
        ]

    async def update(
        self,
        id_: str,
        *,
        importance: float | None = None,
        content: Json | Unset = UNSET,
        embedding: Sequence[float] | bytes | None = None,
        newer_than: int | None = None,
        op_id: str | None = None,
    ) -> RecordChange:
        """Change the importance, the content or the vector of a record, which keeps its place and its deadline.

        New content without a vector leaves the record without one, because the old vector is not that of the content.
        A memory with an embedder makes the vector of new content.

        Args:
            id_: id of the record.
            importance: new importance.
            content: new content.
            embedding: vector of the content; see `Record`.
            newer_than: write this number as the version, only if the stored version is lower. The same number again
                returns `duplicate`.
            op_id: as in `store`.

        Raises:
            NotFound: no such record, or it was deleted or has expired; it is not made again.
            InvalidInput, EmbeddingError, MemoryFull, Fenced, LockLost, Occupied, StoreError: as `store`.
        """
        writer = self._writer
        if importance is None and isinstance(content, Unset) and embedding is None:
            raise InvalidInput("give importance=, content= or embedding=; nothing would be changed")
        row = scripts.UpdateRow(
            id=check_text("id", id_),
            newer_than=0 if newer_than is None else check_version(newer_than),
            importance="" if importance is None else repr(check_number("importance", importance)),
            content=b"" if isinstance(content, Unset) else writer.encode(f"content of record {id_!r}", content),
        )
        vector = b""
        if embedding is not None:
            vector = encode_vector(f"embedding of record {id_!r}", embedding)
        elif row.content and self._texts is not None:
            (vector,) = await self._texts.of_contents([content])
        if vector:
            row = row._replace(**(await self._indexing()).columns(vector)._asdict())
        reply = await writer.change(
            lambda change: scripts.update(change, row=row), op_id, "change-memory", named=(id_,)
        )
        match reply.status:
            case "missing":
                raise NotFound(f"{self._scope.keys.words} has no record {id_!r}; nothing was changed")
            case "older":
                version = reply.rest[0]
                return RecordChange(id_, version, duplicate=version == newer_than, older=version != newer_than)
        if len(reply.rest) != 2:
            raise writer.named_another(op_id)
        if vector:
            await index_vectors(self._scope, [new for new in await read_vectors(self._scope, [id_]) if new])
        return RecordChange(id_, reply.rest[0], duplicate=reply.status == "duplicate")

    async def touch(self, *ids: str, op_id: str | None = None) -> int:
        """Count an access to each of up to 500 records, with its time; their content is not rewritten.

        Args:
            *ids: ids of the records.
            op_id: as in `store`.

        Returns:
            The number of these records that exist.

        Raises:
            InvalidInput, Fenced, LockLost, Occupied, StoreError: as `store`.
        """
        return await self._count(scripts.touch, ids, op_id)

    async def delete(self, *ids: str, op_id: str | None = None) -> int:
        """Delete up to 500 records with all their index entries.

        Args:
            *ids: ids of the records.
            op_id: as in `store`.

        Returns:
            The number of records that existed.

        Raises:
            InvalidInput, Fenced, LockLost, Occupied, StoreError: as `store`.
        """
        return await self._count(scripts.remove, ids, op_id, "forget-memory")

    async def supersede(self, old: str, by: str | None, *, op_id: str | None = None) -> RecordChange:
        """Take a record out of all recalls because another one replaces it. `get` returns it with `superseded_by`.

        It stays out of recalls when the other record is deleted or expires: `supersede(old, None)` puts it back.

        Args:
            old: id of the record.
            by: id of the record that replaces it, which is not replaced itself; None puts the record back.
            op_id: as in `store`.

        Raises:
            NotFound: one of the two records does not exist.
            InvalidInput: both are the same, or the other one is replaced itself; nothing was changed.
            Fenced, LockLost, Occupied, StoreError: as `store`.
        """
        check_text("old", old)
        if by is not None and check_text("by", by) == old:
            raise InvalidInput(f"record {old!r} cannot replace itself")
        writer = self._writer
        reply = await writer.change(
            lambda change: scripts.supersede(change, id_=old, by=by or ""),
            op_id,
            "change-memory",
            named=(old, by or ""),
        )
        match reply.status:
            case "missing":
                raise NotFound(
                    f"{self._scope.keys.words} has no record {read_text(reply.rest[0])!r}; nothing was changed"
                )
            case "superseded":
                raise InvalidInput(f"record {by!r} is replaced by {read_text(reply.rest[0])!r}; name that one")
        if len(reply.rest) != 1:
            raise writer.named_another(op_id)
        return RecordChange(old, reply.rest[0], duplicate=reply.status == "duplicate")

    async def preview_forget(self, wanted: RecordFilter, *, limit: int = MAX_FORGOTTEN) -> ForgetPreview:
        """Select the records that match a filter, and return their number and some of them.

        `forget` takes the preview within an hour; it removes the selected records, not those that match later.

        Args:
            wanted: the filter.
            limit: maximum number of records, up to 100,000.

        Raises:
            InvalidInput, StoreError: an invalid condition; no reply.
        """
        return await preview(self._scope, wanted, limit=limit)

    async def forget(self, what: ForgetPreview | RecordFilter, *, limit: int = MAX_FORGOTTEN) -> Forgotten:
        """Remove records with all their index entries, in both tiers and in batches.

        A record that has changed since the preview stays. A repeat with the same preview removes nothing twice, and
        returns the same result for ten minutes.

        Args:
            what: a preview, or a filter to select and remove at once.
            limit: as in `preview_forget`.

        Raises:
            NotFound: the preview is older than an hour; records that were removed before stay removed.
            InvalidInput, Fenced, LockLost, Occupied, StoreError: as `store`.
        """
        chosen = what if isinstance(what, ForgetPreview) else await self.preview_forget(what, limit=limit)
        return await forget(self._writer, chosen)

    async def _count(
        self, wrapper: Any, ids: Sequence[str], op_id: str | None, action: StateAction | None = None
    ) -> int:
        if not ids:
            return 0
        queries.check_ids(ids)
        named = list(dict.fromkeys(ids))
        reply = await self._writer.change(lambda change: wrapper(change, ids=named), op_id, action, named=named)
        if len(reply.rest) != 1:
            raise self._writer.named_another(op_id)
        return read_whole(reply.rest[0])

    # ----------------------------------------------------------------------------------------------------- vectors

    async def embed_missing(self, *, limit: int = 1000) -> int:
        """Embed the contents of records that have no vector, as those stored before the memory had an embedder.

        Up to 100 texts are one call of the embedder. A record whose content changes meanwhile is left, and so is one
        whose text has nothing to compare. Versions stay.

        Args:
            limit: maximum number of records, up to 100,000.

        Returns:
            The number of records that have got a vector; less than `limit` once all have been looked at.

        Raises:
            InvalidInput: the memory has no embedder, or vectors of another one.
            EmbeddingError: the embedder failed; the records before have their vectors.
            MemoryFull, Fenced, LockLost, Occupied, StoreError: as `store`.
        """
        if self._texts is None:
            raise InvalidInput("embed_missing needs an embedder: memory.with_embedder(embedder).embed_missing()")
        return await vector_upkeep.embed_missing(self._writer, self._texts, await self._indexing(), limit)

    async def drop_vectors(self) -> int:
        """Remove the vectors of all records, which stay as they are, so that another embedder can be used.

        Stop the programs that store with the old embedder first: what they store meanwhile keeps its vector. Then
        `memory.with_embedder(other).embed_missing()` makes the new vectors.

        Returns:
            The number of removed vectors.

        Raises:
            Fenced, LockLost, Occupied, StoreError: as `store`; a repeat removes the rest.
        """
        return await vector_upkeep.drop_vectors(self._writer)

    # ------------------------------------------------------------------------------------------------------- tiers

    async def transition(self, *, limit: int = 100) -> TransitionReport:
        """Move short-term records that are due to the intermediate tier, with a new lifetime.

        A record is due when more than `memory.max_stm_records` are newer, or from the age of `memory.stm_age_s` on if
        its importance is at least `memory.keep_importance`; less important ones expire. A record with a retention of
        its own keeps its deadline. The supervisor does this for every memory from time to time, and every `store` for
        the records beyond the cap.

        Args:
            limit: maximum number of records, 1 to 1000.

        Raises:
            InvalidInput, Fenced, LockLost, Occupied, StoreError: as `store`.
            MemoryFull: the intermediate tier is full; nothing was moved.
        """
        return await tiers.move_due(self._writer, limit)

    async def offload(self, sink: SecondaryStore, *, older_than: Duration = 0, limit: int = 100) -> int:
        """Move intermediate records to long-term storage, those that expire first, and return how many it has saved.

        The records move to an outbox, are saved, and leave the outbox. A call that a crash ends loses none and saves
        none twice: the next call saves what is in the outbox first.

        Args:
            sink: the storage, as `SqliteStore("memory.sqlite")`.
            older_than: age of the records, seconds or timedelta.
            limit: maximum number of records, 1 to 1000.

        Raises:
            SecondaryStoreError: the storage failed; the records wait in the outbox for `memory.outbox_ttl_s`.
            InvalidInput, Fenced, LockLost, Occupied, StoreError: as `store`.
        """
        return await tiers.save_old(self._writer, sink, older_than_ms=to_ms("older_than", older_than), limit=limit)

    def offloaded(self, sink: SecondaryStore, *, since: int | None = None) -> AsyncIterator[Record]:
        """Iterate over the records that `offload` has saved, by step: `async for record in memory.offloaded(sink)`.

        `store` brings a record back as a new one: with version 1, no accesses, and the retention of its tier. Records
        that were superseded are left out; `sink.load` returns them, too. A record has the vector that it was stored
        with; a memory with an embedder leaves out vectors of another one, so that `store` embeds the content again.

        Args:
            sink: the storage.
            since: first step; None for all.
        """
        embedder = None if self._texts is None else self._texts.embedder.name
        return tiers.load_saved(self._scope, sink, since, embedder=embedder)

    async def sweep(self, *, cursor: int = 0, budget: int = 200) -> SweepReport:
        """Remove expired records and index entries without a record, and restore lost entries.

        Every change removes some expired records, and the supervisor sweeps every memory; a sweep of your own makes it
        sooner. The server decides about each entry in the step that removes it, so that a record that is stored
        meanwhile is safe.

        Args:
            cursor: 0, or `cursor` of the last report.
            budget: entries to look at, 1 to 100,000.

        Raises:
            InvalidInput, Fenced, LockLost, Occupied, StoreError: as `store`.
        """
        return await upkeep.sweep(self._writer, cursor=cursor, budget=budget)

    async def stats(self) -> MemoryStats:
        """Return how many records and bytes the memory holds."""
        return await upkeep.measure(self._scope)

    def states(self, simulation: str | None = None) -> StateMemory:
        """Return the states of the agent, by their position relative to the newest one.

        Args:
            simulation: simulation that new states belong to.

        Raises:
            InvalidInput: not the memory of an agent.
        """
        if self.kind != "agent":
            raise InvalidInput(f"only agents have states; {self._scope.keys.words} is none")
        return StateMemory(self, simulation=simulation)

    @property
    def scope(self) -> ScopedStore:
        """The scope that has the memory."""
        return self._scope

    # ------------------------------------------------------------------------------------------------------- read

    async def get(self, *ids: str, tier: Tier | None = None) -> list[StoredRecord | None]:
        """Return up to 500 records by id, in order; None for each that is missing or has expired.

        Args:
            *ids: ids of the records.
            tier: look at this tier alone.
        """
        return await queries.read_records(self._scope, ids, tier)

    async def accesses(self, *ids: str) -> dict[str, RecordAccess]:
        """Return how often and when up to 500 records were touched; those that were not are left out.

        Args:
            *ids: ids of the records.
        """
        return await queries.read_accesses(self._scope, ids)

    async def recent(self, n: int = 10, *, kind: str | None = None) -> list[StoredRecord]:
        """Return the newest records, newest first.

        Args:
            n: number of records, up to 1000.
            kind: records of this kind alone.
        """
        return await self._all(_newest(n, kind))

    async def at(self, position: int = 0, *, kind: str | None = None) -> StoredRecord | None:
        """Return the record at a position relative to the newest one: 0 the newest, -1 the one before it.

        Args:
            position: 0 or negative.
            kind: count records of this kind alone.
        """
        offset = _check_position(position)
        found = await queries.recall(self._scope, _newest(1, kind), offset=offset, to_end=True)
        return found[0] if found.records else None

    async def history(
        self, steps: int = 5, *, kind: str | None = None, order: Literal["new", "old"] = "old"
    ) -> list[StoredRecord]:
        """Return the newest records in the order in which they happened.

        Args:
            steps: number of records, up to 1000.
            kind: records of this kind alone.
            order: `old` returns the oldest of them first, `new` the newest.
        """
        if order not in {"new", "old"}:
            raise InvalidInput(f"order {order!r:.80} is unknown; use new or old")
        records = await self.recent(steps, kind=kind)
        return records if order == "new" else records[::-1]

    async def changes(self, steps: int = 1, *, kind: str | None = None) -> dict[str, ValueChange]:
        """Return how the content of the newest record differs from that of an earlier one, by field.

        Args:
            steps: positions between the two, at least 1.
            kind: compare records of this kind alone.

        Returns:
            The difference of each field of the two contents; empty if there is no record that far back.
        """
        if not is_whole(steps) or steps < 1:
            raise InvalidInput(f"steps must be a whole number from 1, not {steps!r:.80}")
        _check_position(-steps)
        found = await queries.recall(self._scope, _newest(2, kind), every=steps, to_end=True)
        return compare(found[1].content, found[0].content) if len(found) == 2 else {}

    async def between(self, lo: int, hi: int, *, kind: str | None = None, limit: int = 100) -> list[StoredRecord]:
        """Return the records of a range of steps, the oldest first.

        Args:
            lo: lowest step.
            hi: highest step.
            kind: records of this kind alone.
            limit: maximum number of records, up to 1000.
        """
        kinds = () if kind is None else (kind,)
        return await self._all(MemoryQuery(since=lo, until=hi, kinds=kinds, order="old", limit=limit))

    async def of_kind(self, kind: str, *, limit: int = 100) -> list[StoredRecord]:
        """Return the newest records of a kind, newest first.

        Args:
            kind: the kind.
            limit: maximum number of records, up to 1000.
        """
        return await self._all(MemoryQuery(kinds=(kind,), limit=limit))

    async def of_action(self, action: str, *, limit: int = 100) -> list[StoredRecord]:
        """Return the newest records about an action, newest first.

        Args:
            action: the action.
            limit: maximum number of records, up to 1000.
        """
        return await self._all(MemoryQuery(actions=(action,), limit=limit))

    async def important(self, threshold: float, *, limit: int = 20) -> list[StoredRecord]:
        """Return the most important records, the most important first.

        Args:
            threshold: lowest importance.
            limit: maximum number of records, up to 1000.
        """
        return await self._all(MemoryQuery(min_importance=threshold, order="important", limit=limit))

    async def _all(self, query: MemoryQuery) -> list[StoredRecord]:
        return list((await queries.recall(self._scope, query, to_end=True)).records)

    async def query(self, query: MemoryQuery) -> Recall:
        """Return the records that meet all conditions, in one round trip.

        The server reads the index with the fewest entries, and looks at most at 10,000 of them; the result says whether
        that was enough.

        Args:
            query: the conditions.

        Raises:
            InvalidInput: an invalid condition.
        """
        return await queries.recall(self._scope, query)

    async def similar(
        self,
        vector: Sequence[float] | bytes | str,
        k: int = 5,
        *,
        where: MemoryQuery | None = None,
        min_score: float | None = None,
    ) -> SimilarRecords:
        """Return the records whose vectors are the most similar to a vector, the most similar first.

        A record that was stored without `embedding` has no vector. A vector that is not that of its record now is never
        found: neither one of an earlier content, nor one that a task added after it had lost its lock.

        Args:
            vector: numbers, or 32-bit floats as little-endian bytes; a text, if the memory has an embedder.
            k: number of records, up to 100.
            where: conditions that the records must meet; `order` and `limit` do not count.
            min_score: lowest cosine, from -1 to 1.

        Raises:
            InvalidInput: an invalid value, or a vector that the stored ones cannot be compared with.
            EmbeddingError: the embedder failed.
            ConfigError: `memory.vector_rung` asks for what the server does not have.
        """
        texts = self._texts
        if texts is None and isinstance(vector, str):
            raise InvalidInput("a text needs an embedder: memory.with_embedder(WordLlamaEmbedder()).similar(text)")
        if texts is not None and isinstance(vector, str):
            encoded = await texts.of_question(vector)
        else:
            encoded = encode_vector("vector", vector)
        if texts is not None:
            await texts.check_space(self._scope, encoded)
        return await find_similar(self._scope, encoded, k, where=where, min_score=min_score, cache=self._vector_cache)

    async def near(
        self, x: float, y: float, radius: float, *, tiers: Sequence[Tier] = TIERS, limit: int = 50
    ) -> Recall:
        """Return the records at most `radius` away from a point, the nearest first.

        The server reads the cells that the circle touches, or all records if these are more than 400, and looks at most
        at 10,000 entries; the result says whether that was enough.

        Args:
            x: first coordinate of the point.
            y: second coordinate.
            radius: largest distance.
            tiers: tiers to search.
            limit: maximum number of records, up to 1000.

        Raises:
            InvalidInput: not finite numbers, or a negative radius.
        """
        return await queries.recall_near(self._scope, (x, y), radius, tiers=tiers, limit=limit)


def _new_vectors(rows: Sequence[RecordRow], reply: MemoryReply) -> list[NewVector]:
    """Return the vectors that a store of rows has stored."""
    number = read_whole(reply.rest[-1])
    if not number or len(reply.rest) != 3 * len(rows) + 1:
        return []
    return [
        NewVector(row.id, number, row.vector, row.kind, row.action, row.step)
        for row, status in zip(rows, reply.rest[:-1:3], strict=True)
        if row.vector and status == b"ok"
    ]


def _newest(limit: int, kind: str | None) -> MemoryQuery:
    return MemoryQuery(kinds=() if kind is None else (kind,), limit=limit)


def _check_position(position: Any) -> int:
    if not is_whole(position) or not -queries.MAX_SCANNED < position <= 0:
        raise InvalidInput(
            f"a position is 0 for the newest record or a negative whole number above -{queries.MAX_SCANNED}, "
            f"not {position!r:.80}"
        )
    return -read_whole(position)


def _parts(rows: Sequence[RecordRow]) -> Iterator[list[RecordRow]]:
    part, size = list[Any](), 0
    for row in rows:
        bytes_ = len(row.content) + len(row.meta) + len(row.vector)
        if part and (len(part) == MAX_ROWS or size + bytes_ > MAX_CALL_BYTES):
            yield part
            part, size = [], 0
        part.append(row)
        size += bytes_
    if part:
        yield part
