"""Records actions without a command: a task cancelled by its id, a lock taken from its holder, a chat cleared."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal

import anyio

from orchestrator.core.command_record import SAID_CHARS
from orchestrator.core.errors import CommandRefused, OrchestratorError
from orchestrator.core.log import get_logger
from orchestrator.subjects.places import digest_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.control.commands import RecordCommand
    from orchestrator.locks.model import LockInfo
    from orchestrator.services import Services
    from orchestrator.store.keys import ScopeKeys
    from orchestrator.store.scoped import StateAction

TaskAction = Literal["cancel", "retry", "delete", "reveal"]
SessionAction = Literal["delete", "clear-chat"]

CHUNK: Final = 200
"""Task ids in one record, which has about 8 KB then; the stream keeps about 5000 records, 40 MB."""
SCOPES: Final = 50
"""Scopes in one record; the longest have about 800 bytes each."""
EVERY_S: Final = 1.0
"""Shortest time between two records of `TaskHandle`, so that a program that cancels often leaves few."""
STATE_EVERY_S: Final = 10.0
"""The same for changes of state: a program may edit a workspace all day, and its records must not displace others."""
_BETWEEN: Final = "; "
_MORE: Final = " …"
CLOSE_WITHIN_S: Final = 1.0

_log = get_logger(__name__)


async def record_tasks(
    services: Services, action: TaskAction, ids: Sequence[str], *, reason: str, actor: str | None
) -> str:
    """Record tasks for which an action succeeded, and return why they were not recorded; empty if they were."""
    from orchestrator.control.commands import RecordTasks  # long to import, and most programs record nothing

    for first in range(0, len(ids), CHUNK):
        command = RecordTasks(action=action, tasks=tuple(ids[first : first + CHUNK]))
        if problem := await _record(services, command, reason, actor):
            return problem
    return ""


async def record_first(
    services: Services, action: TaskAction, ids: Sequence[str], *, reason: str, actor: str | None, id_: str
) -> None:
    """Record an action on up to `CHUNK` tasks before it is done, under an id that the caller chose.

    A repeat finds the record of its first try and returns, so that the action is done if the first try did not do it.

    Raises:
        CommandRefused: the id was used for something else, or Redis does not accept the record.
        StoreError: Redis did not answer.
    """
    from orchestrator.control.commands import RecordTasks
    from orchestrator.control.sending import send, this_actor

    command, retry_for_s = RecordTasks(action=action, tasks=tuple(ids)), services.settings.redis.command_timeout_s
    actor = actor or this_actor()
    try:
        await send(
            services.store, services.settings, command, actor=actor, reason=reason, retry_for_s=retry_for_s, id_=id_
        )
    except CommandRefused as refused:
        if refused.status != "replayed" or not await is_recorded(services, command, actor=actor, id_=id_):
            raise


async def is_recorded(services: Services, command: RecordCommand, *, actor: str, id_: str) -> bool:
    """Return whether an action has a record of this id, as long as its repeat is refused.

    Raises:
        StoreError: Redis did not answer.
    """
    from orchestrator.control.records import find_accepted
    from orchestrator.control.signing import signer_of

    store = services.store
    found = await find_accepted(store, signer_of(services.settings, place=store.keys.root), id_)
    return found is not None and found.issued is not None and (found.issued.actor, found.command) == (actor, command)


async def record_lock(services: Services, scope: str, lock: LockInfo, reason: str, actor: str | None) -> str:
    """Record that a lock was taken from its holder, and return why it was not recorded; empty if it was."""
    from orchestrator.control.commands import RecordLock

    command = RecordLock(lock=f"{scope} {lock.name}"[:1000], holder=lock.holder[:1000])
    return await _record(services, command, reason, actor)


async def record_session(
    services: Services, action: SessionAction, session: str, *, detail: str, reason: str, actor: str | None
) -> str:
    """Record an action on a session, and return why it was not recorded; empty if it was."""
    from orchestrator.control.commands import RecordSession

    return await _record(services, RecordSession(action=action, session=session, detail=detail), reason, actor)


async def record_changes(services: Services, action: StateAction, scopes: Sequence[str]) -> str:
    """Record scopes whose state a program changed, and return why they were not recorded; empty if they were."""
    from orchestrator.control.commands import RecordStateChange

    for first in range(0, len(scopes), SCOPES):
        command = RecordStateChange(action=action, scopes=tuple(scopes[first : first + SCOPES]))
        if problem := await _record(services, command, "", None):
            return problem
    return ""


async def _record(services: Services, command: RecordCommand, reason: str, actor: str | None) -> str:
    from orchestrator.control.sending import send

    retry_for_s = services.settings.redis.command_timeout_s
    try:
        # The reason is stored with the task too, where it may be longer.
        said = reason[:SAID_CHARS]
        await send(services.store, services.settings, command, actor=actor, reason=said, retry_for_s=retry_for_s)
    except OrchestratorError as failure:
        return str(failure)
    return ""


class _Group:
    """Tasks of one record, and the distinct reasons that fit into it, in their order."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self._reasons: dict[str, None] = {}
        self._chars = 0
        self._cut = False

    def add(self, id_: str, reason: str) -> None:
        """Add a task; keep its reason while there is room."""
        self.ids.append(id_)
        if not reason or reason in self._reasons:
            return
        if self._chars >= SAID_CHARS:
            self._cut = True
            return
        self._reasons[reason[:SAID_CHARS]] = None
        self._chars += len(reason) + len(_BETWEEN)

    @property
    def reason(self) -> str:
        """The reasons on one line; the tasks have all of them."""
        said = _BETWEEN.join(self._reasons)
        cut = self._cut or (len(self._reasons) > 1 and len(said) > SAID_CHARS)
        return f"{said[: SAID_CHARS - len(_MORE)]}{_MORE}" if cut else said[:SAID_CHARS]


