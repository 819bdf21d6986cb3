"""Copies a chat to a secondary store, and restores what Redis has lost from there."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import anyio

from orchestrator.chat import queries, scripts
from orchestrator.chat.model import decode_name, encode_name, format_names, split_entry
from orchestrator.chat.scripts import RestoredRow
from orchestrator.chat.writer import MAX_FIELDS, MAX_NUMBER, check_number
from orchestrator.core.errors import InvalidInput, OrchestratorError, SubjectErased
from orchestrator.core.log import get_logger
from orchestrator.core.payload import decode_json, encode_json
from orchestrator.core.reading import read_text, read_whole
from orchestrator.secondary.model import StoredItem
from orchestrator.subjects.places import noted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.chat.model import ChatHead, Summary
    from orchestrator.chat.writer import ChatWriter
    from orchestrator.locks.named import Locks
    from orchestrator.secondary.model import SecondaryStore
    from orchestrator.store.scoped import ScopedStore

_PAGE: Final = 500
_BATCH_BYTES: Final = 1024 * 1024
_TRIES: Final = 10
_LOCK_WAIT_S: Final = 10.0
_HEAD: Final = "head"
_NO_LIMITS: Final[dict[str, int]] = {"max_bytes": 2**30, "max_depth": 2**10}
"""What was stored once is stored again."""
_MEMBERS: Final = (b"version", b"tokens", b"ms", b"id", b"turn", b"subject", b"calls", b"answers")
_MESSAGE: Final = b',"message":'
_log = get_logger(__name__)

Source: TypeAlias = Literal["redis", "mixed", "secondary"]


class _Restored(NamedTuple):
    added: int
    done: bool
    base: int = 0
    present: int = 0


class _Window:
    """The newest messages of a copy that a chat may have room for, and the places of all.

    Attributes:
        items: messages, by number.
        places: id -> number.
        dropped: whether there are older messages.
    """

    __slots__ = ("_bytes", "_max_bytes", "_max_items", "dropped", "items", "places")

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items, self._max_bytes, self._bytes = max_items, max_bytes, 0
        self.items, self.places, self.dropped = deque[StoredItem](), dict[str, int](), False

    def add(self, item: StoredItem) -> None:
        """Add a message whose number is not lower than that of the last one."""
        if self.items and self.items[-1].number == item.number:
            # A number is used again after `pop`.
            if self.items[-1].version > item.version:
                return
            self._bytes -= len(self.items.pop().data)
        self.items.append(item)
        self.places[item.id] = item.number
        self._bytes += len(item.data)
        while len(self.items) > self._max_items or (self._bytes > self._max_bytes and len(self.items) > 1):
            self._bytes -= len(self.items.popleft().data)
            self.dropped = True


class ChatCopy:
    """The copy of one chat in a secondary store.

    Messages that a cap or `truncate` drops from Redis stay in the copy; `pop` and `clear` remove them there too.
    """

    __slots__ = ("_locks", "_resource", "_saving", "_scope", "_source", "_writer", "store")

    def __init__(
        self, store: SecondaryStore, scope: ScopedStore, source: str, *, writer: ChatWriter, locks: Locks
    ) -> None:
        self.store, self._scope, self._source, self._writer, self._locks = store, scope, source, writer, locks
        self._resource = f"chat:{writer.source}"
        self._saving: anyio.Lock | None = None

    # ------------------------------------------------------------------------------------------------------------- save

    async def save(self) -> int:
        """Save what has changed since the last save, and remove what was removed. Return the number of saved messages.

        Raises:
            SecondaryStoreError, StoreError: nothing is lost; the next save does it.
        """
        if self._saving is None:
            self._saving = anyio.Lock()
        # Calls of one process wait for each other: the second finds everything saved.
        async with self._saving:
            head = await queries.read_head(self._scope, self._source)
            if head.rev > head.saved == 0:
                # The chat began anew after its end or its loss. Older messages come first.
                await self._restore(self._writer.at_once())
                head = await queries.read_head(self._scope, self._source)
            # Another program may have lost it again.
            return await self._save_since(head) if head.rev > head.saved > 0 else 0

    async def _save_since(self, head: ChatHead) -> int:
        """Save the changes since `head.saved`. Removals wait for the next save while messages are lost or change."""
        if head.cleared > head.saved:
            await self._delete(None, head.cleared)
        only_added, newest, ids, before = head.edited <= head.saved, list[StoredItem](), set[str](), head.seq + 1
        while before > 1:
            call = scripts.page(self._scope.keys, source=self._writer.source, before=before, limit=_PAGE)
            entries = await self._scope.call(call)
            page = [item for entry in entries if (item := _item(entry, head.ahead)) is not None]
            newest += [item for item in page if item.version > head.saved]
            ids.update(item.id for item in page)
            first = entries[0].partition(b",")[0] if entries else b""
            if not first.isdigit() or (only_added and page and page[0].version <= head.saved):
                break
            before = read_whole(first)
        if newest and len(newest) == len(ids) and head.saved > 1 and not head.cleared:
            # None of the stored messages was saved before. Then the copy ends with the one before them.
            stored = self.store.load(self._root, self._resource, head.base + head.ahead - 1)
            if head.base and not [item.id async for item in stored]:
                _log.warning("chat_copy_incomplete", session=self._scope.keys.id)
        for batch in _batches(newest):
            await self.store.save(self._root, self._resource, batch)
        upto = head.rev
        if not only_added:
            state = await queries.read_all(self._scope, self._source, 1)
            after = queries.parse_head(state.fields)
            if after.cleared != head.cleared or state.length != after.count:
                # The next save finds that messages were edited since this one.
                upto = head.edited - 1
            else:
                # Of what the copy holds beside, a cap dropped what precedes the first message; the rest was removed.
                stored = self.store.load(self._root, self._resource, max(head.base, after.base) + head.ahead)
                gone = [item.id async for item in stored if item.id not in ids and item.version <= head.rev]
                if gone:
                    await self._delete(gone, head.rev)
        await self._save_head(head)
        await self._note_saved(upto)
        return len(newest)

    async def _note_saved(self, upto: int, ahead: int = 0) -> None:
        call = scripts.saved(self._scope.keys, source=self._writer.source, upto=upto, ahead=ahead)
        await self._scope.call(call)

    async def _delete(self, ids: Sequence[str] | None, upto: int) -> None:
        await self.store.delete(self._root, self._resource, ids, upto=upto)
        if ids is None:
            await self.store.delete(self._root, self._head_resource, None, upto=upto)

    async def _save_head(self, head: ChatHead) -> None:
        """Save fields and summary."""
        summary = await queries.read_summary(self._scope, self._source)
        fields: dict[str, Any] = {"version": head.version, "fields": dict(head.fields)}
        if summary is not None:
            fields["summary"] = {"text": summary.text, "upto": summary.upto, "version": summary.version}
        if summary is not None or head.fields or head.erased > head.saved:
            data = encode_json("head", fields, **_NO_LIMITS)
            await self.store.save(self._root, self._head_resource, [StoredItem(_HEAD, 0, head.rev, data)])

    # ---------------------------------------------------------------------------------------------------------- restore

    async def restore_once(self, *, always: bool = False) -> Source:
        """Restore the chat unless another program has just done it. Return where its messages come from.

        Raises:
            SecondaryStoreError, StoreError: the copy could not be read; Redis did not do it.
            LockBusy: another program restores the chat for more than 10 s.
        """
        # A source may be as long as the name of a lock may be.
        name = sha256(self._writer.source.encode()).hexdigest()[:32]
        async with self._locks.hold(f"restore:{name}", wait=_LOCK_WAIT_S):
            if not always:
                found = await queries.read_all(self._scope, self._source, 1)
                head, summary = queries.parse_head(found.fields), queries.parse_summary(found.summary)
                if not queries.is_restorable(head, summary, found.length):
                    return "redis"
            return await self.restore()

    async def restore(self) -> Source:
        """Merge the copy into the chat: add messages before its first one, and fields and summary if it has none.

        What the chat holds stays. Returns where its messages come from.
        """
        return await self._restore(self._writer)

    async def _restore(self, writer: ChatWriter) -> Source:
        state = await queries.read_all(self._scope, self._source, 1)
        head, summary = queries.parse_head(state.fields), queries.parse_summary(state.summary)
        removals = await queries.read_removals(self._scope, self._source)
        if cleared := max(head.cleared, removals.cleared):
            await self._delete(None, cleared)
        first = await queries.read_first(self._scope, self._source)
        chat = self._scope.settings.chat
        window, popped = _Window(chat.max_messages, chat.max_bytes), list[str]()
        async for item in self.store.load(self._root, self._resource):
            if item.number >= removals.number and item.version <= removals.rev:
                popped.append(item.id)
            elif first is None or first.id not in window.places or item.number <= window.places[first.id]:
                window.add(item)
        if popped:
            await self._delete(popped, removals.rev)
        kept_head = [item async for item in self.store.load(self._root, self._head_resource)]
        if not window.items and not kept_head and not head.rev and not state.length:
            return "redis"
        people = {item.subject for item in window.items if item.subject}
        gone = {subject for subject in people if not await self._note(subject)}
        window.items = deque(item for item in window.items if item.subject not in gone)
        added, present = await self._restore_messages(writer, window, head, state.length)
        for item in kept_head:
            await self._restore_head(writer, item, head, summary)
        if not added:
            return "redis"
        return "mixed" if present else "secondary"

    async def _restore_messages(
        self, writer: ChatWriter, stored: _Window, head: ChatHead, present: int
    ) -> tuple[int, int]:
        """Add messages of the copy to the chat; return their number, and that of the messages that it had."""
        base, size, added, ahead = head.base, head.bytes, 0, head.ahead
        places = stored.places
        for _ in range(_TRIES):
            least, shift = head.trimmed, 0
            if not head.saved:
                least, first = 0, await queries.read_first(self._scope, self._source)
                if stored.items and (first is None or first.id not in places):
                    # The chat began anew. Its messages follow the last one of the copy.
                    shift = max(0, stored.items[-1].number - base)
                elif first is not None and first.id in places:
                    ahead = max(0, places[first.id] - first.number)
            found = [
                replace(item, number=item.number - ahead)
                for item in stored.items
                if least < item.number - ahead <= base + shift
            ]
            caps = self._scope.settings.chat
            chosen = _newest(found, caps.max_messages - present, caps.max_bytes - (size if present else 0))
            # What precedes the copy, or has no room, is not missing.
            before = (chosen[0].number if chosen else base + shift + 1) - 1
            trimmed = before if stored.dropped or len(chosen) < len(found) or not head.saved else head.trimmed
            reply = await self._restore_batches(writer, chosen, base, shift, trimmed)
            if reply is None:
                # The copy counts ahead of the chat from now on.
                await self._note_saved(1, ahead=shift)
                return 0, present
            added += reply.added
            if reply.done:
                if ahead > head.ahead:
                    await self._note_saved(1, ahead=ahead)
                return added, present
            # Another program may have restored it meanwhile.
            head = await queries.read_head(self._scope, self._source)
            base, present, ahead = reply.base, reply.present, max(ahead, head.ahead)
        raise OrchestratorError(f"chat {self._source!r} changed {_TRIES} times while it was restored; try again")

    async def _restore_batches(
        self, writer: ChatWriter, chosen: list[StoredItem], base: int, shift: int, trimmed: int
    ) -> _Restored | None:
        """Add messages, the newest first; None if too many messages follow to be numbered anew."""
        batches, added = list(_batches(chosen[::-1])) or [[]], 0
        for batch in batches:
            rows = [row for item in reversed(batch) if (row := _row(item)) is not None]
            if damaged := len(batch) - len(rows):
                _log.warning("saved_messages_unreadable", count=damaged, session=self._scope.keys.id)
            call = partial(
                scripts.restore,
                rows=rows,
                base=base,
                shift=shift,
                trimmed=trimmed if batch is batches[-1] else -1,
            )
            reply = await writer.store(call, rows)
            if reply.status == "late":
                return None
            if reply.status == "changed":
                return _Restored(added, done=False, base=reply.rest[0], present=reply.rest[1])
            added, base, shift = added + reply.rest[0], reply.rest[1], 0
        return _Restored(added, done=True)

    async def _note(self, subject: str) -> bool:
        """Note the chat as a place of a person; return whether the person's messages may be restored."""
        try:
            async with noted(self._scope, self._writer.place, [subject], self._writer.keep_s):
                return True
        except SubjectErased:
            return False

    async def _restore_head(
        self, writer: ChatWriter, item: StoredItem, head: ChatHead, summary: Summary | None
    ) -> None:
        """Store fields and summary of the copy where the chat has none."""
        try:
            kept = _parse_head(item.data)
        except (InvalidInput, ValueError, KeyError, TypeError, AttributeError):
            _log.warning("saved_messages_unreadable", count=1, session=self._scope.keys.id)
            return
        if kept["fields"] and not head.version:
            rows = [(name, encode_json(name, value, **_NO_LIMITS)) for name, value in kept["fields"].items()]
            await writer.change(partial(scripts.meta, fields=rows, version=kept["version"], most=MAX_FIELDS))
        # A summary from before an erasure may retell erased messages.
        if (saved := kept.get("summary")) is not None and summary is None and item.version > head.erased:
            text = encode_json("summary", saved["text"], **_NO_LIMITS)
            await writer.change(partial(scripts.summarize, text=text, upto=saved["upto"], version=saved["version"]))

    @property
    def _head_resource(self) -> str:
        return f"{self._resource}:head"

    @property
    def _root(self) -> str:
        return self._scope.keys.root


