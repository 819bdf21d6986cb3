"""Whoever fires schedules is killed or frozen at each of its calls, and the clock steps: each time fires once."""

from __future__ import annotations

import os
import signal
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import anyio
import pytest
from anyio import to_thread
from msgspec.structs import replace

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.wakeups import SCHEDULES, Wakeup
from orchestrator.schedules import scheduler
from orchestrator.schedules.api import Schedules
from orchestrator.schedules.plans import fire_row
from orchestrator.schedules.scheduler import Scheduler
from orchestrator.services import open_services
from orchestrator.testing import scripts as kit
from orchestrator.testing.waiting import wait_for
from orchestrator.why import lookup
from tests.fault.stepping_clock import SteppingClock
from tests.fault.test_every_step import label, label_of
from tests.faultkit.proxy import FaultProxy
from tests.faultkit.servers import RedisServer
from tests.helpers.forked_actors import ForkedActors
from tests.helpers.guards import keys_of
from tests.helpers.subprocesses import alive
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from orchestrator.services import Services
    from tests.faultkit.commands import Command

Where = Literal["request", "reply"]
WHERES: Final[tuple[Where, ...]] = ("request", "reply")
TIMINGS: Final = {"leader_lease_s": 0.9, "sweep_s": 0.3}
EVERY_S: Final = 600
TIMES: Final = 3
PLACES: Final[list[tuple[str, int, Where]]] = [
    (call, turn, where)
    for call, turn in [
        *[("schedules/due", 1), ("schedules/due", 2), ("tasks/cancel", 1), ("tasks/submit", 1), ("tasks/submit", 2)],
        ("schedules/skip", 1),
    ]
    for where in WHERES
]


@pytest.fixture(scope="module")
def forked_actors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedActors]:
    """Where supervisors are forked."""
    with ForkedActors(tmp_path_factory.mktemp("logs")) as running:
        yield running


@pytest.fixture(scope="module")
def tcp_server() -> Iterator[RedisServer]:
    """A Redis on a port, as for `test_every_step`."""
    with RedisServer(port=0) as server:
        yield server


