"""`Chat`: the messages of a session, appended one by one and read in one round trip.

Handles own no connection. Every change is one script: one round trip, atomic, and made once however often it is sent.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from orchestrator.chat import queries, scripts
from orchestrator.chat.copies import ChatCopy
from orchestrator.chat.model import (
    MAIN,
    AppendedMessages,
    ChatChange,
    Hydration,
    Position,
    decode_name,
    parse_entries,
    parse_entry,
)
from orchestrator.chat.trimming import orphans, select
from orchestrator.chat.writer import MAX_FIELD_BYTES, MAX_FIELDS, MAX_VERSION, ChatWriter, check_number
from orchestrator.core.durations import Duration, to_seconds
from orchestrator.core.errors import (
    ChatConflict,
    InvalidInput,
    LockBusy,
    Occupied,
    OrchestratorError,
    SecondaryStoreError,
    StoreError,
    SubjectErased,
)
from orchestrator.core.ids import check_text
from orchestrator.core.log import get_logger
from orchestrator.core.payload import encode_json
from orchestrator.core.reading import read_whole
from orchestrator.locks.fenced_writer import WRITE_WAIT_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.chat.accounts import ChatAccounts
    from orchestrator.chat.cache import ChatCache
    from orchestrator.chat.model import ChatHead, Message, StoredMessage
    from orchestrator.chat.scripts import ChatReply, SinceReply
    from orchestrator.locks.model import WriteGuard
    from orchestrator.locks.named import Locks
    from orchestrator.secondary.model import SecondaryStore
    from orchestrator.store.scoped import ScopedStore

_LAST: Final = 200
_MOST: Final = 1_000_000
_log = get_logger(__name__)


class Chat:
    """Reads and changes one chat of a session: `orc.chat(session)` for any program, `ctx.chat` for an attempt.

    A change of `ctx.chat` presents the attempt's lock, so that an attempt that lost its task changes nothing. One of
    `orc.chat` takes no lock. Both wait while a task with `lock="session"` holds the session alone.

    Attributes:
        session: id of the session.
        name: source of the chat; a session has one chat per source.
    """

    __slots__ = ("_cache", "_copy", "_locks", "_scope", "_writer", "name", "session")

    def __init__(
        self,
        scope: ScopedStore,
        *,
        locks: Locks,
        source: str = MAIN,
        guard: WriteGuard | None = None,
        enclosing: WriteGuard | None = None,
        agent: str = "",
        wait_s: float = WRITE_WAIT_S,
        store: SecondaryStore | None = None,
        cache: ChatCache | None = None,
        accounts: ChatAccounts | None = None,
    ) -> None:
        self._scope, self._locks, self._cache = scope, locks, cache
        self._writer = ChatWriter(
            scope,
            guard,
            source=source,
            waiter=locks.waiter,
            enclosing=enclosing,
            agent=agent,
            wait_s=wait_s,
            accounts=accounts,
        )
        self.session: str = scope.keys.id
        self.name: str = source
        self._copy = None if store is None else self._copy_in(store)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.session!r}, {self.name!r})"

    def source(self, name: str) -> Chat:
        """Return the chat of the session with another source; its changes present the same lock.

        Raises:
            InvalidInput: not text of 1 to 256 bytes.
        """
        return self._with(source=name)

    def under(self, lock: WriteGuard, *, agent: str = "", wait: Duration = WRITE_WAIT_S) -> Chat:
        """Return the chat with changes that present a lock that the caller holds.

        Args:
            lock: a lease of this session, as `ctx.locks.hold(...)` returns; after its loss every change is refused.
            agent: agent in whose name the changes are made.
            wait: seconds or timedelta that a change waits while another owner holds the session alone.

        Raises:
            InvalidInput: `wait` is not a duration.
        """
        return self._with(guard=lock, agent=agent or self._writer.agent, wait_s=to_seconds("wait", wait))

    def _with(self, **changed: Any) -> Chat:
        writer = self._writer
        options: dict[str, Any] = {
            "locks": self._locks,
            "source": self.name,
            "guard": writer.guard,
            "enclosing": writer.enclosing,
            "agent": writer.agent,
            "wait_s": writer.wait_s,
            "accounts": writer.accounts,
            "store": None if self._copy is None else self._copy.store,
            "cache": self._cache,
        }
        return Chat(self._scope, **options | changed)

    # ------------------------------------------------------------------------------------------------ second storage

    def kept_in(self, store: SecondaryStore) -> Chat:
        """Return the chat with a copy in a second storage, which outlives the chat in Redis.

        Every change of the returned handle saves what was not yet saved. `hydrate` restores messages that Redis has
        lost, or that have expired. If the storage fails, a change is nevertheless made, `chat_not_saved` is logged, and
        a later change saves it. A chat has one copy: use the same storage everywhere.

        Args:
            store: `SqliteStore`, `JsonLinesStore`, or your own `SecondaryStore`.
        """
        return self._with(store=store)

    async def save(self, store: SecondaryStore | None = None) -> int:
        """Save what has changed since the last save, for handles without a copy. Return the number of saved messages.

        Args:
            store: where to; by default that of `kept_in`.

        Raises:
            SecondaryStoreError, StoreError: a later save does it.
            InvalidInput: there is no storage.
        """
        return await self._copy_in(store).save()

    async def rehydrate(self, store: SecondaryStore | None = None, *, last: int = _LAST) -> Hydration:
        """Restore messages from a second storage, and read the chat.

        What the chat holds stays; messages are added before its first one, as far as its caps allow. One program at a
        time restores a chat, the others wait for it.

        Args:
            store: where from; by default that of `kept_in`.
            last: maximum number of messages to return.

        Raises:
            SecondaryStoreError: the storage cannot be read.
            LockBusy: another program restores the chat for more than 10 s.
            InvalidInput, Fenced, Occupied, StoreError: as `append`.
        """
        source = await self._copy_in(store).restore_once(always=True)
        return replace(await self._hydrate(last=last), source=source)

    def _copy_in(self, store: SecondaryStore | None) -> ChatCopy:
        if store is not None:
            return ChatCopy(store, self._scope, self.name, writer=self._writer, locks=self._locks)
        if self._copy is None:
            raise InvalidInput("this chat has no second storage; give one, or take the handle of `kept_in`")
        return self._copy

    async def _keep(self) -> None:
        """Save a change that was made."""
        if self._copy is None:
            return
        try:
            await self._copy.save()
        except OrchestratorError as failed:
            # The change was made; raising would invite a repeat.
            _log.warning("chat_not_saved", error=str(failed), session=self.session)

    # ----------------------------------------------------------------------------------------------------- change

    async def append(
        self,
        messages: Sequence[Mapping[str, Any] | Message],
        *,
        op_id: str | None = None,
        turn: str | None = None,
    ) -> AppendedMessages:
        """Append messages; those whose ids the chat holds are not stored again.

        Args:
            messages: 1 to 500 JSON objects, or `Message` for those with an id, a length or a turn of their own.
            op_id: id of the call; repeated, the messages are appended once. Messages without an id get one from it, as
                `op_id.1`, so that this holds as long as they are stored; one of more than 252 bytes gives a digest.
            turn: turn that they belong to, any text of up to 256 bytes.

        Raises:
            InvalidInput: a message that cannot be stored; nothing was appended.
            ChatFull: the session has `chat.max_sources` chats.
            TenantFull: the chats of the tenant have reached `chat.tenant_max_bytes` or `chat.tenant_max_chats`.
            Fenced, Occupied: the attempt lost its task; another task holds the session alone. Nothing was appended.
            SubjectErased: the person that a message is about was erased less than 20 minutes ago; nothing was appended.
            StoreError: Redis did not do it; a repeat with the same `op_id` is made once.
        """
        rows = self._writer.make_rows(messages, turn, op_id)
        await self._writer.admit()
        reply = await self._writer.store(lambda change: scripts.append(change, rows=rows), rows, op_id)
        seq, added, dropped, *repeated = reply.rest
        known = dict(zip(repeated[::2], repeated[1::2], strict=True))
        if added + len(known) != len(rows):
            raise InvalidInput(f"op_id {op_id!r} names another append, which has been made; nothing was changed")
        new = iter(range(seq - added + 1, seq + 1))
        numbers = tuple([known[place] if place in known else next(new) for place in range(1, len(rows) + 1)])
        ids = tuple([decode_name(row.id) for row in rows])
        await self._keep()
        return AppendedMessages(ids, numbers, added, dropped, seq, reply.rev, reply.status == "duplicate")

    async def upsert(
        self, id_: str, message: Mapping[str, Any] | Message, *, version: int, op_id: str | None = None
    ) -> ChatChange:
        """Store a message unless the chat holds this version of it or a newer one. It keeps its place.

        Args:
            id_: id of the message; a new one is appended.
            message: the whole message.
            version: its version, a whole number from 1 on that its writers raise.
            op_id: id of the change; repeated within ten minutes, it is made once.

        Raises:
            InvalidInput, ChatFull, Fenced, Occupied, StoreError: as `append`.
        """
        row = self._writer.make_row(message, id_=id_, version=version)
        await self._writer.admit()
        reply = await self._writer.store(lambda change: scripts.put(change, row=row, mode="newer"), [row], op_id)
        await self._keep()
        return _message_change(reply)

    async def patch(
        self, id_: str, message: Mapping[str, Any] | Message, *, if_version: int, op_id: str | None = None
    ) -> ChatChange:
        """Replace a message that has a version. It keeps its place, and its version rises by 1.

        Args:
            id_: id of the message.
            message: the whole message.
            if_version: version that it must have.
            op_id: as in `upsert`.

        Raises:
            ChatConflict: it has another version, or is not there; nothing was changed.
            InvalidInput, ChatFull, Fenced, Occupied, StoreError: as `append`.
        """
        row = self._writer.make_row(message, id_=id_, version=if_version)
        reply = await self._writer.store(
            lambda change: scripts.put(change, row=row, mode="is"), [row], op_id, "change-chat"
        )
        if reply.status == "conflict":
            present = f"has version {reply.rest[0]}" if reply.rest[0] else "is not there"
            raise ChatConflict(self.session, f"message {id_!r} {present}, not version {if_version}")
        await self._keep()
        return _message_change(reply)

    async def set_meta(
        self, fields: Mapping[str, Any], *, newer_than: int | None = None, op_id: str | None = None
    ) -> ChatChange:
        """Write fields of the chat in one change, all or none. Other fields stay; None removes a field.

        Args:
            fields: JSON values of at most 16 KiB each; a chat has up to 100.
            newer_than: version that these fields become; they are not written unless it is higher than the stored one.
                By default each change raises the version by 1.
            op_id: as in `upsert`.

        Raises:
            ChatFull: too many fields, or chats in the session.
            TenantFull: as `append`; removals are made nevertheless.
            InvalidInput, Fenced, Occupied, StoreError: as `append`.
        """
        if not 1 <= len(fields) <= MAX_FIELDS:
            raise InvalidInput(f"{len(fields)} fields cannot be written at once; give 1 to {MAX_FIELDS}")
        depth = self._scope.settings.queue.max_depth
        rows = [
            (
                check_text("field", field),
                None
                if value is None
                else encode_json(f"field {field!r}", value, max_bytes=MAX_FIELD_BYTES, max_depth=depth),
            )
            for field, value in fields.items()
        ]
        version = 0 if newer_than is None else check_number("newer_than", newer_than, least=1, most=MAX_VERSION)
        if any(value is not None for value in fields.values()):
            await self._writer.admit()
        reply = await self._writer.change(
            lambda change: scripts.meta(change, fields=rows, version=version, most=MAX_FIELDS), op_id
        )
        applied, present = reply.rest
        await self._keep()
        return ChatChange(applied == 1, present, 0, reply.rev, reply.status == "duplicate")

    async def set_summary(self, text: str, *, upto: int, version: int, op_id: str | None = None) -> ChatChange:
        """Store the summary of the oldest messages unless the chat has this version or a newer one.

        It outlives the messages by `chat.summary_ttl_s`.

        Args:
            text: the summary.
            upto: number of the last message that it covers.
            version: its version, a whole number from 1 on that its writers raise.
            op_id: as in `upsert`.

        Raises:
            TenantFull: the chat is new, and the tenant has `chat.tenant_max_chats`.
            InvalidInput, ChatFull, Fenced, Occupied, StoreError: as `append`.
        """
        if not isinstance(text, str):
            raise InvalidInput(f"a summary is a text, not {type(text).__name__}")
        data = self._writer.encode("summary", text)
        check_number("upto", upto, most=2**40)
        check_number("version", version, least=1, most=MAX_VERSION)
        await self._writer.admit(growing=False)
        reply = await self._writer.change(
            lambda change: scripts.summarize(change, text=data, upto=upto, version=version), op_id
        )
        if reply.status == "beyond":
            raise InvalidInput(
                f"the last message of the chat is {reply.rest[0]}; a summary up to {upto} cannot be true"
            )
        applied, present = reply.rest
        await self._keep()
        return ChatChange(applied == 1, present, 0, reply.rev, reply.status == "duplicate")

    async def pop(self, expect: str | None = None) -> StoredMessage | None:
        """Remove the last message and return it; None if the chat is empty. Reads it first: two round trips.

        A damaged message, whose JSON cannot be read, goes with it.

        Args:
            expect: id that the last message must have. If this message is damaged, it alone is removed; its data is
                None.

        Raises:
            ChatConflict: another message is the last; nothing was changed.
            Fenced, Occupied, StoreError: as `append`.
        """
        while True:
            last = await queries.read_last(self._scope, self.name)
            erased = last is not None and last.version == 0
            if expect is not None and not erased and (last is None or last.id != expect):
                present = "nothing" if last is None else f"message {last.id!r}"
                raise ChatConflict(self.session, f"its end is {present}, not message {expect!r}")
            if last is None:
                return None
            number, revision = last.number, last.revision
            reply = await self._writer.change(
                lambda change, number=number, revision=revision: scripts.pop(  # type: ignore[misc]
                    change, number=number, revision=revision
                ),
                action="change-chat",
            )
            if reply.status != "changed" and not erased:
                await self._keep()
                if last.data is not None or expect is not None:
                    return last

    async def truncate(self, keep: int) -> int:
        """Remove the oldest messages until `keep` are left; return the number of removed ones.

        Up to 500 go at a time. A kept chat is saved first, so that its copy has them.

        Raises:
            InvalidInput: `keep` is not a whole number from 1 on; `clear` removes all.
            SecondaryStoreError: the chat could not be saved; nothing was removed.
            Fenced, Occupied, StoreError: as `append`; a repeat goes on.
        """
        check_number("keep", keep, least=1, most=_MOST)
        removed = 0
        if self._copy is not None:
            await self._copy.save()
        while True:
            reply = await self._writer.change(lambda change: scripts.truncate(change, keep=keep), action="change-chat")
            dropped, left = reply.rest
            removed += read_whole(dropped)
            if left <= keep or not dropped:
                return removed

    async def clear(self, *, op_id: str | None = None) -> None:
        """Remove messages, fields and summary. Numbers continue. The workspace of the session stays as it is.

        Raises:
            Fenced, Occupied, StoreError: as `append`.
        """
        await self._writer.change(scripts.clear, op_id, "clear-chat")
        await self._keep()

    async def note_extracted(self, by: str, *, upto: int, rev: int) -> int:
        """Note up to which message a skill has extracted the chat; `head().extracted` has the notes.

        The number never falls, except by a `pop`. It stays before messages that were appended under these numbers after
        the skill has read them. The note is no change of the chat: it extends no lifetime and raises no revision.

        Args:
            by: the skill, as `AGENT/SKILL`.
            upto: number of the last message.
            rev: highest revision of the messages that were read.

        Returns:
            The number that the chat has now; 0 if it has ended.

        Raises:
            InvalidInput, Fenced, Occupied, StoreError: as `append`.
        """
        check_text("by", by)
        check_number("upto", upto, most=2**40)
        check_number("rev", rev)
        scope, source = self._scope, self._writer.source
        reply = await self._writer.send(
            lambda caller: scripts.extracted(scope.keys, caller=caller, source=source, name=by, upto=upto, rev=rev),
            None,
        )
        return read_whole(reply.rest[0])

    # ------------------------------------------------------------------------------------------------------- read

    async def hydrate(
        self,
        *,
        last: int | None = None,
        turns: int | None = None,
        max_tokens: int | None = None,
        known: Hydration | Position | None = None,
        pair_safe: bool = True,
        cached: bool = False,
    ) -> Hydration:
        """Read the newest messages with fields and summary in one round trip.

        A read in the second half of the lifetime extends it, which is a second round trip.

        Args:
            last: maximum number of messages; by default 200, or as many as `turns` and `max_tokens` need.
            turns: maximum number of turns. The result begins with a turn; a turn begins with another `turn`, or with a
                message of the user where messages have none.
            max_tokens: maximum of all `tokens`; a message without counts a fourth of its characters. The newest
                messages that fit are returned, none if the last alone is too long.
            known: what the caller has. An unchanged chat sends `not_modified` and no messages. If messages were only
                added, the result has these alone: see `Hydration.after` and `Hydration.updated`.
            pair_safe: leave out outputs of tools whose call is left out, with all messages before them, and outputs
                whose call the chat does not hold. A call without an output stays, because it may still run. Calls are
                recognised in messages of OpenAI and Anthropic, and by `Message.calls` and `Message.answers`.
            cached: keep what was read in this process, up to 16 MiB of all chats, and read only what is new. The
                server is asked each time, so that the result is what the chat holds.

        Raises:
            InvalidInput, StoreError: an invalid number; no reply.
        """
        options: dict[str, Any] = {
            "turns": turns,
            "max_tokens": max_tokens,
            "known": known,
            "pair_safe": pair_safe,
            "cached": cached,
        }
        hydration = await self._hydrate(last=last, **options)
        if self._copy is None or not hydration.restorable:
            return hydration
        try:
            source = await self._copy.restore_once()
        except (SecondaryStoreError, SubjectErased, Occupied, LockBusy) as failed:
            if not hydration.rev:
                raise
            _log.warning("chat_not_restored", error=str(failed), session=self.session)
            return hydration
        return replace(await self._hydrate(last=last, **options), source=source)

    async def _hydrate(
        self,
        *,
        last: int | None = None,
        turns: int | None = None,
        max_tokens: int | None = None,
        known: Hydration | Position | None = None,
        pair_safe: bool = True,
        cached: bool = False,
    ) -> Hydration:
        """Read the newest messages; see `hydrate`."""
        for name, limit in (("last", last), ("turns", turns), ("max_tokens", max_tokens)):
            if limit is not None:
                check_number(name, limit, least=1, most=2**40 if name == "max_tokens" else _MOST)
        window = last or _LAST
        if known is not None:
            position = known.position if isinstance(known, Hydration) else known
            if not isinstance(position, Position):
                raise InvalidInput(f"known takes the result of an earlier hydrate, not a {type(known).__name__}")
            found = await queries.read_since(self._scope, self.name, position, window)
            if found.word == "same":
                await self._extend(found)
                return Hydration(rev=position.rev, seq=position.seq, after=position.seq, not_modified=True)
            if found.word == "tail":
                await self._extend(found)
                return make_hydration(found, parse_entries(found.entries), after=position.seq)
        else:
            found = await self._read(window, cached=cached)
        while True:
            messages = parse_entries(found.entries)
            whole = found.length <= len(found.entries)
            kept = found.length <= len(messages) and found.fields.get(b"base", b"0") == b"0"
            if kept and turns is None and max_tokens is None:
                # Nothing was ever left out.
                start = 0
                break
            start, full = select(messages, turns=turns, max_tokens=max_tokens, pair_safe=pair_safe, whole=whole)
            if full or whole or last is not None or (turns is None and max_tokens is None):
                break
            window *= 4
            found = await self._read(window, cached=cached)
        await self._extend(found)
        return make_hydration(found, _paired(messages[start:], needed=pair_safe and not kept))

    async def page(self, before: int, n: int = 50) -> tuple[StoredMessage, ...]:
        """Return the `n` messages before a number, oldest first.

        Args:
            before: number of the first known message, as `hydration.messages[0].number`.
            n: maximum number of messages, up to 10,000.

        Raises:
            InvalidInput, StoreError: an invalid number; no reply.
        """
        check_number("before", before)
        return await queries.read_page(self._scope, self.name, before, check_number("n", n, least=1, most=10_000))

    async def meta(self) -> Mapping[str, Any]:
        """Return the fields of the chat."""
        return (await self.head()).fields

    async def head(self) -> ChatHead:
        """Return the counts, times and fields of the chat."""
        return await queries.read_head(self._scope, self.name)

    async def sources(self) -> list[str]:
        """Return the sources of all chats of the session, sorted."""
        return await queries.read_sources(self._scope)

    async def _read(self, window: int, *, cached: bool) -> SinceReply:
        if cached and self._cache is not None:
            return await self._cache.read(self._scope, self.name, window)
        return await queries.read_all(self._scope, self.name, window)

    async def _extend(self, found: SinceReply) -> None:
        """Extend the lifetime of a chat that is read in its second half."""
        settings = self._scope.settings.chat
        ttl_ms, life_ms = round(settings.ttl_s * 1000), round(settings.life_s * 1000)
        if not 0 <= found.left_ms < ttl_ms / 2:
            return
        head = queries.parse_head(found.fields)
        if head.dies_ms < head.born_ms + life_ms:
            call = scripts.touch(self._scope.keys, source=self._writer.source, ttl_ms=ttl_ms, life_ms=life_ms)
            # The caller has what it asked for; the next read tries again.
            with suppress(StoreError):
                await self._scope.store.call(call)
                self._writer.note()


def make_hydration(found: SinceReply, messages: tuple[StoredMessage, ...], *, after: int = 0) -> Hydration:
    """Return what was read of a chat, with the number of messages that are known to be missing."""
    head, summary = queries.parse_head(found.fields), queries.parse_summary(found.summary)
    if found.length and not head.rev:
        # The counts were lost.
        newest = parse_entry(found.entries[-1]) if found.entries else None
        seq = newest.number if newest is not None else found.length
        base = max(0, seq - found.length)
        head = replace(head, base=base, trimmed=base, count=found.length)
    return Hydration(
        messages=messages,
        meta=head.fields,
        summary=summary,
        rev=head.rev,
        seq=head.seq,
        base=head.base,
        after=after,
        gap=queries.gap_of(head, found.length),
        restorable=queries.is_restorable(head, summary, found.length),
    )


def _paired(messages: tuple[StoredMessage, ...], *, needed: bool) -> tuple[StoredMessage, ...]:
    lonely = orphans(messages) if needed else ()
    return tuple([message for place, message in enumerate(messages) if place not in lonely]) if lonely else messages


def _message_change(reply: ChatReply) -> ChatChange:
    applied, version, number = reply.rest
    return ChatChange(applied == 1, version, number, reply.rev, reply.status == "duplicate")