async def erase_summary(store: SecondaryStore, scope: ScopedStore, source: str, *, rev: int) -> int:
    """Remove the summary from the copy of a chat; return the number of removed ones.

    Args:
        store: the second storage.
        scope: of the session.
        source: of the chat.
        rev: revision of the chat; 0 if Redis does not have it.
    """
    resource = f"chat:{encode_name('source', source)}:head"
    items = [item async for item in store.load(scope.keys.root, resource)]
    removed = 0
    for item in items:
        kept = decode_json(item.data)
        if kept.pop("summary", None) is not None:
            version = max(rev, item.version + 1)
            data = encode_json("head", kept, **_NO_LIMITS)
            # A save alone may leave the old text in a file.
            await store.delete(scope.keys.root, resource, [item.id], upto=item.version)
            await store.save(scope.keys.root, resource, [StoredItem(_HEAD, 0, version, data)])
            removed += 1
    return removed


async def erase_copy(store: SecondaryStore, scope: ScopedStore, source: str, *, rev: int) -> int:
    """Remove the copy of a chat up to a revision; return the number of removed messages."""
    resource = f"chat:{encode_name('source', source)}"
    removed = await store.delete(scope.keys.root, resource, None, upto=rev)
    await store.delete(scope.keys.root, f"{resource}:head", None, upto=rev)
    return removed


