"""Entries that a broken read swallowed: the worker finds its own again, soon, and without a death."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from orchestrator.testing.waiting import wait_for
from tests.helpers.end_state import counters, find_violations

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faultkit.commands import Command
    from tests.faultkit.faults import Loss
    from tests.helpers.attempt_log import AttemptLog
    from tests.helpers.team import Team

LEASE_S = 4.0


def reads(agent: str) -> Callable[[Command], bool]:
    """Match the reads that cover the inbox of one agent."""
    suffix = f":inbox:{agent}".encode()
    return lambda command: command.name == "XREADGROUP" and any(one.endswith(suffix) for one in command.arguments)


@pytest.mark.parametrize(
    "how", ["cut", *[pytest.param(how, marks=pytest.mark.slow) for how in ("reset", "truncate", "swallow")]]
)
async def test_a_lost_read_comes_back_well_below_a_lease(
    how: Loss, make_team: Callable[..., Team], attempt_log: AttemptLog
) -> None:
    """The tasks whose delivery was lost run once each, as first attempts, long before their lease runs out."""
    async with make_team(lease_s=LEASE_S, command_timeout_s=0.2) as team:
        await team.start_supervisor()
        worker = await team.start_worker()
        async with team.open_client() as orc:
            fault = worker.proxy.fail_reply(reads("scribe"), nth="every", how=how)
            await wait_for(lambda: fault.fired, "the end of the read that was under way before")
            begun_s = time.monotonic()
            handles = [await orc.submit("echo", {"n": n}) for n in range(5)]
            # Every read is lost, so all that the worker runs has come back to it.
            assert [await handle.result(timeout=10) for handle in handles] == list(range(5))
            assert time.monotonic() - begun_s < LEASE_S / 2
            fault.stop()
        assert dict(attempt_log.runs()) == {handle.id: 1 for handle in handles}
        assert all(note.attempt == 1 for note in attempt_log.notes())
        assert counters(team.direct, team.keys)["adopted"] == 5, "something was not lost on the way"
        assert find_violations(team.direct, team.keys) == []


@pytest.mark.slow
async def test_what_a_ghost_of_its_reader_takes_is_found_without_a_lease(
    make_team: Callable[..., Team], attempt_log: AttemptLog
) -> None:
    """A reader that only Redis thinks alive takes an entry, long after; the idle worker finds it at its next look."""
    async with make_team(lease_s=LEASE_S) as team:
        await team.start_supervisor()
        worker = await team.start_worker()
        inbox, caught = team.keys.inbox("scribe"), list[Any]()

        def swallow_read() -> None:
            with team.server.client() as other_reader:
                caught.append(other_reader.xreadgroup("workers", worker.worker.id, {inbox: ">"}, count=1, block=10_000))

        async with team.open_client() as orc, anyio.create_task_group() as background:
            background.start_soon(anyio.to_thread.run_sync, swallow_read)
            # Whoever blocks first is served first: wait until the worker itself has begun a later read.
            looks = worker.proxy.watch(reads("scribe"), lambda _: None)
            await wait_for(lambda: looks.seen >= 2, "the worker to read behind the ghost")
            begun_s = time.monotonic()
            handle = await orc.submit("echo", {"n": 1})
            assert await handle.result(timeout=10) == 1
            assert time.monotonic() - begun_s < LEASE_S / 2
        assert caught[0], "the ghost took nothing"
        assert [(note.task, note.attempt) for note in attempt_log.notes()] == [(handle.id, 1)]
        assert find_violations(team.direct, team.keys) == []
