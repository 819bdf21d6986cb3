"""Ids are found by their beginning wherever the command line takes one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator import Agent, Reject
from orchestrator.core.errors import InvalidInput, NotFound, TaskFailed
from orchestrator.core.ids import check_task_prefix
from orchestrator.tasks.submission import Submission
from orchestrator.views.tasks import find_task
from tests.helpers.local_team import TIMEOUT_S

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam


async def test_the_beginning_of_an_id(team: LocalTeam) -> None:
    """The only id that begins so is meant: of a waiting, a scheduled, an ended or a dead task."""
    agent = Agent("editor")

    @agent.skill
    async def fail() -> None:
        raise Reject("no")

    await team.work(agent)
    dead = await team.orc.submit("fail")
    with pytest.raises(TaskFailed):
        await dead.result(TIMEOUT_S)
    waiting, later = await team.orc.submit("unserved"), await team.orc.submit("unserved", delay=60)
    cancelled = await team.orc.submit("unserved")
    await cancelled.cancel()
    for task in (dead, waiting, later, cancelled):
        assert await find_task(team.services, task.id[:-1]) == task.id
        assert await find_task(team.services, task.id) == task.id


async def test_several_ids_begin_so(team: LocalTeam) -> None:
    """The message names some of them; nothing is chosen."""
    tasks = await team.orc.submit_many([Submission("unserved")] * 7)
    begin = tasks[0].id[:6]
    with pytest.raises(InvalidInput, match=rf"7 task ids begin with {begin}: .*, …; give more of the id"):
        await find_task(team.services, begin)


async def test_many_tasks_are_open(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not all open tasks are looked at, another id may begin so: nothing is chosen, and the id is shown."""
    monkeypatch.setattr("orchestrator.views.tasks.LOOKED_AT", 3)
    first, second = [await team.orc.submit("unserved", delay=60 + n) for n in range(2)]
    assert await find_task(team.services, second.id[:-1]) == second.id
    for n in range(3):
        await team.orc.submit("unserved", delay=70 + n)
    with pytest.raises(InvalidInput, match=f"^{first.id} begins with .*, and perhaps another id.*give the whole id"):
        await find_task(team.services, first.id[:23])


async def test_no_id_begins_so(team: LocalTeam) -> None:
    """An unknown beginning is not found, and what no id begins with is refused before Redis is asked."""
    with pytest.raises(NotFound, match="no id begins with ffff"):
        await find_task(team.services, "ffff")
    for typed in ("", "019", "chat-7", "0190f6e5-4d2a-4c3b", "0190F6E5"):
        with pytest.raises(InvalidInput, match="is not a task id"):
            check_task_prefix(typed)
