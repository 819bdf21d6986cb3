"""Handles for workspaces: `WorkspaceView` reads, `Workspace` also changes, under a lock that every change presents.

Handles own no connection. Every change is one script: one round trip, atomic, and made once however often it is sent.
"""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from orchestrator.core.durations import Duration, to_ms, to_seconds
from orchestrator.core.errors import InvalidInput, NotFound, StateConflict
from orchestrator.core.ids import check_name, check_text, encode_foreign
from orchestrator.core.reading import read_text
from orchestrator.locks.fenced_writer import WRITE_WAIT_S
from orchestrator.store.following import BEGINNING, END, follow_stream
from orchestrator.store.keys import CHANGES, DOCUMENT
from orchestrator.workspace import queries, scripts
from orchestrator.workspace.events import check_event_id, parse_event, read_events
from orchestrator.workspace.model import Appended, Applied, Counted
from orchestrator.workspace.paths import change_paths, check_path, increment
from orchestrator.workspace.replaying import replay
from orchestrator.workspace.scratch import Scratch
from orchestrator.workspace.writer import MAX_DIRECTIVE_BYTES, MAX_INBOX, WorkspaceWriter, check_rows

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping

    from orchestrator.locks.model import WriteGuard
    from orchestrator.locks.named import Locks
    from orchestrator.store.scoped import ScopedStore
    from orchestrator.workspace.model import (
        AgentEntry,
        Delete,
        Directive,
        Json,
        LogEntry,
        Patched,
        Replay,
        Snapshot,
        StateEntry,
        Versioned,
        WorkspaceEvent,
    )


