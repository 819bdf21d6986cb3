"""A Sentinel group that changes its master under load: killed, in good order, frozen and thawed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import anyio
import pytest
from anyio import to_thread

from orchestrator.core.errors import NotDurable, ServerUnavailable
from orchestrator.testing.waiting import wait_for
from tests.faultkit.sentinels import SentinelGroup
from tests.helpers.end_state import find_violations
from tests.helpers.team import Team

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    import redis

    from orchestrator.client.client import Orchestrator
    from orchestrator.embedded.server_binary import ServerBinary
    from orchestrator.store.keys import PoolKeys
    from tests.helpers.attempt_log import AttemptLog

BACK_S: Final = 30.0
"""For machines that do much else; docs/internals/adr/0065 has what was measured."""
LOST_S: Final = 1.0
WRITERS: Final = 4
FROZEN_S: Final = 3.0
SAFE: Final = {"min-replicas-to-write": "1", "min-replicas-max-lag": "2"}


class Place:
    """Stands where a team expects a server: the URL of the group, and a client of the master at first.

    Args:
        group: the servers.
        fixed: give the URL of the master at first, as programs without Sentinel have it.
    """

    def __init__(self, group: SentinelGroup, *, fixed: bool = False) -> None:
        self._group, self._first = group, group.master
        self.url = self._first.url if fixed else group.url

    def client(self) -> redis.Redis:
        """Return a client of the present master."""
        return self._group.master.client()


class DirectProxy:
    """Stands where a team expects a proxy."""

    def __init__(self, url: str) -> None:
        self.url = url


class SentinelTeam(Team):
    """A team without proxies, whose programs find the master themselves."""

    def __init__(self, place: Place, prefix: str, attempt_log: AttemptLog, *, timeout_s: float = 10.0) -> None:
        stand_in: Any = place
        super().__init__(stand_in, prefix, attempt_log, leader_lease_s=1.0, command_timeout_s=timeout_s)

    def _proxy(self) -> Any:
        return DirectProxy(self.server.url)


@pytest.fixture
def options() -> dict[str, str]:
    """Options of the servers; a test overrides it by a parameter."""
    return {}


@pytest.fixture
def group(binary: ServerBinary, options: dict[str, str]) -> Iterator[SentinelGroup]:
    """A master, two replicas and three sentinels."""
    with SentinelGroup(binary, options=options) as started:
        yield started


async def kill(group: SentinelGroup) -> None:
    """Kill the master for good."""
    group.master.kill()


async def order(group: SentinelGroup) -> None:
    """Promote a replica while the master is well."""
    await to_thread.run_sync(group.failover)


async def freeze(group: SentinelGroup) -> None:
    """Freeze the master until another one is there, and let it go on."""
    master = group.master
    master.process.freeze()
    await anyio.sleep(FROZEN_S)
    master.process.thaw()


FAULTS: Final = pytest.mark.parametrize("fault", [kill, order, freeze])


class Writers:
    """Submit tasks all the time, and note when each was confirmed."""

    def __init__(self, orc: Orchestrator, **options: Any) -> None:
        self._orc, self._options = orc, options
        self.confirmed: dict[str, float] = {}
        self.ended = False

    async def run(self) -> None:
        """Write until `ended` is set."""
        async with anyio.create_task_group() as tasks:
            for _ in range(WRITERS):
                tasks.start_soon(self._write)

    async def _write(self) -> None:
        while not self.ended:
            try:
                task = await self._orc.submit("echo", {"n": 1}, **self._options)
            except (NotDurable, ServerUnavailable):
                await anyio.sleep(0.02)
            else:
                self.confirmed[task.id] = time.monotonic()
            await anyio.sleep(0.005)

    def since(self, moment_s: float) -> int:
        """How many tasks were confirmed since a moment."""
        return sum(confirmed_s >= moment_s for confirmed_s in self.confirmed.values())

    def lost(self, direct: redis.Redis, keys: PoolKeys) -> dict[str, float]:
        """When the tasks were confirmed that the server does not know."""
        with direct.pipeline(transaction=False) as pipeline:
            for task in self.confirmed:
                pipeline.exists(keys.task(task))
            known = pipeline.execute()
        return {task: at_s for (task, at_s), exists in zip(self.confirmed.items(), known, strict=True) if not exists}


async def harm_under_load(
    group: SentinelGroup,
    team: SentinelTeam,
    fault: Callable[[SentinelGroup], Coroutine[Any, Any, None]],
    **options: Any,
) -> Writers:
    """Write, harm the master meanwhile, and go on until the new master has confirmed tasks for a while."""
    async with team.open_client() as orc:
        writers = Writers(orc, **options)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writers.run)
            await wait_for(lambda: len(writers.confirmed) > 100, "confirmed tasks", 20)
            old = group.master
            await fault(group)
            await to_thread.run_sync(lambda: group.wait_for_master(other_than=old))
            changed_s = time.monotonic()
            await wait_for(lambda: writers.since(changed_s) > 100, "tasks confirmed by the new master", BACK_S)
            writers.ended = True
        return writers


@FAULTS
async def test_programs_go_on(
    group: SentinelGroup,
    prefix: str,
    attempt_log: AttemptLog,
    fault: Callable[[SentinelGroup], Coroutine[Any, Any, None]],
) -> None:
    """A worker, a supervisor and a client go on by themselves; what is lost was confirmed within a second."""
    old = group.master
    async with SentinelTeam(Place(group), prefix, attempt_log) as team:
        await team.start_supervisor()
        await team.start_worker()
        writers = await harm_under_load(group, team, fault)
        with group.master.client() as direct:
            lost = writers.lost(direct, team.keys)
            assert not lost or max(lost.values()) - min(lost.values()) <= LOST_S, f"{len(lost)} lost"
            async with team.open_client() as orc:
                assert await (await orc.submit("echo", {"n": 2})).result(timeout=BACK_S) == 2
            states = [team.keys.task(task) for task in writers.confirmed.keys() - lost.keys()]
            await wait_for(lambda: all_succeeded(direct, states), "all tasks to succeed", BACK_S)
            await wait_for(lambda: find_violations(direct, team.keys) == [], "a pool without leftovers", BACK_S)
        if fault is not kill:
            with old.client() as left:
                await wait_for(lambda: not clients_of(left), "every connection to leave the old master", BACK_S)


@pytest.mark.parametrize("options", [SAFE], ids=["one-replica-must-have-it"])
@FAULTS
async def test_replicated_tasks_are_kept(
    group: SentinelGroup,
    prefix: str,
    attempt_log: AttemptLog,
    fault: Callable[[SentinelGroup], Coroutine[Any, Any, None]],
) -> None:
    """With `min-replicas-to-write 1` no confirmed task of durability `replicated` is lost."""
    async with SentinelTeam(Place(group), prefix, attempt_log) as team:
        writers = await harm_under_load(group, team, fault, durability="replicated")
        with group.master.client() as direct:
            assert writers.lost(direct, team.keys) == {}


@pytest.mark.parametrize("fault", [order, freeze])
async def test_the_old_master_loses_what_it_confirms(
    group: SentinelGroup,
    prefix: str,
    attempt_log: AttemptLog,
    fault: Callable[[SentinelGroup], Coroutine[Any, Any, None]],
) -> None:
    """The faults are felt: a program that keeps the address of the master loses what it confirms."""
    async with SentinelTeam(Place(group, fixed=True), prefix, attempt_log) as team:
        writers = await harm_under_load(group, team, fault)
        with group.master.client() as direct:
            assert len(writers.lost(direct, team.keys)) > 50


async def test_a_killed_master_is_missed(group: SentinelGroup, prefix: str, attempt_log: AttemptLog) -> None:
    """The kill is felt: a program that keeps the address of the master finds no server."""
    team = SentinelTeam(Place(group, fixed=True), prefix, attempt_log, timeout_s=0.5)
    async with team, team.open_client() as orc:
        await orc.submit("echo", {"n": 1})
        old = group.master
        await kill(group)
        await to_thread.run_sync(lambda: group.wait_for_master(other_than=old))
        with pytest.raises(ServerUnavailable):
            await orc.submit("echo", {"n": 2})


def all_succeeded(direct: redis.Redis, tasks: Sequence[str]) -> bool:
    """Whether the tasks with these keys have succeeded."""
    with direct.pipeline(transaction=False) as pipeline:
        for task in tasks:
            pipeline.hget(task, "state")
        return set(pipeline.execute()) <= {b"succeeded"}


def clients_of(client: redis.Redis) -> list[str]:
    """Names of the project's connections to a server."""
    names: list[str] = [one["name"] for one in client.client_list()]
    return [name for name in names if name and not name.startswith("sentinel-")]
