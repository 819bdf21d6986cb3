"""`orc workspace` typed beside a pool: what it shows, what it changes, forms of output, exit codes."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Protocol

import anyio.to_thread
import pytest

from tests.helpers.terminal import Done, Terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.local_team import LocalTeam


class Orc(Protocol):
    """Types `orc workspace …` and answers what it did."""

    async def __call__(self, *arguments: str) -> Done:
        """Run it."""


@pytest.fixture
def orc(team: LocalTeam, tmp_path: Path) -> Orc:
    """Runs a command in a thread, while the team goes on."""
    url = team.settings.redis.url
    assert url is not None
    terminal = Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)

    async def typed(*arguments: str) -> Done:
        return await anyio.to_thread.run_sync(partial(terminal.orc, "workspace", *arguments))

    return typed


async def test_set_and_get(orc: Orc, tmp_path: Path) -> None:
    """A path is written from JSON, text or a file, under the version that is expected, and read back."""
    assert (await orc("set", "S 1", "n", "9007199254740993", "-o", "id")).out == "1\n"
    assert (await orc("set", "S 1", "text", "plain words")).code == 0
    (tmp_path / "v.json").write_text('{"a":[]}')
    assert (await orc("set", "S 1", "doc", f"@{tmp_path / 'v.json'}")).code == 0
    assert (await orc("get", "S 1", "n")).out == "9007199254740993\n"
    assert (await orc("get", "S 1", "doc")).out == '{"a":[]}\n'
    listed = json.loads((await orc("get", "S 1", "-o", "json")).out)["items"]
    assert [(row["path"], row["version"], row["value"]) for row in listed] == [
        ("doc", 1, {"a": []}),
        ("n", 1, 9007199254740993),
        ("text", 1, "plain words"),
    ]
    assert "plain words" in (await orc("get", "S 1")).out
    refused = await orc("set", "S 1", "n", "2", "--if-version", "7")
    assert (refused.code, "has version 1, not 7" in refused.err) == (4, True)
    assert (await orc("set", "S 1", "n", "--delete")).code == 0
    missing = await orc("get", "S 1", "n")
    assert (missing.code, "has no 'n'" in missing.err) == (3, True)


async def test_log_events_export(team: LocalTeam, orc: Orc) -> None:
    """Logs, events and the whole are shown as people read them, and as programs do."""
    async with team.orc.workspace("101").edit(agent="ada") as ws:
        await ws.append("findings", "one", {"n": 2}, "\x1b[31mred")
        await ws.set("title", "old")
        await ws.patch({"title": "new", "large": "x" * 9000})
        await ws.transition("job", to="open")
        await ws.join()
        await ws.direct("bob", "STOP")
    shown = await orc("log", "101", "findings", "--after", "1")
    assert "2" in shown.out
    assert "\x1b" not in shown.out
    rows = [
        json.loads(line) for line in (await orc("log", "101", "findings", "-n", "2", "-o", "jsonl")).out.splitlines()
    ]
    assert [(row["number"], row["agent"], row["value"]) for row in rows] == [
        (2, "ada", {"n": 2}),
        (3, "ada", "\x1b[31mred"),
    ]
    lines = (await orc("events", "101")).out.splitlines()
    assert [line[9:] for line in lines[1:]] == [
        '    2 patch by ada: title = "old"',
        '    3 patch by ada: title = "new", was "old"; large = (a large value)',
        "    4 transition by ada: job - -> open",
        "    5 join by ada: ada joined",
        "    6 direct by ada: bob STOP null",
    ]
    ids = (await orc("events", "101", "-o", "id")).out.split()
    later = json.loads((await orc("events", "101", "--after", ids[3], "-o", "json")).out)["items"]
    assert [event["revision"] for event in later] == [5, 6]
    exported = json.loads((await orc("export", "101")).out)
    assert (exported["paths"]["title"]["value"], exported["agents"][0]["agent"]) == ("new", "ada")
    assert (await orc("log", "101", "nothing")).code == 0