class WorkspaceView:
    """Reads what a session shares; `edit` and `under` return a `Workspace` that changes it.

    Attributes:
        session: id of the session.
    """

    __slots__ = ("_enclosing", "_locks", "_scope", "session")

    def __init__(self, scope: ScopedStore, *, locks: Locks) -> None:
        self._scope, self._locks = scope, locks
        self._enclosing: WriteGuard | None = None
        self.session: str = scope.keys.id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.session!r})"

    # ------------------------------------------------------------------------------------------------------- read

    async def get(self, *paths: str) -> dict[str, Versioned]:
        """Return these paths of the document, or all paths. Missing paths are left out."""
        return await queries.read_paths(self._scope, DOCUMENT, paths)

    async def log(self, log: str, *, last: int = 100, after: int | None = None) -> list[LogEntry]:
        """Return entries of a log, oldest first.

        Args:
            log: name of the log.
            last: maximum number of entries, up to 10,000.
            after: return the entries that follow this number, except trimmed ones; by default the newest entries.

        Raises:
            InvalidInput: an invalid name or number.
        """
        if not 1 <= last <= 10_000 or (after is not None and after < 0):
            raise InvalidInput(f"last={last!r} must lie between 1 and 10000, after={after!r} not below 0")
        if after is None:
            return await queries.read_last(self._scope, log, last)
        return await queries.read_after(self._scope, log, after, last)

    async def members(self, set_: str) -> frozenset[str]:
        """Return the members of a set; empty if the set does not exist."""
        return await queries.read_members(self._scope, set_)

    async def states(self, *ids: str) -> dict[str, StateEntry]:
        """Return the state machines with these ids, or all of them. Missing ones are left out."""
        return await queries.read_states(self._scope, ids)

    async def agents(self) -> list[AgentEntry]:
        """Return the agents in the session: joined, with a lease that has not ended."""
        return await queries.read_agents(self._scope)

    async def snapshot(self) -> Snapshot:
        """Return everything that is shared at one moment, with the id of the last event."""
        return await queries.read_snapshot(self._scope)

    def events(self, after: str = END, *, block: Duration | None = None) -> AsyncGenerator[WorkspaceEvent]:
        """Yield events in order as they happen: `async for event in workspace.events():`.

        Waiting uses a connection of its own until the loop ends.

        Args:
            after: id of the last known event; `0-0` for all stored events, `$` for new events only.
            block: seconds or timedelta to wait for the next event before the loop ends; None waits forever.

        Raises:
            InvalidInput: `after` is not an event id, or `block` is not a duration.
        """
        block_s = None if block is None else to_seconds("block", block)
        return self._events(check_event_id(after), block_s)

    async def _events(self, after: str, block_s: float | None) -> AsyncGenerator[WorkspaceEvent]:
        scope = self._scope
        if block_s == 0:
            if after != END:
                async for event in read_events(scope, after=after):
                    yield event
            return
        key = scope.keys.key(CHANGES)
        entries = follow_stream(scope.store, key, after=after, idle_s=block_s, name="events")
        async with aclosing(entries):
            async for entry, fields in entries:
                yield parse_event(entry, fields)

    async def replay(self, *, until: str | None = None) -> Replay:
        """Rebuild the workspace from its events alone, and compare the result with the stored one.

        Args:
            until: id of the last event to apply. By default all events are applied, and only then is the result
                compared.

        Raises:
            InvalidInput: `until` is not an event id.
        """
        if until is not None and check_event_id(until) == END:
            raise InvalidInput("until= takes an event id; leave it out to replay all events")
        return await replay(self._scope, until=until)

    async def export(self) -> dict[str, Json]:
        """Return everything that is shared as one JSON value, with versions, authors and the agents in the session."""
        snapshot, agents = await self.snapshot(), await self.agents()
        return {
            "session": self.session,
            "revision": snapshot.revision,
            "event": snapshot.event,
            "paths": {path: asdict(value) for path, value in sorted(snapshot.paths.items())},
            "logs": {
                log: [asdict(entry) | {"at": entry.at.isoformat()} for entry in entries]
                for log, entries in sorted(snapshot.logs.items())
            },
            "sets": {name: sorted(members) for name, members in sorted(snapshot.sets.items())},
            "states": {id_: asdict(entry) for id_, entry in sorted(snapshot.states.items())},
            "agents": [asdict(entry) for entry in agents],
        }

    # ----------------------------------------------------------------------------------------------------- change

    def under(self, lock: WriteGuard, *, agent: str = "", wait: Duration = WRITE_WAIT_S) -> Workspace:
        """Return a workspace whose changes present a lock that the caller holds.

        Args:
            lock: a lease of this session, as `ctx.locks.hold(...)` returns; after its loss every change is refused.
            agent: agent in whose name the changes are made.
            wait: seconds or timedelta that a change waits while another owner holds the session alone.

        Raises:
            InvalidInput: `wait` is not a duration.
        """
        wait_s = to_seconds("wait", wait)
        return Workspace(
            self._scope, guard=lock, agent=agent, locks=self._locks, wait_s=wait_s, enclosing=self._enclosing
        )

    @asynccontextmanager
    async def edit(
        self,
        name: str = "",
        *,
        exclusive: bool = False,
        agent: str = "",
        ttl: Duration = 30.0,
        wait: Duration = WRITE_WAIT_S,
    ) -> AsyncIterator[Workspace]:
        """Change the workspace from outside a task: `async with orc.workspace("101").edit("dashboard") as ws:`.

        Editors of one name take turns: the next one waits, and Redis refuses the changes of one that froze and lost its
        turn. Editors of different names, and tasks, change the workspace at the same time; each change is atomic. With
        `exclusive` the editor takes the session, as a task with `lock="session"` does.

        Args:
            name: name of the editor, by default that of the agent.
            exclusive: make every other change of the session wait until the block ends.
            agent: agent in whose name the changes are made; by default none.
            ttl: seconds or timedelta until the lock lapses if this process dies.
            wait: seconds or timedelta to wait for the editor of the same name, and in each change for the end of
                another exclusive owner.

        Raises:
            LockBusy: another editor of this name has not ended in time.
            Occupied: another owner holds the session alone; in the block, every change may raise it.
            LockLost: the lock was not renewed in time; the block was cancelled.
            StoreError: Redis did not reply.
        """
        if exclusive:
            taken = self._locks.hold_scope(ttl=ttl, wait=wait)
        else:
            who = name or agent
            taken = self._locks.hold(f"edit:{who}" if who else "edit", ttl=ttl, wait=wait)
        async with taken as lease:
            yield self.under(lease, agent=agent, wait=wait)


