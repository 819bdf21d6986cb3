"""Tasks that ended: what the client and `orc events` tell of them, how they are followed, and how many are kept."""

from __future__ import annotations

import json
import signal
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

import orchestrator.sync
from orchestrator import Agent, InvalidInput, Reject, Submission, TaskContext, TaskFailed
from orchestrator.supervisor.event_trimmer import EventTrimmer
from orchestrator.tasks.ends import parse_place
from orchestrator.tasks.model import TaskState
from orchestrator.testing.waiting import wait_for
from tests.helpers.local_team import run_local_team
from tests.helpers.terminal import ORC, Done, Terminal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from orchestrator.core.settings import Settings
    from tests.helpers.local_team import LocalTeam


@pytest.fixture
def orc(team: LocalTeam, tmp_path: Path) -> Callable[..., Awaitable[Done]]:
    """Runs a command in a thread, while the team goes on."""
    url = team.settings.redis.url
    assert url is not None
    terminal = Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)

    async def typed(*arguments: str) -> Done:
        return await anyio.to_thread.run_sync(partial(terminal.orc, *arguments))

    return typed


def make_agent() -> Agent:
    """An agent that fulfils tasks or rejects them, and submits children."""
    agent = Agent("judge", concurrency=5)

    @agent.skill
    async def work(ctx: TaskContext, reason: str = "", children: int = 0) -> str:
        for _ in range(children):
            await ctx.submit("work")
        if reason:
            raise Reject(reason)
        return ctx.task_id

    return agent


async def test_what_is_told(team: LocalTeam, orc: Callable[..., Awaitable[Done]]) -> None:
    """An end has outcome, agent, skill, session, parent, times and error; filters choose among ends."""
    await team.work(make_agent())
    good = await team.orc.submit("work", session="s")
    await good.result(timeout=5)
    bad = await team.orc.submit("work", {"reason": "too long"})
    with pytest.raises(TaskFailed):
        await bad.result(timeout=5)
    late = await team.orc.submit("nobody_can")
    await late.cancel("enough")
    tasks = team.orc.tasks
    newest, rejected, first = await tasks.ends()
    assert (newest.id, newest.outcome, newest.agent, newest.error) == (late.id, TaskState.CANCELLED, None, "enough")
    assert newest.assigned_at is None
    assert (rejected.id, rejected.outcome, rejected.error) == (bad.id, TaskState.DEAD, "too long")
    assert (first.id, first.outcome, first.skill, first.agent) == (good.id, TaskState.SUCCEEDED, "work", "judge")
    assert (first.session, first.parent, first.error) == ("s", None, "")
    assert first.submitted_at is not None
    assert first.assigned_at is not None
    assert first.submitted_at <= first.assigned_at <= first.ended_at
    assert await tasks.ends(limit=1) == (newest,)
    assert await tasks.ends(outcomes=["dead", TaskState.CANCELLED]) == (newest, rejected)
    assert await tasks.ends(agent="judge") == (rejected, first)
    assert await tasks.ends(skill="nobody_can") == (newest,)
    assert await tasks.ends(session="s") == (first,)

    told = json.loads((await orc("events", "--outcome", "dead", "-o", "json")).out)["items"]
    assert [(one["id"], one["agent"], one["error"], one["place"]) for one in told] == [
        (bad.id, "judge", "too long", rejected.place)
    ]
    assert (await orc("events", "--session", "s", "-o", "id")).out.split() == [good.id]
    assert "too long" in (await orc("events")).out
    assert (await orc("events", "--after", "0-0")).code == 2
    assert (await orc("events", "--follow", "-o", "json")).code == 2
    assert (await orc("events", "--follow", "--after", "5")).code == 2


async def test_after_the_record(team: LocalTeam) -> None:
    """The end of a deleted task keeps id, outcome and time; an end of a requeued task loses what is no longer true."""
    await team.work(make_agent())
    bad = await team.orc.submit("work", {"reason": "no"}, session="s")
    with pytest.raises(TaskFailed):
        await bad.result(timeout=5)
    (before,) = await team.orc.tasks.ends()
    await team.stop_workers()
    await bad.retry()
    (requeued,) = await team.orc.tasks.ends()
    assert (requeued.outcome, requeued.skill, requeued.error, requeued.assigned_at) == (
        TaskState.DEAD,
        "work",
        "",
        None,
    )
    await bad.cancel("enough")
    sent = await team.orc.admin.delete([bad.id])
    await sent.receipts(timeout=5)
    cancelled, dead = await team.orc.tasks.ends()
    assert (dead.id, dead.outcome, dead.ended_at) == (bad.id, TaskState.DEAD, before.ended_at)
    assert (cancelled.outcome, cancelled.skill, cancelled.session, cancelled.error) == (
        TaskState.CANCELLED,
        None,
        None,
        "",
    )


