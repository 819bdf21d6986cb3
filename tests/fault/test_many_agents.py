"""kill -9 of a worker process with many agents: its peer, which was at rest, adopts the tasks of all in time."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator.client.client import Orchestrator
from orchestrator.core.ids import new_worker_id
from orchestrator.services import open_services, pool_keys
from orchestrator.tasks.inbox import find_filled
from orchestrator.testing.waiting import wait_for
from orchestrator.workers.runtime import inbox_reader
from orchestrator.workers.runtime.worker import Worker
from tests.fault.many_agents import COUNT, make_agents
from tests.helpers import subprocesses
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orchestrator.store.store import Store
    from tests.faultkit.servers import RedisServer
    from tests.helpers.attempt_log import AttemptLog

LEASE_S = 4.0
IN_TIME_S = LEASE_S * 1.3
"""A lease, and three tenths until the next check. A machine that stands still for a third of a lease adds a grace."""


class Searches:
    """Searches for filled inboxes; `blind` ones find none."""

    def __init__(self) -> None:
        self.count, self.blind = 0, False

    async def __call__(self, store: Store, keys: Sequence[str]) -> tuple[set[str], bool]:
        """Search as the worker does."""
        found = await find_filled(store, keys)
        self.count += 1
        return (set(), False) if self.blind else found


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Searches:
    """The searches of workers in this process."""
    made = Searches()
    monkeypatch.setattr(inbox_reader, "find_filled", made)
    return made


@pytest.mark.parametrize("sight", ["clear", "blind"])
async def test_a_peer_at_rest_adopts_for_all_agents(  # noqa: PLR0917 - fixtures
    redis_server: RedisServer,
    prefix: str,
    attempt_log: AttemptLog,
    gate: Path,
    searches: Searches,
    sight: str,
) -> None:
    """After kill -9 of host and worker the tasks of each agent are adopted; with blind searches none is, for long."""
    settings = make_settings(redis_server.url, prefix)
    keys = pool_keys(settings)
    agents = make_agents(attempt_log, lease_s=LEASE_S)
    with ExitStack() as stack:
        direct = stack.enter_context(redis_server.client())
        supervisor = stack.enter_context(subprocesses.supervisor(settings))
        host = stack.enter_context(
            subprocesses.host(
                settings, attempt_log, processes=1, lease_s=LEASE_S, agents="tests.fault.many_agents:agents"
            )
        )

        def registered() -> int:
            return sum(direct.hlen(keys.agent_workers(agent.name)) for agent in agents)

        await wait_for(lambda: registered() == COUNT, lambda: host.describe("its worker to register"), 20)
        ((victim, pid),) = subprocesses.workers_of(direct, keys, "a0").items()
        async with (
            Orchestrator(settings=settings) as orc,
            open_services(settings, name="worker") as services,
            anyio.create_task_group() as group,
        ):
            peer = Worker(services, agents, worker=new_worker_id())
            group.start_soon(peer.run)
            await wait_for(lambda: registered() == 2 * COUNT, "the peer to register", 20)
            # Two searches are more than a third of a lease apart: without entries that is no gap.
            await wait_for(lambda: searches.count >= 3, "the peer to be at rest", 20)
            searches.blind = sight == "blind"
            handles = [await orc.submit(agent.name, {"gate": str(gate)}) for agent in agents]
            await wait_for(lambda: len(attempt_log.notes("begun")) == COUNT, "all to run", 60)
            supervisor.close()  # it would recover them
            held = [note.task for note in attempt_log.notes("begun") if note.pid == pid]
            assert held, "both workers should have had some"
            killed_s = time.monotonic()
            host.kill()
            os.kill(pid, signal.SIGKILL)

            def pending_of_victim() -> int:
                summaries: list[Any] = [
                    direct.xpending_range(keys.inbox(agent.name), "workers", "-", "+", 9) for agent in agents
                ]
                return sum(one["consumer"] == victim.encode() for entries in summaries for one in entries)

            if searches.blind:
                before = searches.count
                await wait_for(
                    lambda: searches.count >= before + 5 and time.monotonic() - killed_s > IN_TIME_S, "searches", 60
                )
                assert pending_of_victim() == len(held)
                searches.blind = False
            else:
                # Both the peer's own slot and the adopted task of an agent may wait at the gate.
                await wait_for(lambda: pending_of_victim() == 0, "the peer to adopt", 60)
            await anyio.Path(gate).touch()
            attempts = {handle.id: await handle.result(timeout=60) for handle in handles}
            assert len(attempts) == COUNT
            assert min(attempts[task] for task in held) == 2
            peer.stop()