class Workspace(WorkspaceView):
    """Reads and changes what a session shares.

    Every change waits while another owner holds the session alone, and then raises `Occupied`; `join`, `leave`,
    `direct` and `acknowledge` do not wait. It raises `Fenced` (`LockLost` for a named lock) when another owner has its
    lock, `WorkspaceFull` at a cap, and `StoreError` when Redis did not do it; nothing is changed then. `op_id` names a
    change: a call with the same id within `workspace.dedup_s` changes nothing and returns the first result, with
    `duplicate`.

    Attributes:
        session: id of the session.
        agent: agent that makes the changes, or empty if there is none.
    """

    __slots__ = ("_writer", "agent")

    def __init__(
        self,
        scope: ScopedStore,
        *,
        guard: WriteGuard,
        agent: str,
        locks: Locks,
        wait_s: float = WRITE_WAIT_S,
        enclosing: WriteGuard | None = None,
    ) -> None:
        super().__init__(scope, locks=locks)
        # What holds the session alone may also change it under another lock.
        self._enclosing = enclosing or guard
        self._writer = WorkspaceWriter(
            scope, guard, waiter=locks.waiter, enclosing=self._enclosing, agent=agent, wait_s=wait_s
        )
        self.agent: str = agent

    @property
    def scratch(self) -> Scratch:
        """The private paths of the agent.

        Raises:
            InvalidInput: the workspace was opened without an agent.
        """
        return Scratch(self._named("scratch"))

    def _named(self, what: str) -> WorkspaceWriter:
        if not self.agent:
            raise InvalidInput(f"{what} belongs to an agent; open the workspace with agent=")
        return self._writer

    # --------------------------------------------------------------------------------------------------- document

    async def set(
        self,
        path: str,
        value: Json,
        *,
        if_version: int | None = None,
        newer_than: int | None = None,
        op_id: str | None = None,
    ) -> Applied:
        """Write a path.

        Args:
            path: any printable text of up to 256 bytes, as `agents.ada.status`. Paths are flat: none contains another.
            value: any JSON value or pydantic model.
            if_version: write only if the path has this version; 0: only if it does not exist.
            newer_than: write this number as the version, only if the stored version is lower. The same number again
                returns `duplicate`.
            op_id: id of the change.

        Raises:
            VersionConflict: the path has another version.
            InvalidInput: an invalid path, not JSON, or too large.
        """
        expected = None if if_version is None else {path: if_version}
        return await change_paths(self._writer, {path: value}, if_versions=expected, newer_than=newer_than, op_id=op_id)

    async def patch(
        self,
        changes: Mapping[str, Json | Delete],
        *,
        if_versions: Mapping[str, int] | None = None,
        op_id: str | None = None,
    ) -> Patched:
        """Change many paths, all or none.

        Args:
            changes: at most 500 values by path; `DELETE` deletes a path, which need not exist.
            if_versions: versions that these paths must have; 0: the path must not exist.
            op_id: id of the change.

        Raises:
            VersionConflict: a path has another version.
            InvalidInput: as `set`.
        """
        return await change_paths(self._writer, changes, if_versions=if_versions, op_id=op_id)

    async def incr(self, path: str, by: int = 1, *, op_id: str | None = None) -> Counted:
        """Add `by` to the whole number at a path; a missing path counts as 0. The result's `value` is the sum.

        Raises:
            InvalidInput: the path holds another value, or the sum is not exact (beyond 2^53 - 1).
        """
        return await increment(self._writer, path, by, op_id)

    # ------------------------------------------------------------------------------------------------ logs and sets

    async def append(self, log: str, *items: Json, op_id: str | None = None, cap: int | None = None) -> Appended:
        """Append to a log. The first item creates it.

        Args:
            log: name of the log.
            items: JSON values or pydantic models, at most 500 and 4 MiB together.
            op_id: id of the change.
            cap: number of entries that the log keeps, at most and by default `workspace.max_log`; older ones are
                removed.

        Raises:
            InvalidInput: an invalid name, item or cap.
        """
        name = encode_foreign("log", log)
        texts = [self._writer.encode(f"item of log {log!r}", item) for item in items]
        check_rows("items", len(texts), sum(map(len, texts)))
        kept = self._cap(cap, len(texts))
        answer = await self._writer.change(
            lambda change: scripts.append(
                change,
                log=name,
                texts=texts,
                cap=kept,
            ),
            op_id,
        )
        last, dropped = answer.rest
        return Appended(last, answer.revision, answer.status == "duplicate", last - len(texts) + 1, dropped)

    def _cap(self, cap: int | None, items: int) -> int:
        most = self._writer.settings.max_log
        kept = most if cap is None else cap
        if not max(1, items) <= kept <= most:
            raise InvalidInput(
                f"cap must be from {max(1, items)} (the items given) to {most} (workspace.max_log), not {kept}"
            )
        return kept

    async def add(self, set_: str, *members: str, op_id: str | None = None) -> Counted:
        """Add members to a set; the result's `value` is the number of new members.

        Raises:
            InvalidInput: an invalid name or member (printable text of up to 256 bytes, at most 500).
        """
        return await self._change_set(set_, "add", members, op_id)

    async def remove(self, set_: str, *members: str, op_id: str | None = None) -> Counted:
        """Remove members from a set; the result's `value` is the number of members removed.

        Raises:
            InvalidInput: as `add`.
        """
        return await self._change_set(set_, "remove", members, op_id)

    async def _change_set(self, set_: str, mode: str, members: tuple[str, ...], op_id: str | None) -> Counted:
        name = encode_foreign("set", set_)
        changed = list(dict.fromkeys(check_text("member", member) for member in members))
        check_rows("members", len(changed))
        answer = await self._writer.change(
            lambda change: scripts.members(
                change,
                name=name,
                mode=mode,
                changed=changed,
            ),
            op_id,
        )
        version, count = answer.rest
        return Counted(version, answer.revision, answer.status == "duplicate", count)

    # ------------------------------------------------------------------------------------------------------- states

    async def transition(
        self,
        task_id: str,
        *,
        to: str,
        expect: str | Collection[str] | None = None,
        data: Json = None,
        op_id: str | None = None,
    ) -> Applied:
        """Move a state machine to another state.

        Args:
            task_id: id of the state machine, as a task of a plan; any printable text of up to 256 bytes.
            to: name of the new state.
            expect: allowed current states, or None for any; if empty, the machine must not exist.
            data: JSON value that is stored with the state.
            op_id: id of the change.

        Raises:
            StateConflict: it is in another state, which the error names.
            InvalidInput: an invalid name or value.
        """
        check_text("task_id", task_id)
        check_name("state", to)
        expected = None if expect is None else [expect] if isinstance(expect, str) else list(expect)
        text = self._writer.encode(f"data of {task_id!r}", data)
        answer = await self._writer.change(
            lambda change: scripts.transition(
                change,
                id_=task_id,
                to=to,
                text=text,
                expect=expected,
            ),
            op_id,
        )
        if answer.status == "state":
            raise StateConflict(task_id, read_text(answer.rest[0]) or None, " or ".join(expected or ()) or "nothing")
        return Applied(answer.rest[0], answer.revision, answer.status == "duplicate")

    # ------------------------------------------------------------------------------------------- private to shared

    async def publish(
        self, key: str, *, as_path: str | None = None, to_log: str | None = None, op_id: str | None = None
    ) -> Applied:
        """Move an entry of the agent's scratch into the document, or to the end of a log, in one step.

        Args:
            key: path of the scratch; it is deleted there.
            as_path: path of the document; by default `key`.
            to_log: name of a log, instead of a path.
            op_id: id of the change.

        Raises:
            NotFound: the scratch has no such path.
            InvalidInput: no agent, or both targets given.
        """
        owner = self._named("a scratch").agent
        if as_path is not None and to_log is not None:
            raise InvalidInput("give as_path or to_log, not both")
        check_text("key", key)
        if to_log is None:
            target, name = "path", check_path(self._writer, key if as_path is None else as_path)
        else:
            target, name = "log", encode_foreign("log", to_log)
        answer = await self._writer.change(
            lambda change: scripts.publish(
                change,
                owner=owner,
                entry=key,
                target=target,
                name=name,
                cap=self._writer.settings.max_log,
            ),
            op_id,
        )
        if answer.status == "missing":
            raise NotFound(
                f"the scratch of {owner} in session {self.session!r} holds no {key!r}; nothing was published"
            )
        return Applied(answer.rest[0], answer.revision, answer.status == "duplicate")

    # --------------------------------------------------------------------------------------- directory and directives

    async def join(self, info: Json = None, *, lease: Duration = 60.0) -> None:
        """Add the agent to the session's directory, or renew its lease there.

        Args:
            info: JSON value that the agent publishes about itself.
            lease: seconds or timedelta until the entry ends, unless the agent joins again.

        Raises:
            InvalidInput: no agent, or a lease of 0.
        """
        lease_ms = to_ms("lease", lease)
        if lease_ms == 0:
            raise InvalidInput("lease must be above 0; use leave() to leave the session")
        await self._enter(self._writer.encode("info", info), lease_ms)

    async def leave(self) -> None:
        """Remove the agent from the session's directory."""
        await self._enter(b"null", 0)

    async def _enter(self, text: bytes, lease_ms: int) -> None:
        member = self._named("an entry of the directory").agent
        await self._writer.change(
            lambda change: scripts.join(
                change,
                member=member,
                text=text,
                lease_ms=lease_ms,
            ),
            None,
            None,
        )

    async def direct(self, agent: str, kind: str, data: Json = None, *, op_id: str | None = None) -> str:
        """Send a directive with JSON data to an agent, as `STOP`; it stays in the inbox until acknowledged.

        Returns:
            The directive's id.

        Raises:
            InvalidInput: an invalid agent or kind, or not JSON.
        """
        check_name("agent", agent)
        check_name("kind", kind)
        text = self._writer.encode(f"directive {kind}", data)
        if len(text) > MAX_DIRECTIVE_BYTES:
            raise InvalidInput(
                f"directive {kind} has {len(text)} bytes of at most {MAX_DIRECTIVE_BYTES}; set a path and name it here"
            )
        answer = await self._writer.change(
            lambda change: scripts.direct(
                change,
                to=agent,
                word=kind,
                text=text,
                most=MAX_INBOX,
            ),
            op_id,
            "direct-agent",
        )
        entry: bytes = answer.rest[0]
        return read_text(entry)

    def directives(self, *, block: Duration | None = None) -> AsyncGenerator[Directive]:
        """Yield the unacknowledged directives of the agent, then new ones: `async for directive in ws.directives():`.

        Every later loop, in any worker, yields a directive again until it is passed to `acknowledge`.

        Args:
            block: seconds or timedelta to wait for the next one before the loop ends; None waits forever, 0 not at all.

        Raises:
            InvalidInput: no agent.
        """
        agent = self._named("directives").agent
        return self._directives(agent, None if block is None else to_seconds("block", block))

    async def _directives(self, agent: str, block_s: float | None) -> AsyncGenerator[Directive]:
        scope = self._scope
        if block_s == 0:
            for directive in await queries.read_directives(scope, agent, BEGINNING, MAX_INBOX):
                yield directive
            return
        key = scope.keys.key(scope.keys.directives_part(agent))
        entries = follow_stream(scope.store, key, after=BEGINNING, idle_s=block_s, name="directives")
        async with aclosing(entries):
            async for entry, fields in entries:
                yield queries.parse_directive(entry, fields)

    async def acknowledge(self, *directives: Directive) -> None:
        """Remove directives from the agent's inbox, after the agent has carried them out.

        Raises:
            InvalidInput: no agent, or no directive.
        """
        agent = self._named("directives").agent
        check_rows("directives", len(directives))
        await self._writer.change(
            lambda change: scripts.acknowledge(
                change,
                to=agent,
                entries=[directive.id for directive in directives],
            ),
            None,
            None,
        )

    # -------------------------------------------------------------------------------------------------------- clear

    async def clear(self, *, events: bool = False, op_id: str | None = None) -> int:
        """Empty the workspace, with scratches, directory and directives, and return the revision.

        Versions, revisions and ids of events continue to rise.

        Args:
            events: remove the stored events too, with the previous values in them; the event of this call remains. By
                default they stay until they are trimmed or expire.
            op_id: id of the change.
        """
        answer = await self._writer.change(
            lambda change: scripts.clear(change, events=events), op_id, "clear-workspace"
        )
        return answer.revision