@dataclass(slots=True)
class Fired:
    """What has come of the schedules of a pool."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    times: dict[str, list[int]] = field(default_factory=dict)
    states: dict[str, Counter[str]] = field(default_factory=dict)


async def look(services: Services) -> Fired:
    """Read counters, the fire times of all tasks in order, and their states, per schedule."""
    found = Fired()
    for each in await Schedules(lambda: services).list():
        words = ("fired", "skipped", "missed", "refused")
        found.counts[each.name] = Counter({word: count for word in words if (count := getattr(each, word))})
        found.times[each.name], found.states[each.name] = [], Counter()
    for key in await services.store.execute("KEYS", services.keys.task("*")):
        info = await lookup.info(services.store, key.decode().rpartition(":")[2])
        _, name, at_ms = (info.key or "").split(":")
        found.times[name].append(int(at_ms))
        found.states[name][info.state.value] += 1
    for times in found.times.values():
        times.sort()
    return found


async def fire_all(services: Services) -> None:
    """What a supervisor does when it wakes."""
    await Scheduler(services, Wakeup(), repair_requested=Wakeup()).fire_all()


async def prepare(services: Services) -> None:
    """Three schedules with a task that has not ended, each with `TIMES` more times that have passed."""
    for overlap in ("enqueue", "skip", "replace"):
        await Schedules(lambda: services).add(overlap, "nobody", every=EVERY_S, overlap=overlap, catch_up="all")
    for rounds in (1, TIMES):
        await services.store.execute(*kit.advance(services.keys, by_ms=rounds * EVERY_S * 1000 + 7))
        if rounds == 1:
            await fire_all(services)


@dataclass(slots=True)
class Step:
    """One story: at which turn of which call the supervisor is hit, before or after the server ran it."""

    call: str
    turn: int
    where: Where
    freeze: bool
    hit: bool = False
    faults: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """For files, namespaces and messages."""
        return f"{'freeze' if self.freeze else 'kill'}-{self.call.replace('/', '-')}-{self.turn}-{self.where}"


async def play(step: Step, server: RedisServer, forked_actors: ForkedActors, prefix: str, folder: Path) -> None:
    """A supervisor process is hit while it fires; another one fires; thawed, the first one goes on."""
    prefix = f"{prefix.rpartition(':')[0]}:{step.name}"
    settings = make_settings(server.url, prefix, **TIMINGS)
    felt, fired = anyio.Event(), anyio.Event()
    pid = 0

    async def hit(_: Command) -> None:
        step.hit = True
        os.kill(pid, signal.SIGSTOP if step.freeze else signal.SIGKILL)
        felt.set()
        if step.freeze and step.where == "request":
            await fired.wait()  # what it sent arrives when all is over

    def meant(command: Command) -> bool:
        return label_of(command) == step.call

    async with AsyncExitStack() as stack:
        direct = stack.enter_context(server.client())
        stack.callback(lambda: direct.unlink("-", *keys_of(direct, prefix)))
        services = await stack.enter_async_context(open_services(settings, name="test"))
        await prepare(services)
        proxy = await stack.enter_async_context(FaultProxy(server.url))
        proxy.watch(meant, hit, nth=step.turn, where=step.where)
        if step.where == "request" and not step.freeze:
            proxy.fail_command(meant, nth=step.turn)
        start = partial(forked_actors.start, "supervisor", step.name, url=proxy.url, prefix=prefix)
        pid = await to_thread.run_sync(partial(start, attempt_log=folder / "none", timings=TIMINGS))
        try:
            with anyio.fail_after(15):
                await felt.wait()
            await fire_all(services)
            fired.set()
            if step.freeze:
                os.kill(pid, signal.SIGCONT)
                before = looks(proxy)
                await wait_for(lambda: looks(proxy) > before + 1, "it to look again")
        finally:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        judge(step, await look(services))


def judge(step: Step, found: Fired) -> None:
    """Note what is not as it should be."""
    total = TIMES + 1
    all_of_them, one_of_them = Counter(fired=total), Counter(fired=1, skipped=TIMES)
    expected = {"enqueue": all_of_them, "skip": one_of_them, "replace": all_of_them}
    if found.counts != expected:
        step.faults.append(f"counted {found.counts}")
    for name, times in found.times.items():
        if len(times) != expected[name]["fired"]:
            step.faults.append(f"{name}: {len(times)} tasks, of {[from_instant_ms(ms) for ms in times]}")
    # One that replaces cancels all but the newest.
    if found.states["replace"] != Counter(cancelled=TIMES, ready=1):
        step.faults.append(f"replace: {found.states['replace']}")


def looks(proxy: FaultProxy) -> int:
    """How often the supervisor has asked what is due."""
    return sum(label(record) == "schedules/due" for record in proxy.commands("EVALSHA"))


@pytest.mark.parametrize("freeze", [False, True], ids=["killed", "frozen"])
async def test_the_supervisor_that_fires_is_hit(
    *, freeze: bool, tcp_server: RedisServer, forked_actors: ForkedActors, prefix: str, tmp_path: Path
) -> None:
    """Killed, or frozen until another has fired, before or after each call: each time leads to one task."""
    steps = [Step(call, turn, where, freeze) for call, turn, where in PLACES]
    async with anyio.create_task_group() as group:
        for step in steps:
            group.start_soon(play, step, tcp_server, forked_actors, prefix, tmp_path)
    wrong = [f"{step.name}: {fault}" for step in steps for fault in step.faults]
    assert not wrong, "\n".join(wrong)
    assert all(step.hit for step in steps), [step.name for step in steps if not step.hit]


async def test_without_the_guard_it_fires_twice(
    tcp_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: one that is held up before it submits, as a plain task, submits what another has submitted."""
    settings = make_settings(tcp_server.url, prefix, **TIMINGS)
    late, held = anyio.Event(), anyio.Event()
    plain = fire_row
    async with open_services(settings, name="one") as one, open_services(settings, name="two") as two:
        await Schedules(lambda: one).add("n", "nobody", every=EVERY_S)
        await one.store.execute(*kit.advance(one.keys, by_ms=EVERY_S * 1000 + 7))
        call = two.store.call

        async def slow(made: object, **options: object) -> object:
            if getattr(made, "script", "") == "tasks/submit":
                held.set()
                await late.wait()
            return await call(made, **options)  # type: ignore[arg-type]  # passed on as it came

        monkeypatch.setattr(two.store, "call", slow)
        for guarded in (True, False):
            if not guarded:
                monkeypatch.setattr(scheduler, "fire_row", lambda *args: replace(plain(*args), fire=None))
            late, held = anyio.Event(), anyio.Event()
            async with anyio.create_task_group() as group:
                group.start_soon(fire_all, two)
                await held.wait()
                monkeypatch.setattr(scheduler, "fire_row", plain)
                await fire_all(one)
                before = len((await look(one)).times["n"])
                late.set()
            after = len((await look(one)).times["n"])
            assert after - before == (0 if guarded else 1)
            await one.store.execute(*kit.advance(one.keys, by_ms=EVERY_S * 1000))


