"""Requeues a dead worker's tasks and counts one death each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from orchestrator.agents import scripts as registry
from orchestrator.locks import scripts as lock_scripts
from orchestrator.tasks import scripts
from orchestrator.tasks.death_log import log_dead
from orchestrator.tasks.records import TaskRecord, read_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.services import SyncStore
    from orchestrator.workers.agent import Agent

ABANDON_LIMIT: Final = 500


def abandon_entries(store: SyncStore, *, agents: Sequence[Agent], worker: str, how: str, dead_ttl_s: float) -> int:
    """Abandon the entries of a dead worker and deregister it. Blocks.

    A connection of it that is still open may take another entry, so call this again once that has closed.

    Args:
        store: of its pool.
        agents: the agents that it hosted.
        worker: its id.
        how: the way it died, stored with each task.
        dead_ttl_s: retention of a task that becomes a dead letter.

    Returns:
        The number of entries.

    Raises:
        StoreError: Redis did not answer; some entries may be left.
    """
    abandoned = 0
    for agent in agents:
        call = scripts.abandon(
            store.keys,
            worker=worker,
            agent=agent.name,
            limit=ABANDON_LIMIT,
            max_deaths={name: skill.options.max_deaths for name, skill in agent.skills.items()},
            reason=how,
            dead_ttl_s=round(dead_ttl_s),
        )
        done = store.call(call)
        abandoned += done.removed
        log_dead(agent.name, done.dead)
        free_locks(store, agent.name, done.died)
    # Without this the supervisor would go on assigning tasks to its slots.
    store.call(registry.deregister(store.keys, worker=worker))
    return abandoned


def free_locks(store: SyncStore, agent: str, died: Sequence[tuple[str, str]]) -> None:
    """Release the execution locks of dead attempts, so that no task waits until they lapse (protocol rule 12)."""
    keys = store.keys
    rows: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for task, generation in died:
        reply = store.execute(*read_command(keys, task, "env"))
        session = TaskRecord.from_reply(task, ("env",), reply).session
        for scope in [("agent", agent), *([] if session is None else [("session", session)])]:
            rows.setdefault(scope, []).append((task, generation))
    for (kind, id_), attempts in rows.items():
        scope_keys = keys.scope(kind, id_)
        held = [
            (lock, task, generation)
            for task, generation in attempts
            for lock in (scope_keys.execution(), scope_keys.execution(task))
        ]
        replies = store.call(lock_scripts.free(scope_keys, rows=held))
        for (lock, _, _), reply in zip(held, replies, strict=True):
            _wake(store, (kind, id_), lock, reply.wake)


def _wake(store: SyncStore, scope: tuple[str, str], lock: str, member: str) -> None:
    """Wake the first task that waits in the line of a lock; see `LockWaiter.wake`."""
    keys = store.keys.scope(*scope)
    while member:
        task, _, pool = member.partition(":")
        if store.call(scripts.wake(replace(store.keys, pool=pool), task)):
            return
        (dropped,) = store.call(lock_scripts.drop(keys, rows=[(lock, member)]))
        member = dropped.wake
