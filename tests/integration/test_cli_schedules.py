"""`orc schedules` typed beside a pool in this process: effects, forms of output, exit codes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from zoneinfo import ZoneInfo

import anyio.to_thread
import pytest

from tests.helpers.local_team import run_local_team
from tests.helpers.terminal import Done, Terminal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orchestrator.core.settings import Settings
    from tests.helpers.local_team import LocalTeam


class Orc(Protocol):
    """Types `orc schedules …` and answers what it did."""

    async def __call__(self, *arguments: str, stdin: str | None = None) -> Done:
        """Run it."""


@pytest.fixture
async def team(settings: Settings) -> AsyncIterator[LocalTeam]:
    """Nobody leads: nothing is fired but by hand."""
    async with run_local_team(settings, supervised=False) as running:
        yield running


@pytest.fixture
def orc(team: LocalTeam, tmp_path: Path) -> Orc:
    """Runs a command in a thread."""
    url = team.settings.redis.url
    assert url is not None
    terminal = Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)

    async def typed(*arguments: str, stdin: str | None = None) -> Done:
        given: dict[str, Any] = {} if stdin is None else {"stdin": stdin}
        return await anyio.to_thread.run_sync(partial(terminal.orc, "schedules", *arguments, **given))

    return typed


NIGHTLY = ("add", "nightly", "report", "--cron", "30 2 * * *", "--zone", "Europe/Berlin")


async def test_a_list_with_a_limit(team: LocalTeam, orc: Orc) -> None:
    """It has the next to fire and says how many there are; a damaged one is not among them."""
    for name, hours in (("c", 3), ("a", 1), ("b", 2)):
        await orc("add", name, "report", "--every", f"{hours}h")
    done = await orc("list", "--limit", "2", "-o", "id")
    assert (done.code, done.out.split()) == (0, ["a", "b"])
    assert done.err == "these are 2 of 3; raise --limit for more\n"
    assert (await orc("list", "--limit", "0")).code == 2
    await team.services.store.execute("HSET", team.services.keys.schedule("a"), "plan", b"damaged")
    done = await orc("list", "-o", "id")
    assert (done.out.split(), done.err) == (["b", "c"], "")


async def test_add(orc: Orc) -> None:
    """It says when it fires; the same again is fine, another definition is refused unless --replace is said."""
    done = await orc(*NIGHTLY, "-a", "scope=all")
    assert (done.code, len(done.err.splitlines())) == (0, 1)
    assert done.err.startswith("warning: no live agent has the skill 'report' (no worker is live); tasks wait until ")
    assert done.out.startswith("schedule nightly added; it fires in ")
    unserved = await orc("add", "weekly", "report", "--every", "168h", "--require-agent")
    assert (unserved.code, unserved.out) == (4, "")
    assert unserved.err.startswith("error: no live agent has the skill 'report'")
    again = await orc(*NIGHTLY, '{"scope": "all"}')
    assert (again.code, "is unchanged" in again.out) == (0, True)
    other = await orc(*NIGHTLY, "-a", "scope=some")
    assert (other.code, other.out) == (4, "")
    assert other.err == (
        "error: schedule 'nightly' exists and has another definition ('report', 30 2 * * * Europe/Berlin); "
        "replace it, or use another name\n"
    )
    replaced = await orc(*NIGHTLY, "-a", "scope=some", "--replace", "--reason", "less")
    assert (replaced.code, replaced.out.startswith("schedule nightly replaced; it fires in ")) == (0, True)


async def test_add_forms(orc: Orc) -> None:
    """Structured output has the whole schedule and what was done; as id it is the name."""
    done = await orc("add", "poll", "fetch", "--every", "5m", "--overlap", "skip", "--tag", "x", "-o", "json")
    found = json.loads(done.out)
    assert (found["status"], found["every"], found["overlap"], found["tags"]) == ("added", 300, "skip", ["x"])
    assert (await orc("add", "poll", "fetch", "--every", "300", "--overlap", "skip", "--tag", "x", "-o", "id")).out == (
        "poll\n"
    )
    assert json.loads((await orc(*NIGHTLY, "-", "-o", "jsonl", stdin='{"n": 12345678901234567890}')).out)["args"] == {
        "n": 12345678901234567890
    }


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("--cron", "61 2 * * *"), "minute '61' is not possible; write 0 to 59, a list 1,15,"),
        (("--cron", "0 0 31 2 *"), "day-of-month '31 in month 2' is not possible; write 1 to 31 if the month"),
        (("--cron", "0 0 * * FRY"), "day-of-week 'FRY' is not possible; write 0 to 7 or SUN to SAT"),
        (("--cron", "0 0 * * *", "--zone", "Europe/Berln"), "did you mean Europe/Berlin"),
        (("--every", "100ms"), "the shortest interval is 1 s"),
        ((), "either cron or every"),
    ],
)
async def test_bad_times(orc: Orc, typed: tuple[str, ...], said: str) -> None:
    """Times that are not possible are exit code 2, in one line that says what is wrong."""
    done = await orc("add", "n", "report", *typed)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err


async def test_list_and_show(orc: Orc) -> None:
    """What there is, in all forms; nothing there is said, not printed."""
    empty = await orc("list")
    assert (empty.code, empty.out, empty.err) == (0, "", "no schedules\n")
    await orc("add", "poll", "fetch", "--every", "90s")
    await orc(*NIGHTLY)
    listed = await orc("list")
    heads, first, second = listed.out.splitlines()
    assert heads.split() == ["NAME", "WHEN", "SKILL", "NEXT", "LAST", "STATE"]
    assert first.split()[:5] == ["poll", "every", "1m30s", "fetch", "in"]
    assert second.startswith("nightly  30 2 * * * Europe/Berlin  report")
    assert (await orc("list", "-o", "id")).out == "poll\nnightly\n"
    items = json.loads((await orc("list", "-o", "json")).out)["items"]
    assert [each["name"] for each in items] == ["poll", "nightly"]
    shown = await orc("show", "nightly")
    assert "Europe/Berlin" in shown.out
    assert "last error" not in shown.out
    assert json.loads((await orc("show", "nightly", "-o", "json")).out)["catch_up"] == "one"
    unknown = await orc("show", "other")
    assert (unknown.code, unknown.out) == (3, "")
    assert "known are: nightly, poll" in unknown.err


async def test_next(orc: Orc) -> None:
    """The next times in UTC and in the zone, of one or of all; a paused one is left out unless it is named."""
    await orc(*NIGHTLY)
    await orc("add", "poll", "fetch", "--every", "1h")
    shown = await orc("next", "nightly", "-n", "3")
    heads, *rows = shown.out.splitlines()
    assert (heads.split(), len(rows)) == (["NAME", "IN", "UTC", "LOCAL", "ZONE"], 3)
    assert all(" 02:30:00 +0" in row and row.endswith("Europe/Berlin") for row in rows)
    times = [
        datetime.fromisoformat(json.loads(line)["at"])
        for line in (await orc("next", "nightly", "-o", "jsonl")).out.splitlines()
    ]
    assert len(times) == 5
    assert times == sorted(times)
    assert min(times) > datetime.now(UTC)
    assert {f"{at.astimezone(ZoneInfo('Europe/Berlin')):%H:%M}" for at in times} == {"02:30"}
    items = json.loads((await orc("next", "-n", "30", "-o", "json")).out)["items"]
    assert {each["name"] for each in items} == {"poll", "nightly"}
    await orc("pause", "nightly")
    items = json.loads((await orc("next", "-n", "30", "-o", "json")).out)["items"]
    assert {each["name"] for each in items} == {"poll"}
    assert len((await orc("next", "nightly", "-o", "id")).out.splitlines()) == 5
    assert (await orc("next", "other")).code == 3


async def test_pause_and_resume(orc: Orc) -> None:
    """One line for each; unknown ones keep nobody from it, and show in the exit code."""
    await orc(*NIGHTLY)
    paused = await orc("pause", "nightly", "--reason", "the source is down")
    assert (paused.code, paused.out.splitlines()[1].split()) == (0, ["nightly", "paused"])
    again = await orc("pause", "nightly", "other", "-o", "json")
    assert again.code == 6
    assert [each["status"] for each in json.loads(again.out)["items"]] == ["already", "unknown"]
    assert (await orc("pause", "other")).code == 3
    assert "paused" in (await orc("list")).out
    ids = await orc("resume", "nightly", "other", "-o", "id")
    assert (ids.code, ids.out) == (6, "nightly\n")
    assert "'other' is not known" in ids.err
    assert "was not paused; fires in " in (await orc("resume", "nightly")).out


async def test_trigger(orc: Orc, team: LocalTeam) -> None:
    """It prints the id of the task that it has submitted."""
    await orc(*NIGHTLY, "-a", "n=1")
    done = await orc("trigger", "nightly", "-o", "id")
    info = await team.orc.task(done.out.strip()).info()
    assert (done.code, info.skill, json.loads(info.args)) == (0, "report", {"n": 1})
    assert "submitted task " in (await orc("trigger", "nightly")).out
    assert (await orc("trigger", "other")).code == 3
    await team.orc.admin.stop(refuse=True)
    refused = await orc("trigger", "nightly", "-o", "json")
    assert (refused.code, json.loads(refused.out)["items"][0]["status"]) == (4, "refused")


async def test_delete(orc: Orc) -> None:
    """It asks, and without a terminal needs --yes."""
    await orc(*NIGHTLY)
    refused = await orc("delete", "nightly")
    assert (refused.code, refused.out) == (4, "")
    assert "cannot ask for confirmation to delete 1 schedule: nightly" in refused.err
    done = await orc("delete", "nightly", "other", "--yes")
    assert done.code == 6
    assert (await orc("list")).out == ""
    assert (await orc("delete", "nightly", "--yes")).code == 3


@pytest.mark.parametrize("given", ["high", "1"])
async def test_a_priority_has_its_name(orc: Orc, given: str) -> None:
    """`show` names the priority of a schedule's tasks, as `orc tasks show` does; JSON has what was given."""
    assert (await orc("add", "poll", "fetch", "--every", "5m", "--priority", given)).code == 0
    shown = (await orc("show", "poll")).out
    assert [line.split() for line in shown.splitlines() if line.startswith("priority")] == [["priority", "high"]]
