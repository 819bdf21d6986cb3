"""Removes all text about a person, place by place. A repeat goes on where a run was interrupted."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from orchestrator.chat import scripts as chat_scripts
from orchestrator.chat.copies import erase_copy, erase_summary
from orchestrator.chat.model import MAIN, encode_name
from orchestrator.chat.queries import read_head, read_sources, read_summary
from orchestrator.chat.writer import ChatWriter
from orchestrator.control.commands import RecordErasure
from orchestrator.control.sending import send
from orchestrator.core.errors import Occupied, OrchestratorError
from orchestrator.core.ids import encode_foreign
from orchestrator.core.reading import read_text, read_whole
from orchestrator.erasure.model import ErasureReport
from orchestrator.erasure.session_tasks import delete_session_tasks
from orchestrator.memory import scripts as memory_scripts
from orchestrator.memory.model import TIERS
from orchestrator.memory.upkeep import recover
from orchestrator.memory.vector_repair import clear_away
from orchestrator.memory.writer import MemoryWriter
from orchestrator.store.keys import CHANGES, DOCUMENT, MACHINES, META, OUTBOX, PARTS
from orchestrator.store.scoped import bind_scope
from orchestrator.subjects import scripts
from orchestrator.subjects.places import REFUSED_FOR_S, Place, digest_of, read_places, subject_keys
from orchestrator.workspace import scripts as workspace_scripts
from orchestrator.workspace.writer import WorkspaceWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.core.settings import Settings
    from orchestrator.locks.waiter import LockWaiter
    from orchestrator.payloads.payloads import Payloads
    from orchestrator.secondary.model import SecondaryStore
    from orchestrator.store.scoped import ScopedStore
    from orchestrator.store.store import Store

REFUSED_FOR_MS: Final = round(REFUSED_FOR_S * 1000)
_BATCH: Final = 100
"""Records in one call: each one is about ten writes, and the server runs nothing else meanwhile."""
_OF_WORKSPACE: Final = (META, PARTS, DOCUMENT, MACHINES, CHANGES)
_COUNTED: Final = ("records", "messages", "summaries", "sessions", "tasks", "stored")


class Eraser:
    """Erases one person.

    Attributes:
        report: what has been removed so far.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        waiter: LockWaiter,
        subject: str,
        stores: Sequence[SecondaryStore],
        *,
        payloads: Payloads | None = None,
    ) -> None:
        self._store, self._settings, self._waiter, self._payloads = store, settings, waiter, payloads
        self._subject, self._stores = subject, stores
        self._keys = subject_keys(settings.prefix, subject)
        self._retry_for_s = settings.redis.command_timeout_s
        self.report = ErasureReport(digest_of(settings.prefix, subject))

    async def run(self, *, asked_by: str, reason: str, actor: str | None) -> ErasureReport:
        """Erase, between two records of the action.

        Raises:
            CommandRefused, StoreError: the action could not be recorded; nothing was removed.
            SecondaryStoreError, StoreError: a call failed; a repeat goes on.
        """
        person = self.report.person
        begun = RecordErasure(stage="begun", person=person, asked_by=asked_by)
        await send(self._store, self._settings, begun, actor=actor, reason=reason, retry_for_s=self._retry_for_s)
        left = await self._erase_places()
        self.report.left = [f"{place.words}: {problem}" for place, problem in left.items()]
        counts = {name: getattr(self.report, name) for name in _COUNTED}
        ended = RecordErasure(stage="ended", person=person, asked_by=asked_by, left=len(left), **counts)
        try:
            sent = await send(
                self._store, self._settings, ended, actor=actor, reason=reason, retry_for_s=self._retry_for_s
            )
            self.report.command = sent.id
        except OrchestratorError as failure:
            self.report.unrecorded = str(failure)
        return self.report

    async def _erase_places(self) -> dict[Place, str]:
        """Erase place after place, until only those are left that cannot be erased."""
        left: dict[Place, str] = {}
        own = await self._own_memory()
        while True:
            await self._refuse()
            # Before the places, which may be loaded from them, and after the places, which may be saved to them.
            await self._erase_stores()
            found = await read_places(self._store, self._settings, self._subject, beside=len(left))
            places = [place for place in dict.fromkeys([*own, *found]) if place not in left]
            own = []
            if not places:
                return left
            for place in places:
                await self._refuse()
                problem = await self._erase_place(place)
                if problem:
                    left[place] = problem
                else:
                    await self._store.call(
                        scripts.leave(self._keys, places=[place.text]), retry_for_s=self._retry_for_s
                    )

    async def _own_memory(self) -> list[Place]:
        """Return the memory of the person as a user if there is one: its name needs no note, which may be lost."""
        scope = bind_scope(self._store, self._settings, "user", self._subject)
        parts = [scope.keys.tier_part(tier, part) for tier in TIERS for part in ("hdr", "rec")]
        there = await scope.read("EXISTS", *(scope.keys.key(part) for part in (*parts, OUTBOX)))
        return [Place("user", self._subject)] if there else []

    async def _refuse(self) -> None:
        call = scripts.refuse(self._keys, for_ms=REFUSED_FOR_MS)
        await self._store.call(call, retry_for_s=self._retry_for_s)

    async def _erase_stores(self) -> None:
        for store in self._stores:
            self.report.stored += await store.erase(self._subject)

    async def _erase_place(self, place: Place) -> str:
        """Erase one place; return why text is left there, or an empty text."""
        try:
            match place.kind:
                case "agent" | "user" | "domain" | "global":
                    await self._erase_records(place)
                case "chat":
                    await self._erase_messages(place)
                case "session":
                    await self._erase_session(place.id)
                case "tasks":
                    return await self._erase_tasks(place)
        except Occupied as busy:
            return str(busy)
        return ""

    async def _erase_records(self, place: Place) -> None:
        writer = MemoryWriter(bind_scope(self._store, self._settings, place.kind, place.id), waiter=self._waiter)
        subject, left = encode_foreign("subject", self._subject), 1
        self.report.records += await recover(writer, subject)
        while left:
            reply = await writer.change(
                lambda change: memory_scripts.erase(change, subject=subject, for_ms=REFUSED_FOR_MS, most=_BATCH), None
            )
            removed, left = reply.rest
            self.report.records += removed
        await clear_away(writer.scope)
        after = b"0-0"
        while after:
            call = partial(memory_scripts.erase_outbox, subject=subject, after=read_text(after), most=_BATCH)
            reply = await writer.change(call, None)
            removed, after = reply.rest
            self.report.records += removed

    async def _erase_session(self, session: str) -> None:
        scope = bind_scope(self._store, self._settings, "session", session)
        # Any of these keys may be lost while text is left in the others.
        if await scope.read("EXISTS", *(scope.keys.key(part) for part in _OF_WORKSPACE)):
            writer = WorkspaceWriter(scope, None, waiter=self._waiter, agent="")
            await writer.change(lambda change: workspace_scripts.clear(change, events=True), None)
        await self._clear_chats(scope)
        self.report.sessions += 1

    async def _erase_messages(self, place: Place) -> None:
        """Remove the messages of a chat that are about the person, and its summary."""
        scope = bind_scope(self._store, self._settings, "session", place.id)
        writer = ChatWriter(scope, None, source=place.part, waiter=self._waiter)
        subject, after, last, rev = encode_name("subject", self._subject), 0, 1, 0
        while after < last:
            call = partial(chat_scripts.erase, subject=subject, for_ms=REFUSED_FOR_MS, after=after)
            reply = await writer.change(call)
            after, last, erased, summaries = reply.rest
            rev = reply.rev
            self.report.messages += erased
            self.report.summaries += summaries
        for store in self._stores:
            self.report.stored += await erase_summary(store, scope, place.part, rev=rev)

    async def _clear_chats(self, scope: ScopedStore) -> None:
        """Empty the chats of a session, with the copies of those that are known and of the usual one."""
        sources = await read_sources(scope)
        main = [scope.keys.key(scope.keys.chat_part(MAIN, part)) for part in ("q", "meta", "sum")]
        if MAIN not in sources and await scope.read("EXISTS", *main):
            # The list of the chats was lost.
            sources.append(MAIN)
        for source in sources:
            head = await read_head(scope, source)
            summary = await read_summary(scope, source)
            await ChatWriter(scope, None, source=source, waiter=self._waiter).change(chat_scripts.clear)
            self.report.messages += head.count
            self.report.summaries += summary is not None
        # Revisions begin at the time in us, so that no copy has a higher one.
        seconds, micros = await scope.read("TIME")
        rev = read_whole(seconds) * 1_000_000 + read_whole(micros)
        for source in dict.fromkeys([*sources, MAIN]):
            for store in self._stores:
                head = await read_head(scope, source)
                self.report.stored += await erase_copy(store, scope, source, rev=max(rev, head.rev))

    async def _erase_tasks(self, place: Place) -> str:
        if place.part != self._store.keys.pool:
            return f"they belong to another pool; erase the person again with a client of pool {place.part}"
        done = await delete_session_tasks(self._store, place.id, payloads=self._payloads, retry_for_s=self._retry_for_s)
        self.report.tasks += done.deleted
        return f"{done.left} tasks have not ended; cancel them and repeat" if done.left else ""
