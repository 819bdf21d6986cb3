"""What is owed to a worker that died: its work goes back, and each task that it held has one death more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.agents import scripts as registry
from orchestrator.tasks import scripts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.services import SyncStore
    from workers.agent import Agent

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
        given_back += store.call(call)[0]
    # Its slots are gone as well: nothing may be assigned for them.
    store.call(registry.deregister(store.keys, worker=worker))
    return given_back