async def test_following(team: LocalTeam) -> None:
    """A reader gets each end once, in order; it goes on behind a place, also within a batch."""
    handles = await team.orc.submit_many([Submission("work", session=f"s{n % 2}") for n in range(5)])
    ids, tasks = [handle.id for handle in handles], team.orc.tasks
    for handle in handles:
        await handle.cancel()
    ends = [end async for end in tasks.watch_ends("0-0", block=0)]
    assert [end.id for end in ends] == ids
    for n, end in enumerate(ends):
        assert [one.id async for one in tasks.watch_ends(end.place, block=0)] == ids[n + 1 :]
    odd = [one.id async for one in tasks.watch_ends("0-0", session="s1", outcomes=["cancelled"], block=0)]
    assert odd == ids[1::2]
    more = await team.orc.submit_many([Submission("work") for _ in range(3)])
    live = []

    async def follow() -> None:
        async with aclosing(tasks.watch_ends(ends[-1].place)) as found:
            async for end in found:
                live.append(end)
                if len(live) == len(more):
                    return

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await team.orc.admin.cancel([handle.id for handle in more])
    assert {end.id for end in live} == {handle.id for handle in more}
    assert len({parse_place(end.place)[0] for end in live}) == 1
    assert [one.id async for one in tasks.watch_ends(live[0].place, block=0)] == [end.id for end in live[1:]]


async def test_follow_on_a_terminal(team: LocalTeam, tmp_path: Path) -> None:
    """`orc events --follow` prints a line per end, from a place on, until it is interrupted."""
    url = team.settings.redis.url
    assert url is not None
    terminal = Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)
    first, second = [await team.orc.submit("work", session="s") for _ in range(2)]
    await first.cancel("enough")
    command = [ORC, "events", "--follow", "--after", "0-0"]
    with anyio.fail_after(20):
        async with await anyio.open_process(command, cwd=tmp_path, env=terminal.environ) as process:
            assert process.stdout is not None
            lines = BufferedByteReceiveStream(process.stdout)
            told = [(await lines.receive_until(b"\n", 1000)).decode()]
            await second.cancel()
            told.append((await lines.receive_until(b"\n", 1000)).decode())
            process.send_signal(signal.SIGINT)
    assert [line.partition(" ")[2] for line in told] == [
        f"{first.id} cancelled skill=work session=s enough",
        f"{second.id} cancelled skill=work session=s",
    ]


async def test_blocking_client(team: LocalTeam) -> None:
    """The blocking client lists and follows ends."""
    handle = await team.orc.submit("work")
    await handle.cancel()

    def read() -> list[list[str]]:
        with orchestrator.sync.Orchestrator(settings=team.settings) as orc:
            return [[end.id for end in found] for found in (orc.tasks.ends(), orc.tasks.watch_ends("0-0", block=0))]

    assert await anyio.to_thread.run_sync(read) == [[handle.id], [handle.id]]


async def test_invalid_questions(team: LocalTeam) -> None:
    """What is no final state and no place is refused."""
    with pytest.raises(InvalidInput, match="no task ends as ready"):
        await team.orc.tasks.ends(outcomes=["ready"])
    for place in ("x", "5-0", "5-0:", "-"):
        with pytest.raises(InvalidInput, match="is no place of an end"):
            await anext(team.orc.tasks.watch_ends(place))


async def test_how_many_are_kept(settings: Settings) -> None:
    """The supervisor trims the stream to the setting, and again when half as many more have ended."""
    async with run_local_team(settings, supervised=False) as team:
        orc = await team.client(results__max_events=100)
        trimmer = EventTrimmer(orc.services)

        async def end(count: int) -> None:
            handles = await orc.submit_many([Submission("work") for _ in range(count)])
            for handle in handles:
                await handle.cancel()

        async def kept() -> int:
            await trimmer.sweep()
            return int(await orc.services.store.execute("XLEN", orc.services.keys.events))

        await end(90)
        assert await kept() == 90
        await end(30)
        assert await kept() == 100
        await end(49)
        assert await kept() == 149
        await end(1)
        assert await kept() == 100


async def test_the_supervisor_trims(settings: Settings) -> None:
    """A running supervisor trims at its sweep."""
    changed = settings.model_copy(
        update={
            "results": settings.results.model_copy(update={"max_events": 100}),
            "supervisor": settings.supervisor.model_copy(update={"sweep_s": 0.05}),
        }
    )
    async with run_local_team(changed) as team:
        handles = await team.orc.submit_many([Submission("work") for _ in range(150)])
        for handle in handles:
            await handle.cancel()
        await wait_for(lambda: _length(team), "the stream to be trimmed")


async def _length(team: LocalTeam) -> bool:
    return int(await team.services.store.execute("XLEN", team.services.keys.events)) < 150