class ActionRecorder:
    """Records what one client did: at once after a pause, then one record in a while for each action and actor."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._tasks: dict[tuple[TaskAction, str | None], _Group] = {}
        self._changed: dict[StateAction, dict[str, None]] = {}
        self._arrived, self._stored = anyio.Event(), anyio.Event()
        self._idle, self._state_due_s = False, -math.inf

    async def record_task(self, action: TaskAction, id_: str, *, reason: str, actor: str | None) -> None:
        """Record that an action on a task succeeded; see `record_all`."""
        await self.record_all(action, [id_], reason=reason, actor=actor)

    async def record_all(self, action: TaskAction, ids: Sequence[str], *, reason: str, actor: str | None) -> None:
        """Record that an action on tasks succeeded.

        Returns when Redis has the record, so that the end of the process loses none. If the client has made a record
        within the last second, it returns at once, and the next record has the tasks.
        """
        stored, waits = self._stored, self._idle
        group = self._tasks.setdefault((action, actor), _Group())
        for id_ in ids:
            group.add(id_, reason)
        self._arrived.set()
        if waits:
            with anyio.move_on_after(EVERY_S):
                await stored.wait()

    def note_change(self, action: StateAction, keys: ScopeKeys) -> None:
        """Record soon that the state of a scope was changed."""
        # The record must not have the id of a person, because an erasure leaves records.
        id_ = digest_of(keys.prefix, keys.id) if keys.kind == "user" else keys.id
        self._changed.setdefault(action, {})[f"{keys.kind}:{id_}"] = None
        self._arrived.set()

    async def run(self) -> None:
        """Record until cancelled; then record the rest, unless Redis takes too long."""
        try:
            while True:
                self._idle = not self._tasks
                await self._arrived.wait()
                self._idle, now_s = False, anyio.current_time()
                with_state = bool(self._changed) and now_s >= self._state_due_s
                if with_state:
                    self._state_due_s = now_s + STATE_EVERY_S
                await self._flush(with_state=with_state)
                await anyio.sleep(EVERY_S)
        finally:
            self._idle = False
            if self._tasks or self._changed:
                with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_WITHIN_S):
                    await self._flush(with_state=True)

    async def _flush(self, *, with_state: bool) -> None:
        stored, self._stored = self._stored, anyio.Event()
        for key in list(self._tasks):
            group, (action, actor) = self._tasks.pop(key), key
            try:
                problem = await record_tasks(self._services, action, group.ids, reason=group.reason, actor=actor)
            except anyio.get_cancelled_exc_class():
                # Redis may have the record already; twice is better than not at all.
                self._tasks[key] = group
                raise
            except Exception as failure:  # noqa: BLE001 - a lost record must not end the client
                problem = str(failure) or type(failure).__name__
            if problem:
                _log.warning("tasks_not_recorded", action=action, tasks=len(group.ids), error=problem)
        for change in list(self._changed) if with_state else ():
            await self._flush_changes(change, self._changed.pop(change))
        if not self._tasks and not self._changed:
            self._arrived = anyio.Event()
        stored.set()

    async def _flush_changes(self, action: StateAction, scopes: dict[str, None]) -> None:
        try:
            problem = await record_changes(self._services, action, list(scopes))
        except anyio.get_cancelled_exc_class():
            self._changed[action] = scopes | self._changed.get(action, {})
            raise
        except Exception as failure:  # noqa: BLE001 - as above
            problem = str(failure) or type(failure).__name__
        if problem:
            _log.warning("changes_not_recorded", action=action, scopes=len(scopes), error=problem)
