"""A supervisor is killed in the middle of a job of 2,000 tasks: another one ends it, every task once, and says so."""

from __future__ import annotations

import os
import signal
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Literal

import anyio
import pytest
from anyio import to_thread

from orchestrator.client.client import Orchestrator
from orchestrator.services import open_services, pool_keys
from orchestrator.store.script_files import all_scripts
from orchestrator.supervisor.daemon import supervise
from orchestrator.tasks.submission import Submission
from orchestrator.testing.waiting import wait_for
from tests.faultkit.commands import Command, script
from tests.faultkit.proxy import FaultProxy
from tests.helpers.forked_actors import ForkedActors
from tests.helpers.guards import keys_of
from tests.helpers.subprocesses import alive
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faultkit.servers import RedisServer

MANY = 2000
TIMINGS = {"leader_lease_s": 0.6, "sweep_s": 0.5, "heartbeat_s": 0.3}


Hit = tuple[str, int, Literal["request", "reply"]]
HITS: list[Hit] = [("tasks/retry", 3, "reply")]
LATE_HITS: list[Hit] = [
    ("tasks/retry", 2, "request"),
    ("control/finish_job", 1, "request"),
    ("control/finish_job", 1, "reply"),
]


@pytest.mark.parametrize("at", [*HITS, *[pytest.param(hit, marks=pytest.mark.slow) for hit in LATE_HITS]])
async def test_killed_in_the_middle(redis_server: RedisServer, prefix: str, tmp_path: Path, at: Hit) -> None:
    """Whichever call it dies at, before or after the server ran it, no task is requeued twice and none is left out."""
    call, turn, where = at
    settings = make_settings(redis_server.url, prefix, **TIMINGS)
    keys = pool_keys(settings)
    async with FaultProxy(redis_server.url) as proxy, Orchestrator(settings=settings) as orc:
        handles = await orc.submit_many([Submission("nobody", {"n": n}) for n in range(MANY)])
        ids = [handle.id for handle in handles]
        with redis_server.client() as direct, ForkedActors(tmp_path) as forked_actors:
            try:
                await orc.admin.cancel(ids)
                start = partial(forked_actors.start, "supervisor", "supervisor", url=proxy.url, prefix=prefix)
                pid = 0
                felt = anyio.Event()
                meant = script(all_scripts()[call].sha)

                async def hit(_: Command) -> None:
                    os.kill(pid, signal.SIGKILL)
                    felt.set()

                # The first job cancels them all; the second one, which retries them, is the one that is hit.
                settled = 1 if call == "control/finish_job" else 0
                proxy.watch(meant, hit, nth=turn + settled, where=where)
                if where == "request":
                    proxy.fail_command(meant, nth=turn + settled)
                pid = await to_thread.run_sync(partial(start, attempt_log=tmp_path / "notes", timings=TIMINGS))
                await wait_for(lambda: direct.zcard(keys.queue("skill:nobody")) == 0, "all to be cancelled", 10)
                sent = await orc.admin.retry(ids, reason="again")
                with anyio.fail_after(10):
                    await felt.wait()
                await wait_for(lambda: not alive(pid), "it to be dead")
                async with anyio.create_task_group() as group:

                    async def lead() -> None:
                        async with open_services(settings, name="supervisor") as services:
                            await supervise(services)

                    group.start_soon(lead)
                    receipts = await sent.receipts(timeout=15)
                    group.cancel_scope.cancel()
                (receipt,) = receipts.answered
                assert (receipt.word, receipt.detail) == ("done", f"{MANY} requeued")
                pipeline = direct.pipeline()
                for id_ in ids:
                    pipeline.hmget(keys.task(id_), "state", "requeue:1", "requeue:2")
                found = Counter((state, bool(once), twice) for state, once, twice in pipeline.execute())
                assert found == {(b"ready", True, None): MANY}
                assert direct.zcard(keys.queue("skill:nobody")) == MANY
                assert direct.hget(keys.stats("TOTAL"), "requeued") == b"%d" % MANY
                # The first tasks are kept for a day, for the page of the command.
                assert direct.llen(keys.selection(sent.id)) == 1000
                assert 0 < direct.ttl(keys.selection(sent.id)) <= 86_400
            finally:
                direct.unlink("-", *keys_of(direct, prefix))
