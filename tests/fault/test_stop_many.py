"""A stop reaches a host full of workers that are all busy, half of them in calls that block."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from orchestrator import Orchestrator
from orchestrator.services import pool_keys
from orchestrator.testing.waiting import wait_for
from tests.helpers import subprocesses
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faultkit.servers import RedisServer
    from tests.helpers.attempt_log import AttemptLog

AGENTS = "tests.fault.busy_agents:busy"
SKILLS = ("waits", "waits", "blocks", "sleeps")
WITHIN_S = 3.0


@pytest.mark.slow
@pytest.mark.blocks_loop  # it starts 50 processes and reads with a plain client
@pytest.mark.timeout(240)
@pytest.mark.parametrize("count", [50])
async def test_a_stop_reaches_everybody(
    redis_server: RedisServer, prefix: str, attempt_log: AttemptLog, gate: Path, count: int
) -> None:
    """All 50 busy workers answer within 3 s, blocked loops or not; one that starts later obeys; `start` ends it."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0, heartbeat_s=5.0, grace_s=1.0)
    keys = pool_keys(settings)
    with ExitStack() as stack:
        direct = stack.enter_context(redis_server.client())
        stack.enter_context(subprocesses.supervisor(settings))
        host = stack.enter_context(subprocesses.host(settings, attempt_log, processes=count, agents=AGENTS))
        async with Orchestrator(settings=settings) as orc:
            await wait_for(
                lambda: len(subprocesses.workers_of(direct, keys, "busy")) == count,
                lambda: host.describe("all workers"),
                90,
                poll_s=0.1,  # else the processes that start wait for those who ask
            )
            handles = [await orc.submit(SKILLS[n % 4], {"gate": str(gate)}) for n in range(count)]
            await wait_for(lambda: len(attempt_log.notes("begun")) == count, lambda: host.describe("all to run"), 30)

            asked_s = time.monotonic()
            sent = await orc.admin.stop(now=True, reason="drill", actor="ann")
            receipts = await sent.receipts(timeout=WITHIN_S)
            took_s = time.monotonic() - asked_s
            workers = subprocesses.workers_of(direct, keys, "busy")
            answered = {receipt.sender for receipt in receipts.answered}
            assert (receipts.missing, workers.keys() - answered) == ((), set()), host.describe("receipts")
            assert took_s < WITHIN_S
            print(f"{len(workers)} receipts after {took_s:.2f} s")  # noqa: T201

            # Half of them can be interrupted at once, and say that nothing is left.
            interrupted = sum(SKILLS[n % 4] == "waits" for n in range(count))
            await wait_for(lambda: direct.zcard(keys.queue("skill:waits")) == interrupted, "the interrupted to go back")
            late = stack.enter_context(subprocesses.host(settings, attempt_log, processes=1, agents=AGENTS))
            await wait_for(
                lambda: len(subprocesses.workers_of(direct, keys, "busy")) == count + 1,
                lambda: late.describe("a worker"),
                30,
                poll_s=0.1,
            )
            (newcomer,) = subprocesses.workers_of(direct, keys, "busy").keys() - workers.keys()
            await wait_for(
                lambda: b" done " in (direct.hget(keys.receipts(sent.id), newcomer) or b""), "its receipt", WITHIN_S
            )
            gate.touch()  # noqa: ASYNC240 - it takes no time
            begun = len(attempt_log.notes("begun"))
            assert begun == count
            started = await orc.admin.start(reason="over", actor="ann")
            ends = [await handle.result(timeout=30) for handle in handles]
            assert set(ends) == {1}, "a stop costs no attempt"
            assert (await started.receipts(timeout=WITHIN_S)).complete
            assert len(attempt_log.notes("begun")) > begun
