"""What is owed to a worker that died: its work goes back, and each task that it held has one death more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.agents import scripts as registry
from orchestrator.locks import scripts as lock_scripts
from orchestrator.tasks import scripts
from orchestrator.tasks.records import TaskRecord, read_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.services import SyncStore
    from orchestrator.workers.agent import Agent

ABANDON_LIMIT: Final = 500


def give_back(store: SyncStore, *, agents: Sequence[Agent], worker: str, how: str, dead_ttl_s: float) -> int:
    """Give back what a dead worker held, and take it out of the registry. Blocks.

    A connection of it that is still open may swallow another entry; so whoever is not sure calls this again.

    Args:
        store: of its pool.
        agents: those that it hosted.
        worker: its id.
        how: it died, kept as evidence with each task.
        dead_ttl_s: how long a task that has died too often is kept.

    Returns:
        How many entries there were.

    Raises:
        StoreError: Redis did not answer; some may be left.
    """
    given_back = 0
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
        count, died = store.call(call)
        given_back += count
        free_locks(store, agent.name, died)
    # Its slots are gone as well: nothing may be assigned for them.
    store.call(registry.deregister(store.keys, worker=worker))
    return given_back


def free_locks(store: SyncStore, agent: str, died: Sequence[tuple[str, str]]) -> None:
    """Release the execution locks of dead attempts, so that nobody waits until they lapse (protocol rule 12)."""
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
        store.call(lock_scripts.free(scope_keys, rows=held))
