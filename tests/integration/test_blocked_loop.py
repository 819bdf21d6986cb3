"""Code that blocks the event loop of a worker is reported after a second, while it blocks, and shown by the doctor."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import anyio
import pytest

from orchestrator import Agent, TaskContext
from orchestrator.doctor.runner import run_server_checks
from orchestrator.workers.runtime import loop_watcher
from orchestrator.workers.runtime.loop_watcher import LoopWatcher
from tests.helpers.json_log import Log, json_log, line_of
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.helpers.local_team import LocalTeam


@pytest.fixture
def log() -> Iterator[Log]:
    """The log at info, as JSON lines."""
    with json_log() as kept:
        yield kept


def _sleep(until: threading.Event) -> None:
    until.wait(20)


@pytest.mark.blocks_loop
async def test_a_blocking_handler_is_named_while_it_blocks(team: LocalTeam, log: Log) -> None:
    """Within 2 s the log has the line, the task and the stack; the doctor shows it; the end is told too."""
    agent, found, told_s = Agent("blocker"), threading.Event(), list[float]()

    def watch() -> None:
        begun_s = time.monotonic()
        while not log.lines("event_loop_blocked") and time.monotonic() < begun_s + 20:
            time.sleep(0.02)
        told_s.append(time.monotonic() - begun_s)
        found.set()

    @agent.skill
    async def work(ctx: TaskContext) -> str:
        threading.Thread(target=watch).start()
        _sleep(found)  # blocks the event loop of the worker
        return ctx.task_id

    await team.work(agent)
    task = await (await team.orc.submit("work")).result(30)
    assert told_s[0] < 2, "it was reported while the loop was blocked"
    (line,) = log.lines("event_loop_blocked")
    assert (line["level"], line["skill"], line["task"], line["agent"]) == ("warning", "work", task, "blocker")
    assert f"{__file__}:{line_of(_sleep, 'until.wait')}".endswith(line["where"])
    assert "_sleep(found)  # blocks" in line["stack"]
    assert "run_forever" not in line["stack"]
    assert line["blocked_s"] < 2
    await wait_for(lambda: bool(log.lines("event_loop_unblocked")), "the end of the block", 20)

    async def shown() -> bool:
        report = await run_server_checks(team.settings)
        (finding,) = [finding for finding in report.findings if finding.code == "event-loops"]
        return line["where"] in finding.found and "def" in finding.fix

    await wait_for(shown, "the doctor to show it", 20)


@pytest.mark.blocks_loop
async def test_a_program_that_a_handler_waits_for_is_a_block(team: LocalTeam, log: Log) -> None:
    """`subprocess.run` waits in `selectors`, as the event loop itself does when it has nothing to do."""
    agent, (reads, writes) = Agent("blocker"), os.pipe()

    def watch() -> None:
        begun_s = time.monotonic()
        while not log.lines("event_loop_blocked") and time.monotonic() < begun_s + 20:
            time.sleep(0.02)
        os.close(writes)

    @agent.skill
    async def work() -> str:
        threading.Thread(target=watch).start()
        return subprocess.run(["cat"], stdin=reads, capture_output=True, text=True, check=True).stdout  # noqa: ASYNC221

    await team.work(agent)
    await (await team.orc.submit("work")).result(30)
    os.close(reads)
    (line,) = log.lines("event_loop_blocked")
    assert (line["skill"], line["agent"]) == ("work", "blocker")
    assert f"{__file__}:{line_of(work.handler, 'subprocess.run')}".endswith(line["where"])


async def test_a_loop_that_answers_during_a_report(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that ends while its stack is read hides no later one."""
    watcher = LoopWatcher(worker="w")

    def answer_meanwhile(_: object) -> tuple[str, str]:
        watcher._answer()
        return "a.py:1", ""

    monkeypatch.setattr(loop_watcher, "_starved_s", lambda _: 0.0)
    monkeypatch.setattr(loop_watcher, "stack_of", answer_meanwhile)
    watcher._asked_s = 1.0
    watcher._look(3.0)
    monkeypatch.setattr(loop_watcher, "stack_of", lambda _: ("b.py:2", ""))
    watcher._asked_s = 4.0
    watcher._look(6.0)
    watcher._answer()
    assert [line["where"] for line in log.lines("event_loop_blocked")] == ["a.py:1", "b.py:2"]
    assert [line["where"] for line in log.lines("event_loop_unblocked")] == ["b.py:2"]


async def test_a_waiting_handler_is_no_block(team: LocalTeam, log: Log) -> None:
    """The twin: a handler that awaits, and one in a thread, block nothing, and the doctor has no finding."""
    agent = Agent("calm")

    @agent.skill
    async def wait() -> None:
        await anyio.sleep(1.6)

    @agent.skill
    def think() -> None:
        time.sleep(1.6)

    await team.work(agent)
    handles = [await team.orc.submit(skill) for skill in ("wait", "think")]
    for handle in handles:
        await handle.result(30)
    assert log.lines("event_loop_blocked") == []
    report = await run_server_checks(team.settings)
    (finding,) = [finding for finding in report.findings if finding.code == "event-loops"]
    assert finding.severity.value == "ok"


@pytest.mark.blocks_loop
async def test_a_line_is_reported_once_a_minute(team: LocalTeam, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks that block in the same line: one line in the log, and the registry counts both."""
    monkeypatch.setattr(loop_watcher, "BLOCKED_AFTER_S", 0.3)
    agent = Agent("blocker")

    @agent.skill
    async def work() -> None:
        time.sleep(1.0)  # noqa: ASYNC251 - the mistake

    worker = await team.work(agent)
    for _ in range(2):
        await (await team.orc.submit("work")).result(30)
    await wait_for(lambda: len(log.lines("event_loop_unblocked")) == 2, "the end of both blocks", 20)
    assert len(log.lines("event_loop_blocked")) == 1
    assert worker._loop_watcher.note.split()[1] == "2"


async def test_a_frozen_process_is_no_block(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pause of the whole process, in which no processor time passed, nothing is reported."""
    watcher = LoopWatcher(worker="w")
    looks: list[float] = []
    monkeypatch.setattr(watcher, "_look", looks.append)
    clock, work = iter([0.0, 9.0, 9.0]), iter([0.0, 0.01, 0.01])

    class Clock:
        monotonic = staticmethod(lambda: next(clock))
        process_time = staticmethod(lambda: next(work))

    watcher._asked_s = 0.0
    waits = iter([False, True])
    monkeypatch.setattr(loop_watcher, "time", Clock)
    monkeypatch.setattr(watcher._stopping, "wait", lambda _: next(waits))
    watcher._run()
    assert looks == [9.0]
    assert watcher._asked_s == 9.0, "the time of the freeze does not count"
    assert log.lines("event_loop_blocked") == []
