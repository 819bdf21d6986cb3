"""Deletes a session for an operator, and records it with actor and reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from orchestrator.chat.chat import Chat
from orchestrator.chat.queries import find_sources
from orchestrator.client.action_records import CLOSE_WITHIN_S, record_session
from orchestrator.core.command_record import check_said
from orchestrator.core.ids import encode_foreign
from orchestrator.erasure.session_tasks import delete_session_tasks, session_task_states
from orchestrator.locks.model import scope_name
from orchestrator.store.scoped import bind_scope
from orchestrator.workspace.queries import read_size
from orchestrator.workspace.workspace import WorkspaceView

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.locks.model import LockInfo
    from orchestrator.locks.named import Lease, Locks
    from orchestrator.services import Services
    from orchestrator.tasks.model import TaskState


@dataclass(slots=True)
class SessionReport:
    """Outcome of `delete_session`.

    Attributes:
        open_tasks: tasks that have not ended, because of which nothing was deleted, with their states.
        locks: locks that another owner holds, because of which nothing was deleted.
        workspace: whether a workspace was deleted.
        chats: number of deleted chats.
        copies: number of them with a copy in a second storage, which stays until a program reads or changes the chat
            with it.
        tasks: number of deleted tasks.
        left: number of tasks that were submitted meanwhile and have not ended.
        unrecorded: why the action was not recorded; empty if it was.
    """

    open_tasks: Mapping[str, TaskState] = field(default_factory=dict)
    locks: Sequence[LockInfo] = ()
    workspace: bool = False
    chats: int = 0
    copies: int = 0
    tasks: int = 0
    left: int = 0
    unrecorded: str = ""

    def count_tasks(self, deleted: int) -> None:
        """Store the number of tasks that were deleted so far."""
        self.tasks = deleted

    @property
    def words(self) -> str:
        """The deleted parts, on one line."""
        counts = [(self.tasks, "task"), (int(self.workspace), "workspace"), (self.chats, "chat")]
        return ", ".join(f"{number} {what}{'s' * (number != 1)}" for number, what in counts if number) or "nothing"


async def delete_session(
    services: Services, locks: Locks, session: str, *, reason: str = "", actor: str | None = None
) -> SessionReport:
    """Delete a session: its workspace with the events, its chats, its tasks and their list.

    A repeat continues after a failure. Changes of other programs wait meanwhile. Counters of workspace and
    chats stay until they expire, so that versions and numbers go on.

    Args:
        services: of the pool that has the tasks.
        locks: of any scope.
        session: its id.
        reason: kept with the record.
        actor: user and host of this process by default.

    Returns:
        What was deleted; or nothing, because a task has not ended or another owner holds a lock of the session.

    Raises:
        Occupied: another owner holds the session alone; nothing was deleted.
        InvalidInput: actor or reason is too long, or that is no session; nothing was deleted.
        LockLost: the lock of the session was lost meanwhile; repeat the call.
        StoreError: Redis did not answer; what was deleted before is recorded. Repeat the call.
    """
    check_said(actor, reason)
    encode_foreign("session", session)
    states = await session_task_states(services.store, session)
    if open_tasks := {id_: state for id_, state in states.items() if state is not None and not state.final}:
        return SessionReport(open_tasks)
    report, locks = SessionReport(), locks.within(scope_name(services.keys.scope("session", session)))
    # What runs in other pools of the prefix holds a lock too.
    async with locks.hold_scope(wait=0) as lease:
        if held := [lock for lock in await locks.list() if lock.nonce != lease.token]:
            return SessionReport(locks=held)
        try:
            await _delete_state(services, locks, lease, session, report)
            retry_for_s = services.settings.redis.command_timeout_s
            done = await delete_session_tasks(
                services.store,
                session,
                payloads=services.payloads,
                retry_for_s=retry_for_s,
                on_deleted=report.count_tasks,
            )
            report.left = done.left
        finally:
            if report.workspace or report.chats or report.tasks:
                with anyio.move_on_after(CLOSE_WITHIN_S, shield=True):
                    report.unrecorded = await record_session(
                        services, "delete", session, detail=report.words, reason=reason, actor=actor
                    )
    return report


async def clear_chat(
    services: Services, locks: Locks, session: str, source: str, *, reason: str = "", actor: str | None = None
) -> str:
    """Remove messages, fields and summary of a chat, and return why it was not recorded; empty if it was.

    Raises:
        InvalidInput: actor or reason is too long; nothing was changed.
        Occupied: a task holds the session alone; nothing was changed.
        StoreError: Redis did not answer.
    """
    check_said(actor, reason)
    # Its scope records nothing by itself, because this record has the reason.
    scope = bind_scope(services.store, services.settings, "session", session)
    locks = locks.within(scope_name(scope.keys))
    await Chat(scope, locks=locks, source=source, accounts=services.chat_accounts).clear()
    await services.chat_accounts.flush()
    return await record_session(
        services, "clear-chat", session, detail=f"chat {source}"[:2000], reason=reason, actor=actor
    )


async def _delete_state(services: Services, locks: Locks, lease: Lease, session: str, report: SessionReport) -> None:
    scope = bind_scope(services.store, services.settings, "session", session)
    report.workspace = await read_size(scope) is not None
    if report.workspace:
        await WorkspaceView(scope, locks=locks).under(lease).clear(events=True)
    for source in await find_sources(scope):
        chat = Chat(scope, locks=locks, source=source, guard=lease, accounts=services.chat_accounts)
        if not (await chat.hydrate(last=1)).empty:
            report.copies += (await chat.head()).saved > 0
            await chat.clear()
            report.chats += 1
    if report.chats:
        # The client counts in the background only if it uses chats itself.
        await services.chat_accounts.flush()
