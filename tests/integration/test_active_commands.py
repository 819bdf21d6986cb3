"""What operators order reaches a worker: it starts nothing that is stopped, interrupts, drains, ends, and answers."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import Agent, QueueFull, TaskCancelled, TaskContext
from orchestrator.control.commands import CancelTasks, Start, Stop, encode_command
from orchestrator.control.signing import Signer
from orchestrator.core.command_record import VERSION, Issued, SlotValue, pack_issued, pack_slot_value
from orchestrator.core.ids import new_task_id
from orchestrator.core.log import level_in_use
from orchestrator.tasks.model import TaskState
from orchestrator.testing.waiting import wait_for
from tests.helpers.local_team import TIMEOUT_S, run_local_team

if TYPE_CHECKING:
    from orchestrator.client.handle import TaskHandle
    from orchestrator.core.settings import Settings
    from tests.helpers.local_team import LocalTeam

SECRET = "a secret of sixteen letters or more"
SCOPES: list[dict[str, Any]] = [{}, {"agent": "ed"}, {"session": "s 1/ü"}, {"skill": "work"}]
each_scope = pytest.mark.parametrize("scope", SCOPES, ids=["all", "agent", "session", "skill"])


class Editor:
    """An agent whose handlers note their attempt and wait until the gate opens."""

    def __init__(self, name: str = "ed", *, concurrency: int = 5) -> None:
        self.agent = Agent(name, concurrency=concurrency, lease=2)
        self.begun: list[tuple[str, int]] = []
        self.gate = anyio.Event()

        @self.agent.skill
        async def work(ctx: TaskContext) -> int:
            self.begun.append((ctx.task_id, ctx.attempt))
            await self.gate.wait()
            return ctx.attempt

    async def wait_begun(self, count: int) -> None:
        """Wait until so many attempts have begun."""
        await wait_for(lambda: len(self.begun) >= count, lambda: f"{count} starts, saw {self.begun}")


async def submit(team: LocalTeam) -> TaskHandle[Any]:
    """Submit a task that lies in every scope."""
    return await team.orc.submit("work", session="s 1/ü")


async def words(team: LocalTeam, id_: str) -> dict[str, str]:
    """The receipts of a command: what each sender said last."""
    flat = await team.services.store.execute("HGETALL", team.services.keys.receipts(id_))
    found = dict(zip(flat[::2], flat[1::2], strict=True))
    return {name.decode(): text.decode().split(" ")[1] for name, text in found.items() if name[:1] != b"~"}


async def says(team: LocalTeam, id_: str, worker: str, word: str) -> None:
    """Wait until a worker has said so of a command."""
    seen: dict[str, str] = {}

    async def said() -> bool:
        seen.update(await words(team, id_))
        return seen.get(worker) == word

    await wait_for(said, lambda: f"{word!r} from {worker}, saw {seen}", TIMEOUT_S)


@each_scope
async def test_a_stop_lets_run_what_runs(team: LocalTeam, scope: dict[str, Any]) -> None:
    """What runs ends with its result, what comes later waits; received, then done; `start` lets it go on."""
    editor = Editor()
    worker = await team.work(editor.agent)
    running = await submit(team)
    await editor.wait_begun(1)
    stop = await team.orc.admin.stop(**scope, reason="drill", actor="ann")
    await says(team, stop.id, worker.id, "received")
    waiting = await submit(team)
    assert (await running.status()).state is TaskState.RUNNING
    editor.gate.set()
    assert await running.result(TIMEOUT_S) == 1
    await says(team, stop.id, worker.id, "done")
    assert (await waiting.status()).state is TaskState.READY
    assert len(editor.begun) == 1
    start = await team.orc.admin.start(**scope, reason="over", actor="ann")
    assert await waiting.result(TIMEOUT_S) == 1
    await says(team, start.id, worker.id, "done")


@pytest.mark.parametrize("settings", [{"queue__max_tasks": 20}], indirect=True)
async def test_a_stopped_session_cannot_exceed_the_cap_of_its_queue(team: LocalTeam) -> None:
    """Its tasks are held back and count; another session submits and runs, and this one again after the stop."""
    editor = Editor()
    editor.gate.set()
    await team.work(editor.agent)
    await team.orc.admin.stop(session="101", actor="ann")
    accepted = []
    for count in (10, 20):
        accepted += [await team.orc.submit("work", session="101") for _ in range(10)]
        await wait_for(partial(_held, team, count), "the supervisor to hold the tasks back")
    with pytest.raises(QueueFull, match=r"the stop of session:101 holds back reach the maximum of 20 tasks"):
        await team.orc.submit("work", session="101")
    assert await (await team.orc.submit("work", session="102")).result(TIMEOUT_S) == 1
    await team.orc.admin.start(session="101", actor="ann")
    assert [await handle.result(TIMEOUT_S) for handle in accepted] == [1] * 20
    assert await (await team.orc.submit("work", session="101")).result(TIMEOUT_S) == 1


async def _held(team: LocalTeam, count: int) -> bool:
    return bool(await team.services.store.execute("ZCARD", team.services.keys.held("session:101")) == count)


@each_scope
async def test_a_stop_now_interrupts(team: LocalTeam, scope: dict[str, Any]) -> None:
    """What runs goes back to the head of its queue, tells by whom, and runs again as the same attempt."""
    editor = Editor()
    worker = await team.work(editor.agent)
    handle = await submit(team)
    await editor.wait_begun(1)
    stop = await team.orc.admin.stop(**scope, now=True, reason="drill", actor="ann")
    await says(team, stop.id, worker.id, "done")
    info = await handle.info()
    assert (info.state, info.last_retry, info.attempts) == (TaskState.READY, "stopped by ann: drill", 0)
    editor.gate.set()
    await team.orc.admin.start(**scope)
    assert await handle.result(TIMEOUT_S) == 1
    assert [attempt for _, attempt in editor.begun] == [1, 1]


async def test_other_scopes_are_not_touched(team: LocalTeam) -> None:
    """A stop of one agent, session or skill interrupts and holds back nothing else."""
    editor = Editor()
    worker = await team.work(editor.agent)
    handle = await team.orc.submit("work", session="another")
    await editor.wait_begun(1)
    others: list[dict[str, Any]] = [{"agent": "other"}, {"session": "s"}, {"skill": "play"}]
    for scope in others:
        stop = await team.orc.admin.stop(**scope, now=True)
        await says(team, stop.id, worker.id, "done")
    editor.gate.set()
    assert await handle.result(TIMEOUT_S) == 1
    assert await (await team.orc.submit("work", session="another")).result(TIMEOUT_S) == 1


async def test_a_cancel_overrides_a_stop(team: LocalTeam) -> None:
    """A task that was cancelled and interrupted ends; it does not go back."""
    editor = Editor()
    await team.work(editor.agent)
    handle = await submit(team)
    await editor.wait_begun(1)
    async with anyio.create_task_group() as group:
        group.start_soon(handle.cancel, "enough")
        group.start_soon(lambda: team.orc.admin.stop(now=True))
    with pytest.raises(TaskCancelled, match="enough"):
        await handle.result(TIMEOUT_S)


async def test_a_worker_that_starts_into_a_stop_obeys_it(team: LocalTeam) -> None:
    """It acknowledges the stop and starts nothing; a task that it is handed all the same goes back, unburnt."""
    stop = await team.orc.admin.stop(reason="drill", actor="ann")
    editor = Editor()
    worker = await team.work(editor.agent)
    await says(team, stop.id, worker.id, "done")
    handle = await submit(team)
    # Somebody takes the gate out of Redis; the worker has one of its own.
    await anyio.sleep(0.1)
    assert editor.begun == []
    assert (await handle.status()).state is TaskState.READY
    await team.orc.admin.start()
    await editor.wait_begun(1)
    editor.gate.set()
    assert await handle.result(TIMEOUT_S) == 1


@pytest.mark.parametrize("settings", [{"control__secret": SECRET}], indirect=True)
@each_scope
async def test_a_forged_start_lets_nothing_start(team: LocalTeam, scope: dict[str, Any]) -> None:
    """Whoever writes into Redis without the secret opens no gate of a worker: what it is handed, it gives back."""
    editor = Editor()
    worker = await team.work(editor.agent)
    stop = await team.orc.admin.stop(**scope, reason="drill", actor="ann")
    await says(team, stop.id, worker.id, "done")
    store, keys = team.services.store, team.services.keys

    slot = Start(**scope).changes[0].slot

    async def verified() -> bool:
        return await store.execute("HGET", keys.desired, f"verified:{slot}") is not None

    await wait_for(verified, "the supervisor to have noted what is true")
    now_ms = int((await store.execute("TIME"))[0]) * 1000
    forged = Issued(VERSION, new_task_id(), encode_command(Start(**scope)), "eve", "", now_ms, now_ms + 60_000, 0)
    wrong = Signer("another secret of sixteen letters", "", place=keys.root).sign(pack_issued(forged))
    await store.execute("HSET", keys.desired, slot, f"0-{wrong}".encode() + pack_issued(forged))
    await store.execute("HINCRBY", keys.desired, "seq", 1)
    handle = await submit(team)

    async def let_through() -> bool:
        return int(await store.execute("HGET", keys.stats("TOTAL"), "assigned") or 0) > 0

    await wait_for(let_through, "the script to hand it out: nothing in Redis holds it back")
    # Not before: the supervisor, too, hears of it, and repairs what is active.
    await store.execute("XADD", keys.control, "*", "c", pack_issued(forged), "s", wrong)
    await anyio.sleep(0.3)
    assert editor.begun == []
    assert await words(team, forged.id) == {}
    await team.orc.admin.start(**scope)
    await editor.wait_begun(1)
    info = await handle.info()
    assert (info.state, info.attempts) == (TaskState.RUNNING, 1)


async def test_a_drained_worker_stays_and_can_go_on(team: LocalTeam) -> None:
    """It finishes what it has and takes nothing, while its peer goes on; resumed, it works again."""
    first, second = Editor(), Editor()
    drained, peer = await team.work(first.agent), await team.work(second.agent)
    second.gate.set()
    while not first.begun:
        await submit(team)
        await anyio.sleep(0.01)
    order = await team.orc.admin.drain_worker(drained.id, reason="repair")
    await says(team, order.id, drained.id, "received")

    async def slots() -> bytes:
        found = await team.services.store.execute("HGET", team.services.keys.agent_workers("ed"), drained.id)
        return bytes(found.split()[0])

    async def quiet() -> bool:
        return await slots() == b"0"

    await wait_for(quiet, "the worker to take nothing more")
    count = len(first.begun)
    handles = [await submit(team) for _ in range(20)]
    assert [await handle.result(TIMEOUT_S) for handle in handles] == [1] * 20
    assert (len(first.begun), await words(team, order.id)) == (count, {drained.id: "received"})
    first.gate.set()
    await says(team, order.id, drained.id, "done")
    assert await slots() == b"0"
    await says(team, (await team.orc.admin.drain_worker(peer.id)).id, peer.id, "done")
    waits = await submit(team)
    resumed = await team.orc.admin.resume_worker(drained.id)
    assert await waits.result(TIMEOUT_S) == 1
    assert len(first.begun) == count + 1
    await says(team, resumed.id, drained.id, "done")


async def test_a_stopped_worker_ends(team: LocalTeam) -> None:
    """It finishes what runs, answers, and leaves the registry."""
    editor = Editor()
    worker = await team.work(editor.agent)
    handle = await submit(team)
    await editor.wait_begun(1)
    order = await team.orc.admin.stop_worker(worker.id, reason="move")
    await says(team, order.id, worker.id, "received")
    editor.gate.set()
    assert await handle.result(TIMEOUT_S) == 1
    await says(team, order.id, worker.id, "done")
    store, keys = team.services.store, team.services.keys

    async def gone() -> bool:
        return await store.execute("ZSCORE", keys.workers, worker.id) is None

    await wait_for(gone, "the worker to be gone")


async def test_the_log_level_follows(team: LocalTeam) -> None:
    """Workers log from the level on that was ordered, and from that of the settings when the order is ended."""
    worker = await team.work(Editor().agent)
    root = logging.getLogger()
    before = root.level
    try:
        order = await team.orc.admin.set_log_level("error")
        await says(team, order.id, worker.id, "done")
        await wait_for(lambda: root.level == logging.ERROR, "the level", timeout_s=20)
        await team.orc.admin.reset_log_level()
        await wait_for(lambda: root.level == logging.INFO, "the usual level", timeout_s=20)
    finally:
        root.setLevel(before)


async def test_the_log_level_ends_with_the_supervisor(settings: Settings) -> None:
    """A process that no longer leads a pool takes back the log level of this pool, which may not be its only one."""
    before = level_in_use()
    async with run_local_team(settings, supervised=False) as team:
        await team.orc.admin.set_log_level("debug")
        supervisor = await team.start_supervisor()
        await wait_for(lambda: level_in_use() == "debug", "the level")
        supervisor.cancel()
        await wait_for(lambda: level_in_use() == before, "the usual level")


@pytest.mark.parametrize("kind", ["garbage", "unsigned", "late", "huge"])
async def test_a_flood_harms_nobody(team: LocalTeam, kind: str) -> None:
    """Ten thousand entries that are no commands, or too large to be any: leases are kept, the next stop is obeyed."""
    editor = Editor()
    worker = await team.work(editor.agent)
    running = await submit(team)
    await editor.wait_begun(1)
    store, keys = team.services.store, team.services.keys
    packed = pack_issued(Issued(VERSION, new_task_id(), encode_command(Stop()), "eve", "", 1, 2, 0))
    entry = {"garbage": b"\x00\xff" * 50, "unsigned": packed, "late": packed, "huge": b"x" * 2**21}[kind]
    commands = [("XADD", keys.control, "MAXLEN", "~", 10_000, "*", "c", entry, "s", b"")] * 500
    for _ in range(1 if kind == "huge" else 20):
        await store.pipeline(commands[: 20 if kind == "huge" else 500])
    stop = await team.orc.admin.stop(now=True)
    await says(team, stop.id, worker.id, "done")
    info = await running.info()
    assert (info.state, info.attempts, info.deaths) == (TaskState.READY, 0, ())
    await store.execute("DEL", keys.control)


@pytest.mark.parametrize("damage", ["held", "scopes", "count", "doorbell", "nonce", "seq", "jobs"])
async def test_damage_silences_nobody(team: LocalTeam, damage: str) -> None:
    """What somebody has written over keys of the control stream keeps neither supervisor nor workers from answering."""
    store, keys = team.services.store, team.services.keys
    worker = await team.work(Editor().agent)
    if damage == "held":
        await store.execute("SET", keys.suspended_scopes, "x", "EX", 60)
    elif damage == "scopes":
        names = [f"session:x{number}" for number in range(20_000)]
        await store.execute("SADD", keys.suspended_scopes, *names)
        held = [("SET", f"{keys.suspended_scopes}:{name}", "x", "EX", 60) for name in names]
        await store.pipeline(held)
    elif damage == "count":
        seconds, _ = await store.execute("TIME")
        for minute in (0, 1):
            await store.execute("SET", keys.control_rate(int(seconds) // 60 + minute), "x", "EX", 120)
    elif damage == "doorbell":
        await store.execute("SET", keys.doorbell, "x", "EX", 60)
    elif damage == "nonce":
        issued = Issued(VERSION, new_task_id(), encode_command(Stop()), "eve", "", 1, 2**50, 0)
        await store.execute("RPUSH", keys.nonce(issued.id), "x")
        await store.execute("EXPIRE", keys.nonce(issued.id), 60)
        await store.execute("XADD", keys.control, "*", "c", pack_issued(issued), "s", "")
    elif damage == "seq":
        await store.execute("HSET", keys.desired, "seq", "9" * 5000, "epoch", "many")
    else:
        issued = Issued(VERSION, new_task_id(), encode_command(CancelTasks(count=0).selecting([])), "eve", "", 1, 2, 0)
        await store.execute("HSET", keys.receipts(issued.id), "supervisor", "x progress y/z", "eve", "x y z")
        await store.execute("EXPIRE", keys.receipts(issued.id), 60)
        job = pack_slot_value(SlotValue("-", issued, pack_issued(issued), ""))
        await store.execute("HSET", keys.desired, f"do:{issued.id}", job)
        await team.orc.admin.pause_agent("other")  # somebody looks
        await says(team, issued.id, "supervisor", "done")
    stop = await team.orc.admin.stop(now=True)
    for sender in (worker.id, "supervisor"):
        await says(team, stop.id, sender, "done")
    found = await stop.receipts(timeout=TIMEOUT_S)
    assert (found.missing, found.busy) == ((), ())
    await store.execute("DEL", keys.suspended_scopes)