# ----------------------------------------------------------------------------------------------------------- the clock


async def supervise_schedules(services: Services) -> None:
    """A scheduler that looks again and again, as after sweeps."""
    wakeup = Wakeup()
    async with anyio.create_task_group() as group:
        group.start_soon(Scheduler(services, wakeup, repair_requested=Wakeup()).run)
        while True:
            wakeup.notify(SCHEDULES)
            await anyio.sleep(0.02)


@pytest.fixture
def clocked_server(tmp_path: Path) -> Iterator[tuple[SteppingClock, RedisServer]]:
    """A server whose clock the test steps."""
    clock = SteppingClock(tmp_path)
    with RedisServer(env=clock.env) as server:
        yield clock, server


@pytest.fixture
async def stepped(
    clocked_server: tuple[SteppingClock, RedisServer], prefix: str
) -> AsyncIterator[tuple[SteppingClock, Services, Services]]:
    """A clock that the test steps, and two processes' worth of services on the server that has it."""
    clock, server = clocked_server
    settings = make_settings(server.url, prefix, **TIMINGS)
    async with open_services(settings, name="one") as one, open_services(settings, name="two") as two:
        yield clock, one, two
        keys = await one.store.execute("KEYS", "*")
        await one.store.execute("UNLINK", "-", *keys)


HOUR_S: Final = 3600


async def test_the_clock_steps(stepped: tuple[SteppingClock, Services, Services]) -> None:
    """Forth and back by hours, two supervisors at work: each full hour fires once, and none is left out."""
    clock, one, two = stepped
    schedules = Schedules(lambda: one)
    await schedules.add("hourly", "nobody", cron="0 * * * *", zone="Europe/Berlin", catch_up="all")
    await schedules.add("interval", "nobody", every=HOUR_S, catch_up="all")
    await schedules.add("newest", "nobody", cron="0 * * * *")
    first = {each.name: each.next for each in await schedules.list()}
    ahead_s = highest_s = 0
    async with anyio.create_task_group() as group:
        group.start_soon(supervise_schedules, one)
        group.start_soon(supervise_schedules, two)
        for hours in (1, -1, 2, -1.5, -3, 4, 0.5, -0.25, 3, -9, 12):
            clock.step(hours * HOUR_S)
            ahead_s += round(hours * HOUR_S)
            highest_s = max(highest_s, ahead_s)

            async def idle() -> bool:
                now = (await one.store.execute("TIME"))[0]
                return all(each.next and each.next.timestamp() > int(now) for each in await schedules.list())

            await wait_for(idle, "all that is due to be fired")
            await anyio.sleep(0.05)  # whoever would fire something again does so now
        group.cancel_scope.cancel()
    found = await look(one)
    now_ms = int((await one.store.execute("TIME"))[0]) * 1000
    assert ahead_s == highest_s, "the last step is the furthest"
    for name in ("hourly", "interval"):
        start = first[name]
        assert start is not None
        begin_ms = round(start.timestamp() * 1000)
        assert found.times[name] == list(range(begin_ms, now_ms + 1, HOUR_S * 1000))
    assert len(found.times["hourly"]) >= 7
    assert sorted(set(found.times["newest"])) == found.times["newest"]
    counts = found.counts["newest"]
    assert counts["fired"] + counts["missed"] == len(found.times["hourly"])
