"""An old program and this one share a pool, in every combination, while workers and supervisors are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
import pytest

from orchestrator import Orchestrator, UpgradeRefused, UpgradeUnfinished
from orchestrator.core.formats import FORMAT, OLDEST_FORMAT, RESTORING
from orchestrator.services import pool_keys
from orchestrator.testing.waiting import wait_for, wait_until
from orchestrator.views.budgets import show_budget
from tests.docs.following import check_output, steps_of, type_command
from tests.docs.pages import blocks
from tests.fault.upgraded_agents import PROVIDER
from tests.faultkit.processes import ActorProcess
from tests.helpers import subprocesses
from tests.helpers.end_state import RULES, find_violations, records
from tests.helpers.logging_agents import ATTEMPT_LOG_VARIABLE, LEASE_VARIABLE, SLOTS_VARIABLE
from tests.helpers.server_matrix import NEWEST, SENTINEL, Topology
from tests.helpers.spans import RecordedSpans
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from orchestrator.core.settings import Settings
    from tests.faultkit.servers import RedisServer
    from tests.helpers.attempt_log import AttemptLog

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ROOT: Final = Path(__file__).parents[2]
OLD_COMMIT: Final = "de2a0c258e28d3af990785abacd4e208275dd32e"
"""The last commit whose programs read the format of a pool at their start only."""
CONFIGURATION: Final = 78
MIXED: Final = replace(RULES, counts_bytes=False)
WAIT_S: Final = 30
PHASE_S: Final = 0.7


@pytest.fixture(scope="module")
def old_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the old version, from the history of this repository."""
    tree = tmp_path_factory.mktemp("old")
    archive = subprocess.run(["git", "archive", OLD_COMMIT], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode != 0:
        pytest.skip(f"the history lacks commit {OLD_COMMIT[:7]}: a shallow clone, or no repository")
    subprocess.run(["tar", "-x", "-C", tree], input=archive.stdout, check=True)
    return tree


@dataclass(frozen=True, slots=True)
class Version:
    """Starts programs of one version.

    Attributes:
        name: `old` or `new`.
        tree: its sources.
        environment: of its programs.
    """

    name: str
    tree: Path
    environment: dict[str, str]

    def program(self, *command: str, name: str) -> ActorProcess:
        """Describe a program."""
        return ActorProcess([sys.executable, "-P", *command], name=f"{self.name}-{name}", env=self.environment)

    def supervisor(self) -> ActorProcess:
        """Describe a supervisor."""
        return self.program("-m", "orchestrator", "supervisor", "run", name="supervisor")

    def host(self) -> ActorProcess:
        """Describe a host with two workers."""
        agents = "tests.helpers.logging_agents:agents"
        return self.program("-m", "orchestrator.workers", agents, "--processes", "2", name="host")


class Client:
    """A program that loads the pool until `stop`."""

    def __init__(self, version: Version) -> None:
        script = Path(__file__).with_name("mixed_load.py")
        self.name = f"{version.name}-client"
        self._process = subprocess.Popen(
            [sys.executable, "-P", script],
            env={**os.environ, **version.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def stop(self) -> dict[str, Any]:
        """Let it wait for all its tasks, and return what it found."""
        out, _ = self._process.communicate("stop\n", timeout=90)
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    def kill(self) -> None:
        """Kill it, if it runs."""
        self._process.kill()
        self._process.communicate()


class MixedPool:
    """The programs of both versions in one pool."""

    def __init__(self, stack: ExitStack, old: Version, new: Version, direct: redis.Redis, settings: Settings) -> None:
        self.old, self.new = old, new
        self.keys = pool_keys(settings)
        self._stack, self._direct, self.settings = stack, direct, settings
        self.leaders: set[str] = set()
        self.workers: dict[str, set[int]] = {}
        self.killed = 0

    def start(self, program: ActorProcess) -> ActorProcess:
        """Start a program, which ends with the test."""
        return self._stack.enter_context(program)

    def client(self, version: Version) -> Client:
        """Start a client."""
        client = Client(version)
        self._stack.callback(client.kill)
        return client

    async def led_by(self, supervisor: ActorProcess) -> None:
        """Wait until this supervisor leads."""

        def leads() -> bool:
            leader: Any = self._direct.get(self.keys.leader)
            return leader is not None and leader.decode().split(":")[1] == str(supervisor.pid)

        await wait_for(leads, lambda: supervisor.describe("to lead"), WAIT_S)
        self.leaders.add(supervisor.name)

    async def served_by(self, host: ActorProcess) -> list[int]:
        """Wait until both workers of a host are registered, and return their process ids."""

        def pids() -> list[int]:
            children = Path(f"/proc/{host.pid}/task/{host.pid}/children").read_text().split()
            known = subprocesses.workers_of(self._direct, self.keys).values()
            return [pid for pid in map(int, children) if pid in known]

        await wait_for(lambda: len(pids()) == 2, lambda: host.describe("two workers"), WAIT_S)
        self.workers.setdefault(host.name, set()).update(pids())
        return pids()

    async def kill_a_worker(self, host: ActorProcess) -> None:
        """Kill one worker, and wait until it is replaced."""
        first, _ = await self.served_by(host)
        os.kill(first, 9)
        self.killed += 1
        await wait_for(lambda: not subprocesses.alive(first), "the end of the worker")
        await self.served_by(host)

    def check_end(self, submitted: set[str]) -> None:
        """Check that the pool holds what was submitted, and is as it should be. Blocks."""
        assert submitted <= set(records(self._direct, self.keys))
        # The registration of a killed worker ends after four heartbeats.
        wait_until(
            lambda: not find_violations(self._direct, self.keys, MIXED),
            lambda: str(find_violations(self._direct, self.keys, MIXED)),
            10,
        )

    def any_key(self, kind: str) -> bool:
        """Whether the pool has a key of this kind."""
        found: Any = self._direct.keys(f"{self.keys.root}:{kind}*")
        return bool(found)

    def kill(self, *programs: ActorProcess) -> None:
        """Kill programs."""
        for program in programs:
            program.kill()
            self.killed += 1


@pytest.fixture
def pool(
    old_tree: Path,
    redis_server: RedisServer | Topology,
    redis_client: redis.Redis,
    prefix: str,
    attempt_log: AttemptLog,
) -> Iterator[MixedPool]:
    """An empty pool of the old format."""
    settings = make_settings(redis_server.url, prefix, leader_lease_s=1.0, sweep_s=0.5, heartbeat_s=0.3)
    common = subprocesses.environment(settings) | {
        ATTEMPT_LOG_VARIABLE: str(attempt_log.path),
        LEASE_VARIABLE: "3",
        SLOTS_VARIABLE: "10",
    }
    # Old programs know no groups of servers.
    first = redis_server.servers[0] if isinstance(redis_server, Topology) else redis_server
    plain = {"ORC_REDIS__URL": first.url}
    old = Version("old", old_tree, common | plain | {"PYTHONPATH": str(old_tree)})
    new = Version("new", ROOT, common | {"PYTHONPATH": str(ROOT)})
    redis_client.set(pool_keys(settings).format, OLDEST_FORMAT)
    with ExitStack() as stack:
        yield MixedPool(stack, old, new, redis_client, settings)


@pytest.mark.parametrize("redis_server", [NEWEST, SENTINEL], indirect=True)
@pytest.mark.parametrize("first", ["old", "new"])
async def test_versions_share_a_pool_under_load(pool: MixedPool, first: str, attempt_log: AttemptLog) -> None:
    """Each version leads, serves, is killed and comes back beside the other one; each task ends once, as expected."""
    one, other = (pool.old, pool.new) if first == "old" else (pool.new, pool.old)
    supervisor, host = pool.start(one.supervisor()), pool.start(one.host())
    await pool.led_by(supervisor)
    await pool.served_by(host)
    clients = [pool.client(pool.old), pool.client(pool.new)]
    await wait_for(lambda: len(attempt_log.notes("begun")) > 200, "work", WAIT_S)
    # The other version joins: its workers under the first supervisor.
    second_host = pool.start(other.host())
    await pool.served_by(second_host)
    await pool.kill_a_worker(host)
    await pool.kill_a_worker(second_host)
    await anyio.sleep(PHASE_S)
    # Its supervisor takes over from a killed one.
    second = pool.start(other.supervisor())
    pool.kill(supervisor)
    await pool.led_by(second)
    await pool.kill_a_worker(host)
    await pool.kill_a_worker(second_host)
    await anyio.sleep(PHASE_S)
    # The first version comes back, as after a rollback; a host is killed at the same moment.
    supervisor = pool.start(one.supervisor())
    pool.kill(second, second_host)
    await pool.led_by(supervisor)
    second_host = pool.start(other.host())
    await pool.served_by(second_host)
    await anyio.sleep(PHASE_S)
    # A host of the first version goes for good, and the other version is left with the work.
    second = pool.start(other.supervisor())
    pool.kill(supervisor, host)
    await pool.led_by(second)
    await anyio.sleep(PHASE_S)

    submitted: set[str] = set()
    for client in clients:
        found = await anyio.to_thread.run_sync(client.stop)
        assert found["wrong"] == [], client.name
        assert len(found["submitted"]) > 200
        submitted |= set(found["submitted"])
    for program in (second, second_host):
        program.terminate()
        await anyio.to_thread.run_sync(program.wait_exit)
    assert pool.killed == 9
    assert len(pool.leaders) == 2
    ran = Counter(note.pid for note in attempt_log.notes("begun"))
    assert all(sum(ran[pid] for pid in pool.workers[name]) > 100 for name in ("old-host", "new-host")), ran
    assert attempt_log.attempts_run_twice() == []
    await anyio.to_thread.run_sync(pool.check_end, submitted)


async def test_old_programs_run_traced_tasks(pool: MixedPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old programs handle tasks that carry a trace context: plain, with a session, with children."""
    RecordedSpans().install(monkeypatch)
    pool.start(pool.old.supervisor())
    await pool.served_by(pool.start(pool.old.host()))
    async with Orchestrator(settings=pool.settings) as orc:
        plain = await orc.submit("echo", {"n": 1})
        retried = await orc.submit("flaky", {"fails": 1}, session="s", tags=["a"])
        family = await orc.submit("family", {"children": 2})
        assert [await handle.result(timeout=WAIT_S) for handle in (plain, retried)] == [1, 2]
        await family.result(timeout=WAIT_S)
        assert all([(await handle.info()).trace_id for handle in (plain, retried, family)])


async def test_the_end_of_an_upgrade(pool: MixedPool) -> None:
    """A new feature waits, with the sentence to type, until no old program is left; then no old one can start."""
    old_host = pool.start(pool.old.host())
    await pool.served_by(old_host)
    old_supervisor, supervisor, host = (
        pool.start(each) for each in (pool.old.supervisor(), pool.new.supervisor(), pool.new.host())
    )
    await pool.served_by(host)
    async with Orchestrator(settings=pool.settings) as orc:
        with pytest.raises(UpgradeUnfinished, match=r"a cost above 500 needs .*, then type `orc upgrade finish`"):
            await orc.limits.check("tokens", 10**6, 60, cost=501)
        with pytest.raises(UpgradeRefused) as refused:
            await orc.admin.finish_upgrade()
        older = refused.value.programs
        assert sum(f":{old_host.pid}:" in program for program in older) == 2, "both workers"
        assert any(program.startswith("supervisor ") for program in older)
        for program in (old_host, old_supervisor):
            program.terminate()
            await anyio.to_thread.run_sync(program.wait_exit)
        await orc.admin.finish_upgrade()
        assert (await orc.limits.check("tokens", 10**6, 60, cost=501)).used == 501
        for late in (pool.start(pool.old.host()), pool.start(pool.old.supervisor())):
            assert await anyio.to_thread.run_sync(late.wait_exit, WAIT_S) == CONFIGURATION
            assert f"has format {FORMAT}, and this version reads format {OLDEST_FORMAT} only" in late.output
            assert "pip install -U redis-orchestrator" in late.output
        assert await (await orc.submit("echo", {"n": 1})).result(timeout=WAIT_S) == 1
    assert (supervisor.returncode, host.returncode) == (None, None)


async def results_of(orc: Orchestrator, *skills: str) -> list[Any]:
    """Run one task of each skill."""
    handles = [await orc.submit(skill) for skill in skills]
    return [await handle.result(timeout=WAIT_S) for handle in handles]


async def test_joins_budgets_providers_and_effects_wait_for_the_end(pool: MixedPool) -> None:
    """Beside old programs each is refused with its sentence, and their tasks go on; after the upgrade all work.

    Meanwhile an old supervisor leads, and old and new workers run tasks of their agents. Then no old program starts.
    """
    old = pool.start(pool.old.supervisor()), pool.start(pool.old.host())
    await pool.led_by(old[0])
    await pool.served_by(old[1])
    supervisor, host = pool.start(pool.new.supervisor()), pool.start(pool.new.host())
    limits = {"ORC_LIMITS": json.dumps({PROVIDER: {"requests": "1000/min"}})}
    novel = Version("new", ROOT, pool.new.environment | limits)
    command = ("-m", "orchestrator.workers", "tests.fault.upgraded_agents:novel", "--processes", "1")
    pool.start(novel.program(*command, name="novel"))
    await pool.served_by(host)
    async with Orchestrator(settings=pool.settings) as orc:
        refused = await results_of(orc, "join", "call", "charge")
        for label, sentence in zip(
            ("a join of tasks", "a call of a provider", "an effect of a task"), refused, strict=True
        ):
            assert sentence.startswith(f"{label} needs programs of format")
            assert "then type `orc upgrade finish`" in sentence
        with pytest.raises(UpgradeUnfinished, match=r"a budget, .* needs .*, then type `orc upgrade finish`"):
            await orc.admin.set_budget("run", usd=1)
        with pytest.raises(UpgradeUnfinished, match=r"a budget, .* needs .*, then type `orc upgrade finish`"):
            await orc.submit("spend", budget="run")
        assert [kind for kind in ("budget", "joins", "joining", "provider") if pool.any_key(kind)] == []
        assert await (await orc.submit("echo", {"n": 1})).result(timeout=WAIT_S) == 1
        for program in reversed(old):
            program.terminate()
            await anyio.to_thread.run_sync(program.wait_exit)
        await pool.led_by(supervisor)
        await orc.admin.finish_upgrade()
        await orc.admin.set_budget("run", usd=1)
        assert await results_of(orc, "join", "call", "charge") == [6, 1, 1]
        assert await (await orc.submit("spend", budget="run")).result(timeout=WAIT_S) == 1
        assert (await show_budget(orc.services, "run")).units[0].spent == pytest.approx(0.01)
        for late in (pool.start(pool.old.host()), pool.start(pool.old.supervisor())):
            assert await anyio.to_thread.run_sync(late.wait_exit, WAIT_S) == CONFIGURATION
            assert f"has format {FORMAT}, and this version reads format {OLDEST_FORMAT} only" in late.output


async def test_old_programs_that_missed_the_end(pool: MixedPool, redis_client: redis.Redis) -> None:
    """The floor rises beside live old programs: their worker is stopped, and their supervisor leads no more."""
    old_supervisor, old_host = pool.start(pool.old.supervisor()), pool.start(pool.old.host())
    await pool.led_by(old_supervisor)
    pids = await pool.served_by(old_host)
    supervisor, host = pool.start(pool.new.supervisor()), pool.start(pool.new.host())
    await pool.served_by(host)
    async with Orchestrator(settings=pool.settings) as orc:
        await orc.submit("pause", {"seconds": 0.5})
        # What `orc upgrade finish` does when it knows nothing of the old programs.
        redis_client.set(pool.keys.format, FORMAT)
        await pool.led_by(supervisor)
        assert await anyio.to_thread.run_sync(old_host.wait_exit, WAIT_S) == 0
        assert old_host.output.count("worker_stopped_by_operator") == len(pids)
        supervisor.kill()
        successor = pool.start(pool.new.supervisor())
        await pool.led_by(successor)
        assert await (await orc.submit("echo", {"n": 1})).result(timeout=WAIT_S) == 1


async def test_the_page_is_followed(pool: MixedPool, redis_client: redis.Redis, tmp_path: Path) -> None:
    """The commands of docs/guides/upgrades.md upgrade a pool under load, and print what the page shows."""
    programs = [pool.start(pool.old.supervisor()), pool.start(pool.old.host())]
    await pool.led_by(programs[0])
    await pool.served_by(programs[1])
    client = pool.client(pool.new)
    environment = {**os.environ, **pool.new.environment}
    restarted = False
    for block in blocks("docs/guides/upgrades.md"):
        if not block.runs:
            for old, new in zip(programs, (pool.new.supervisor(), pool.new.host()), strict=True):
                old.terminate()
                await anyio.to_thread.run_sync(old.wait_exit)
                pool.start(new)
                if new.name == "new-host":
                    await pool.served_by(new)
            restarted = True
        elif block.language == "console":
            for command, shown in steps_of(block):
                typed = partial(type_command, command, folder=tmp_path, environment=environment)
                printed = await anyio.to_thread.run_sync(typed)
                check_output(command, shown, printed)
                assert not ("upgrade status" in command and restarted and " 2 " in printed.partition("\n")[2]), printed
    assert restarted
    assert redis_client.get(pool.keys.format) == str(FORMAT).encode()
    found = await anyio.to_thread.run_sync(client.stop)
    assert found["wrong"] == []
    await anyio.to_thread.run_sync(pool.check_end, set(found["submitted"]))


async def test_old_programs_refuse_half_a_pool(pool: MixedPool, redis_client: redis.Redis) -> None:
    """No program of the old version starts in a pool into which a backup is restored."""
    redis_client.set(pool.keys.format, f"{RESTORING} 0123456789abcdef")
    for late in (pool.start(pool.old.host()), pool.start(pool.old.supervisor())):
        assert await anyio.to_thread.run_sync(late.wait_exit, WAIT_S) == CONFIGURATION
        assert f"has format {RESTORING}" in late.output
    redis_client.delete(pool.keys.format)
