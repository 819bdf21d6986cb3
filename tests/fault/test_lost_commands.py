"""Redis loses commands that every process has confirmed: the processes that know them go on and write them back."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from orchestrator import Agent
from orchestrator.testing.waiting import wait_for
from orchestrator.why.model import Cause
from tests.faultkit.servers import RedisServer
from tests.helpers.local_team import TIMEOUT_S, local_settings, run_local_team
from tests.helpers.team import Team

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis

    from orchestrator.core.settings import Settings
    from orchestrator.store.keys import PoolKeys
    from tests.helpers.attempt_log import AttemptLog
    from tests.helpers.team import Member

SECRET: Final = "the-secret-of-this-pool"
LOSSES: Final[dict[str, Callable[[redis.Redis, PoolKeys], object]]] = {
    "last moment": lambda direct, _: direct.execute_command("DEBUG", "RELOAD", "NOSAVE"),  # type: ignore[no-untyped-call]
    "everything": lambda direct, _: direct.flushall(),
    "state": lambda direct, keys: direct.delete(keys.desired),
    "state and stream": lambda direct, keys: direct.delete(keys.desired, keys.desired_revisions, keys.control),
}


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server that keeps what `save` has written and loses the rest."""
    with RedisServer() as started:
        yield started


def settings_of(server: RedisServer, prefix: str, **changed: Any) -> Settings:
    """Settings with fast heartbeats."""
    return local_settings(server.url, prefix, worker__heartbeat_s=0.1, supervisor__sweep_s=0.2, **changed)


def make_agent(begun: list[str]) -> Agent:
    """An agent that notes every start."""
    agent = Agent("ed")

    @agent.skill
    async def work() -> None:
        begun.append("ed")

    return agent


@pytest.mark.parametrize("secret", ["", SECRET], ids=["open", "signed"])
@pytest.mark.parametrize("loss", LOSSES)
async def test_an_acknowledged_stop_outlives_its_loss(
    server: RedisServer, prefix: str, caplog: pytest.LogCaptureFixture, loss: str, secret: str
) -> None:
    """No task starts, the log has an error, and a start that is issued afterwards works."""
    begun: list[str] = []
    with server.client() as direct:
        async with run_local_team(settings_of(server, prefix, control__secret=secret or None)) as team:
            keys = team.services.keys
            worker = await team.work(make_agent(begun), worker__heartbeat_s=0.1, control__secret=secret or None)
            direct.save()
            stop = await team.orc.admin.stop(reason="enough")
            await wait_for(lambda: direct.hexists(keys.receipts(stop.id), worker.id), "the receipt")
            LOSSES[loss](direct, keys)
            waiting = await team.orc.submit("work")
            await wait_for(lambda: direct.hexists(keys.desired, "stop:all"), "the stop to be written back")
            await wait_for(lambda: direct.hexists(keys.agent_workers("ed"), worker.id), "the worker in the registry")
            assert "desired_state_lost" in caplog.text
            assert "desired_state_forged" not in caplog.text

            async def waits() -> bool:
                return (await waiting.status()).detail.cause is Cause.STOPPED

            await wait_for(waits, "the task to wait for the end of the stop")
            assert begun == []
            await team.orc.admin.start()
            await waiting.result(TIMEOUT_S)


@pytest.mark.parametrize("reader", [pytest.param("worker", marks=pytest.mark.roles(worker="pauser")), "supervisor"])
async def test_one_reader_suffices(server: RedisServer, prefix: str, reader: str) -> None:
    """Every kind of command comes back from a worker or a supervisor alone; what was ended or reset does not."""
    with server.client() as direct:
        async with run_local_team(settings_of(server, prefix), supervised=reader == "supervisor") as team:
            keys, admin = team.services.keys, team.orc.admin
            if reader == "worker":
                await team.work(make_agent([]), worker__heartbeat_s=0.1)
            await admin.stop(session="s 1")
            await admin.stop(skill="work", now=True, refuse=True)
            await admin.pause_agent("ed")
            await admin.drain_queue("skill:work")
            await admin.set_limit("model", "5/s")
            await admin.publish_config("key", "1")
            await admin.stop(agent="ed")
            last = await admin.start(agent="ed")

            def active() -> set[bytes]:
                return set(direct.hkeys(keys.desired)) - {b"seq", b"epoch"}

            before = active()
            await wait_for(lambda: knows(team, reader, direct, keys, last.id), "the reader to know the last command")
            direct.flushall()
            await wait_for(lambda: active() == before, "the commands to be written back")
            assert b"stop:agent:ed" not in before
            assert direct.hget(keys.desired, "sessions") == b"1"


def knows(team: Any, reader: str, direct: redis.Redis, keys: PoolKeys, command: str) -> bool:
    """Whether a reader has read the state with the last command."""
    sequence = int(direct.hget(keys.desired, "seq") or 0)
    if reader == "supervisor":
        return bool(direct.hexists(keys.receipts(command), "supervisor"))
    return all(slot.worker._commands.desired.seq == sequence for slot in team._slots)


@pytest.mark.roles(worker="pauser")
async def test_a_reader_that_was_cut_off_does_not_undo_a_start(
    server: RedisServer, prefix: str, attempt_log: AttemptLog
) -> None:
    """A wiped server gets the newest state: that of the worker that knows the start."""
    async with Team(server, prefix, attempt_log, heartbeat_s=0.1) as team, team.open_client() as orc:
        stale, fresh = await team.start_worker(), await team.start_worker()
        await orc.admin.stop()
        for member in (stale, fresh):
            await wait_for(partial(is_stopped, member), "the stop")
        stale.proxy.refuse()
        stale.proxy.cut()
        await orc.admin.start()
        await wait_for(lambda: not is_stopped(fresh), "the start")
        assert is_stopped(stale), "the worker was not cut off"
        team.direct.flushall()
        stale.proxy.heal()
        await wait_for(lambda: not is_stopped(stale), "the cut off worker to learn of the start")
        await wait_for(lambda: not team.direct.hexists(team.keys.desired, "stop:all"), "the end of the stop in Redis")
        await team.start_supervisor()
        assert await (await orc.submit("echo", {"n": 1})).result(TIMEOUT_S) == 1


def is_stopped(member: Member) -> bool:
    """Whether a worker obeys the stop of everything."""
    return "stop:all" in member.worker._commands.desired.active
