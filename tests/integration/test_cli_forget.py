"""`orc memory forget` and `orc erase` typed beside a pool."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio.to_thread
import pytest

from orchestrator import Message, Record, SqliteStore
from tests.helpers.terminal import Done, Terminal
from tests.helpers.text_scan import keys_with

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.local_team import LocalTeam

PLANTED = "planted7x"


@pytest.fixture
def terminal(team: LocalTeam, tmp_path: Path) -> Terminal:
    """A terminal in which the pool of the team is named."""
    url = team.settings.redis.url
    assert url is not None
    return Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)


async def _orc(terminal: Terminal, *arguments: str) -> Done:
    return await anyio.to_thread.run_sync(partial(terminal.orc, *arguments))


async def test_memory_forget(team: LocalTeam, terminal: Terminal) -> None:
    """A dry run shows, a missing confirmation refuses, --yes removes what matches and nothing else."""
    memory = team.orc.memory("ada")
    await memory.store_many([Record(step=n, kind="note", content=n, id=f"r{n}", importance=n / 10) for n in range(12)])
    shown = await _orc(terminal, "memory", "forget", "ada", "--below", "0.35", "--dry-run")
    assert (shown.code, shown.out.count("note")) == (0, 4), shown.err
    shown = await _orc(terminal, "memory", "forget", "ada", "--kind", "note", "--dry-run", "-o", "id")
    assert len(shown.out.split()) == 10
    assert "10 of 12 records" in shown.err
    assert (await _orc(terminal, "memory", "forget", "ada", "--below", "0.35")).code == 4
    assert len(await memory.recent(50)) == 12
    done = await _orc(terminal, "memory", "forget", "ada", "--below", "0.35", "--from", "1", "--yes")
    assert (done.code, done.out) == (0, "removed 3 records of agent 'ada'\n")
    assert (await _orc(terminal, "memory", "forget", "ada", "--kind", "plan", "--yes")).code == 3
    assert (await _orc(terminal, "memory", "forget", "ada", "--yes")).code == 2
    assert (await _orc(terminal, "memory", "forget", "ada", "--all", "--kind", "note", "--yes")).code == 2
    assert (await _orc(terminal, "memory", "forget", "ada", "--all", "--yes")).code == 0
    assert await memory.recent() == []


async def test_erase(team: LocalTeam, terminal: Terminal, tmp_path: Path) -> None:
    """Places are shown, a missing confirmation refuses, --yes erases with copies; the record says who asked."""
    await team.orc.memory("ada").store(Record(step=1, kind="note", content=PLANTED, subject="eve"))
    async with SqliteStore(tmp_path / "copies.db") as store:
        chat = team.orc.chat("s1").kept_in(store)
        await chat.append([Message({"content": PLANTED}, subject="eve")])
    shown = await _orc(terminal, "erase", "eve", "--asked-by", "ticket 7", "--dry-run", "-o", "id")
    assert sorted(shown.out.splitlines()) == ["agent 'ada'", "chat 'main' of session 's1'"]
    assert (await _orc(terminal, "erase", "eve", "--asked-by", "ticket 7")).code == 4
    assert (await _orc(terminal, "erase", "eve", "--yes")).code == 2
    assert (await _orc(terminal, "erase", "eve", "--asked-by", "eve", "--yes")).code == 2
    assert keys_with(team.settings, PLANTED)
    copies = str(tmp_path / "copies.db")
    assert (await _orc(terminal, "erase", "eve", "--asked-by", "x", "--sqlite", f"{copies}x", "--yes")).code == 2
    done = await _orc(terminal, "erase", "eve", "--asked-by", "ticket 7", "--sqlite", copies, "--yes")
    assert (done.code, done.out) == (0, "erased 1 records, 1 messages, 1 copies\n")
    assert keys_with(team.settings, PLANTED) == []
    listed = await _orc(terminal, "control", "list", "-o", "json")
    assert "asked_by=ticket 7" in listed.out
    assert '"eve"' not in listed.out
    again = await _orc(terminal, "erase", "eve", "--asked-by", "ticket 7", "--yes", "-o", "json")
    assert '"left":[]' in again.out.replace(" ", "").replace("\n", "")


async def test_what_is_left(team: LocalTeam, terminal: Terminal) -> None:
    """A task that has not ended is named, with an exit code of its own."""
    await team.orc.subjects.assign("eve", session="s1")
    await team.orc.submit("unserved", session="s1")
    done = await _orc(terminal, "erase", "eve", "--asked-by", "ticket 7", "--yes")
    assert done.code == 6
    assert "have not ended" in done.err
