"""Workers are killed while they extract: the next attempt goes on, and no record is stored twice or missing."""

from __future__ import annotations

import os
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Literal

import pytest

from orchestrator import Extraction, Message, Provenance
from orchestrator.services import pool_keys
from orchestrator.testing.waiting import wait_for
from tests.fault.test_every_step import label_of
from tests.faultkit.proxy import FaultProxy
from tests.helpers import subprocesses
from tests.helpers.local_team import local_settings, run_local_team
from tests.helpers.subprocesses import alive, workers_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import redis

    from orchestrator import StoredRecord
    from orchestrator.client.client import Orchestrator
    from tests.faultkit.commands import Command
    from tests.faultkit.servers import RedisServer
    from tests.helpers.attempt_log import AttemptLog

AGENTS = "tests.fault.extracting_agents:scribe"
DRINKS = ["tea", "coffee", "water", "milk", "juice"]


class KilledAtCall:
    """A host whose worker is killed at a call that it makes, with the client of the test."""

    def __init__(self, orc: Orchestrator, proxy: FaultProxy, direct: redis.Redis) -> None:
        self.orc, self._proxy, self._direct = orc, proxy, direct
        self.killed: list[int] = []

    def kill_at(self, call: str, *, nth: int = 1, where: Literal["request", "reply"] = "request") -> None:
        """Kill the worker before the server gets a call, or before the worker gets the reply."""

        def meant(command: Command) -> bool:
            return label_of(command) == call

        async def hit(_: Command) -> None:
            (pid,) = workers_of(self._direct, pool_keys(self.orc.services.settings)).values()
            os.kill(pid, signal.SIGKILL)
            self.killed.append(pid)
            await wait_for(lambda: not alive(pid), "the worker to be dead", 5)

        self._proxy.watch(meant, hit, nth=nth, where=where)
        if where == "request":
            self._proxy.fail_command(meant, nth=nth)

    async def chat(self, session: str) -> None:
        """Append what two people prefer."""
        messages = [
            Message({"role": "user", "content": f"I prefer {drink}"}, subject=person)
            for drink in DRINKS
            for person in ("ann", "bob")
        ]
        await self.orc.chat(session).append(messages)

    async def extract(self, session: str) -> Extraction:
        """Extract a session; the worker dies once meanwhile."""
        handle = await self.orc.extract(session, agent="scribe")
        assert handle is not None
        result = await handle.result(timeout=20)
        assert len(self.killed) == 1
        assert len((await handle.info()).deaths) == 1
        return result

    async def records(self) -> list[StoredRecord]:
        """All records of the agent with the superseded ones, in the order of their messages."""
        memory = self.orc.memory("scribe")
        ids: Any = self._direct.hkeys(memory.scope.keys.key("im:hdr"))
        found = [record for record in await memory.get(*[id_.decode() for id_ in ids]) if record is not None]
        return sorted(found, key=lambda record: getattr(Provenance.of(record), "numbers", ()))


@pytest.fixture
async def host(redis_server: RedisServer, prefix: str, attempt_log: AttemptLog) -> AsyncIterator[KilledAtCall]:
    """A host behind a proxy; supervisor and client reach Redis directly."""
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(FaultProxy(redis_server.url))
        team = await stack.enter_async_context(run_local_team(local_settings(redis_server.url, prefix)))
        behind = local_settings(proxy.url, prefix)
        stack.enter_context(subprocesses.host(behind, attempt_log, processes=1, agents=AGENTS))
        yield KilledAtCall(team.orc, proxy, stack.enter_context(redis_server.client()))


async def check_once(host: KilledAtCall, done: Extraction) -> None:
    """Each message has one record, all but the last of a person are superseded, and the counts are those of all."""
    records = await host.records()
    origins = [Provenance.of(record) for record in records]
    assert [origin.numbers for origin in origins if origin is not None] == [(number,) for number in range(1, 11)]
    assert [(record.subject, record.content["value"]) for record in records] == [
        (person, drink) for drink in DRINKS for person in ("ann", "bob")
    ]
    latest = {record.subject: record.id for record in records[-2:]}
    for record in records[:-2]:
        assert record.superseded_by is not None
    assert [record.superseded_by for record in records[-2:]] == [None, None]
    assert {record.id for record in await host.orc.memory("scribe").of_action("drink")} == set(latest.values())
    assert (done.read, done.missed, done.records + done.repeated) == (10, 0, 10)
    assert (await host.orc.chat("s").head()).extracted == {"scribe/extract": 10}


async def test_a_worker_is_killed_between_two_stores(host: KilledAtCall) -> None:
    """Of two people one is stored when the worker dies: the next attempt stores the other one, and none twice."""
    await host.chat("s")
    host.kill_at("memory/store", nth=2)
    await check_once(host, await host.extract("s"))


async def test_a_handler_that_takes_no_care(host: KilledAtCall) -> None:
    """The twin: records without ids of their own are stored again by the next attempt, so that the death is felt."""
    await host.chat("s")
    host.kill_at("memory/store", nth=4)
    handle = await host.orc.submit("naive", session="s")
    assert await handle.result(timeout=20) == 10
    assert len(host.killed) == 1
    assert len(await host.orc.memory("scribe").of_kind("naive")) == 13


@pytest.mark.slow
@pytest.mark.parametrize("where", ["request", "reply"])
@pytest.mark.parametrize(
    ("call", "nth"),
    [("tasks/once", 1), ("memory/store", 1), ("memory/store", 3), ("memory/supersede", 1), ("memory/supersede", 3),
     ("tasks/once", 2), ("chat/extracted", 1), ("chat/extracted", 4), ("tasks/finish", 1)],
)  # fmt: skip
async def test_a_worker_is_killed_at_every_call(
    host: KilledAtCall, call: str, nth: int, where: Literal["request", "reply"]
) -> None:
    """The same for each kind of call that the task makes, before and after the server ran it."""
    await host.chat("s")
    host.kill_at(call, nth=nth, where=where)
    if (call, where) == ("tasks/finish", "reply"):
        handle = await host.orc.extract("s", agent="scribe")
        assert handle is not None
        await check_once(host, await handle.result(timeout=20))
        return
    await check_once(host, await host.extract("s"))