def _parse_head(data: bytes) -> dict[str, Any]:
    kept: dict[str, Any] = decode_json(data)
    summary = kept.get("summary") or {"text": "", "upto": 0, "version": 1}
    if not isinstance(kept["fields"], dict) or not isinstance(summary["text"], str):
        raise TypeError
    for number, least in ((kept["version"], 0), (summary["upto"], 0), (summary["version"], 1)):
        check_number("number", number, least=least)
    return kept


def _item(entry: bytes, ahead: int) -> StoredItem | None:
    """Convert an entry of the list: a JSON object whose last member is the message, byte by byte.

    Returns None for a damaged entry. `ahead` is by how much the copy counts ahead of the chat.
    """
    columns = split_entry(entry)
    if columns is None:
        return None
    number, revision, *values, text = columns
    members = b",".join([b'"%b":%b' % pair for pair in zip(_MEMBERS, values, strict=True)])
    about = "" if columns.subject == b"null" else decode_name(read_text(columns.subject[1:-1]))
    data = b"{" + members + _MESSAGE + text + b"}"
    return StoredItem(
        decode_name(read_text(columns.id[1:-1])), read_whole(number) + ahead, read_whole(revision), data, about
    )


def _row(item: StoredItem) -> RestoredRow | None:
    """Convert an item of the copy; None if it is damaged."""
    # The columns are encoded names and numbers, so that the first match is the member.
    columns, _, text = item.data.partition(_MESSAGE)
    try:
        values = decode_json(columns + b"}")
        decode_json(text[:-1])
        row = RestoredRow(
            item.number,
            item.version,
            int(values["ms"]),
            str(values["id"]),
            int(values["version"]),
            "null" if values["tokens"] is None else str(int(values["tokens"])),
            str(values["turn"] or "-"),
            str(values["subject"] or "-"),
            ",".join(format_names(values[links]) for links in ("calls", "answers")),
            text[:-1],
        )
    except (ValueError, KeyError, TypeError):
        return None
    whole = all(0 <= number <= MAX_NUMBER for number in (row.number, row.revision, row.ms, row.version))
    names = f'"{row.id}","{row.turn}","{row.subject}",{row.links}'
    entry = f"{row.number},{row.revision},{row.version},{row.tokens},{row.ms},{names},".encode() + row.text
    return row if whole and split_entry(entry) is not None else None


def _newest(items: Sequence[StoredItem], count: int, size: int) -> list[StoredItem]:
    """Return the newest items within a number and a size, in their order."""
    chosen = list[StoredItem]()
    for item in reversed(items):
        size -= len(item.data)
        if len(chosen) >= count or size < 0:
            break
        chosen.append(item)
    return chosen[::-1]


def _batches(items: Sequence[StoredItem]) -> Iterator[list[StoredItem]]:
    """Split items into lists of at most 500 and about 1 MiB."""
    batch, size = list[StoredItem](), 0
    for item in items:
        if batch and (len(batch) == _PAGE or size + len(item.data) > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += len(item.data)
    if batch:
        yield batch
