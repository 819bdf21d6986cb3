"""Tests the team: single attempts without a server, and all agents on a real Redis. Run `pytest` in this folder."""

import anyio
import model
import pytest
from team import investigate, report, review, team, write

from orchestrator import Orchestrator, TaskCancelled, TaskHandle, TaskState
from orchestrator.workers.testing import Teams, run_skill

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """Run async tests on asyncio."""
    return "asyncio"


@pytest.fixture(autouse=True)
def quick_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the model answer at once, and let no test use up the requests of the next one."""
    monkeypatch.setattr(model, "WORD_S", 0.0)
    model.requests.clear()


async def test_the_writer_streams() -> None:
    """Each word is emitted, and the words are the result."""
    outcome = await run_skill(write, {"topic": "leases", "findings": ["They end."]})
    assert "".join(outcome.output) == outcome.value == "leases: They end."


async def test_a_busy_model_counts_no_attempt() -> None:
    """Beyond the model's limit the task is snoozed until the model accepts requests again."""
    outcomes = [await run_skill(investigate, {"question": "Why?"}) for _ in range(model.REQUESTS_PER_S + 1)]
    assert [outcome.verdict for outcome in outcomes] == ["succeeded"] * model.REQUESTS_PER_S + ["snooze"]
    assert outcomes[-1].delay is not None
    assert 0 < outcomes[-1].delay.total_seconds() <= 1


@pytest.mark.parametrize("answer", ["yes", "no"])
async def test_a_person_decides(answer: str) -> None:
    """The reviewer asks, and returns the decision."""
    outcome = await run_skill(review, {"topic": "leases", "text": "They end."}, answers=[answer])
    assert outcome.value == (answer == "yes")


async def question_of(orc: Orchestrator, parent: str) -> TaskHandle[bool]:
    """Wait until the reviewer of a report asks."""
    with anyio.fail_after(30):
        while True:
            asking = await orc.tasks.find(parent=parent, states=[TaskState.AWAITING_INPUT])
            if asking:
                return orc.task(asking[0].id)
            await anyio.sleep(0.02)


async def test_a_report_survives_a_crash(orc_team: Teams) -> None:
    """The planner's worker dies after it submitted the draft; the next attempt finds it and all findings."""
    async with orc_team(*team) as running:
        running.crash(report, at="submit")
        handle = await running.orc.submit(report, {"topic": "leases"}, session="ada")
        await (await question_of(running.orc, handle.id)).answer("yes")
        found = await handle.result(timeout=30)
        assert found.published
        assert found.text.startswith("leases: Why leases? A source")
        running.assert_submitted(investigate, times=5)
        running.assert_submitted(write, times=1)


async def test_reports_of_a_lane_wait_for_each_other_and_a_cancel_takes_the_family(orc_team: Teams) -> None:
    """The second report begins when the first one has ended, and a cancel ends the question of a report too."""
    async with orc_team(*team) as running:
        first = await running.orc.submit(report, {"topic": "leases"}, session="ada", lane="ada")
        second = await running.orc.submit(report, {"topic": "lanes"}, session="ada", lane="ada")
        asking = await question_of(running.orc, first.id)
        assert (await second.status()).detail.cause == "lane"
        await first.cancel("not needed")
        with pytest.raises(TaskCancelled):
            await asking.result(timeout=30)
        await (await question_of(running.orc, second.id)).answer("no")
        assert not (await second.result(timeout=30)).published
