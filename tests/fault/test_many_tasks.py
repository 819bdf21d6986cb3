"""Many tasks over several worker processes, and many waiting calls over one connection."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio

from orchestrator.client import replies
from orchestrator.client.client import Orchestrator
from orchestrator.services import pool_keys
from orchestrator.tasks import queries
from orchestrator.tasks.submission import Submission
from orchestrator.testing.waiting import wait_for
from tests.helpers import subprocesses
from tests.helpers.connections import connection_names
from tests.helpers.end_state import ended_states, find_violations
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest

    from orchestrator.client.handle import TaskHandle
    from orchestrator.core.errors import StoreError
    from orchestrator.store.store import Store
    from orchestrator.tasks.queries import TaskOutcome
    from tests.faultkit.servers import RedisServer
    from tests.helpers.attempt_log import AttemptLog
    from tests.helpers.team import Team


async def test_a_thousand_tasks_over_four_processes_end_once_each(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog
) -> None:
    """Each runs once, in one of four processes that all had a share, and ends once."""
    settings = make_settings(redis_server.url, prefix)
    keys = pool_keys(settings)
    with redis_server.client() as direct, subprocesses.supervisor(settings):
        with subprocesses.host(settings, attempt_log, processes=4, slots=10):
            await wait_for(lambda: len(subprocesses.workers_of(direct, keys)) == 4, "four workers", 15)
            async with Orchestrator(settings=settings) as orc:
                handles = await orc.submit_many([Submission("echo", {"n": n}) for n in range(1000)])
                assert [await handle.result(timeout=20) for handle in handles] == list(range(1000))
            ids = [handle.id for handle in handles]
            assert attempt_log.runs() == dict.fromkeys(ids, 1)
            assert len({note.pid for note in attempt_log.notes()}) == 4
            assert ended_states(direct, keys) == {id_: ["succeeded"] for id_ in ids}
        assert find_violations(direct, keys) == []


async def test_two_thousand_waiting_calls_share_one_connection(
    make_team: Callable[..., Team], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All wait at once for results that are not there yet; the client reads them over one connection of its own."""
    looked: set[str] = set()

    async def outcomes(store: Store, ids: Sequence[str]) -> dict[str, TaskOutcome | StoreError]:
        found = await queries.outcomes(store, ids)
        looked.update(found)
        return found

    monkeypatch.setattr(replies, "queries", SimpleNamespace(outcomes=outcomes))
    async with make_team(slots=100) as team:
        await team.start_supervisor()
        async with team.open_client() as orc:
            handles = await orc.submit_many([Submission("echo", {"n": n}) for n in range(2000)])
            results: dict[str, int] = {}

            async def wait(handle: TaskHandle[Any]) -> None:
                results[handle.id] = await handle.result(timeout=20)

            async with anyio.create_task_group() as waiting:
                for handle in handles:
                    waiting.start_soon(wait, handle)
                await wait_for(lambda: team.client.commands("XREAD"), "the client to listen")
                assert results == {}
                names = [name for name in connection_names(team.direct) if name.startswith("client")]
                assert names == ["client", "client:replies"], "one for short commands, one for all results"
                await team.start_worker()
            assert results == {handle.id: n for n, handle in enumerate(handles)}
            assert team.client.open_connections == 2
            assert len(looked) < 1000, "results came by looking, not by replies"
