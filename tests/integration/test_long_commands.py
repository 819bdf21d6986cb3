"""No command has more words than a managed server takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import Submission
from orchestrator.agents import queries
from orchestrator.client.task_actions import cancel_tasks
from orchestrator.store import links, paging, wire
from orchestrator.views.tasks import list_tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.store.calls import Argument
    from tests.helpers.local_team import LocalTeam

MANY = 4_200


@pytest.fixture
def lengths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of words of each command that the program sends from now on."""
    found: list[int] = []
    pack = wire.pack

    def noting(command: Sequence[Argument]) -> bytes:
        found.append(len(command))
        return pack(command)

    monkeypatch.setattr(links, "pack", noting)
    return found


async def test_calls_for_thousands(team: LocalTeam, lengths: list[int]) -> None:
    """Submits, cancels and lists of thousands of tasks, and reads of thousands of names, are split or packed."""
    handles = await team.orc.submit_many([Submission("nobody", {"n": n}) for n in range(MANY)])
    assert len(await list_tasks(team.services, limit=MANY)) == MANY
    await cancel_tasks(team.services, [handle.id for handle in handles], reason="test", actor="t")
    names = [f"agent-{number}" for number in range(MANY)]
    assert await queries.agents_named(team.services.store, names) == []
    assert await queries.workers_named(team.services.store, names) == []
    async with team.orc.workspace("s").edit() as ws:
        await ws.set("k-7", 1)
    found = await team.orc.workspace("s").get(*[f"k-{number}" for number in range(MANY)])
    assert [(path, entry.value) for path, entry in found.items()] == [("k-7", 1)]
    assert 1_000 < max(lengths) <= paging.MOST_WORDS


async def test_parts_keep_their_order(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replies of several commands are one list, in the order of the words."""
    monkeypatch.setattr(paging, "WORDS_AT_ONCE", 2)
    store, key = team.services.store, team.services.keys.probe
    words: list[Any] = [word for n in range(5) for word in (n, f"m{n}")]
    await store.execute("ZADD", key, *words)
    await store.execute("EXPIRE", key, 60)
    asked = [f"m{n}" for n in (4, 9, 0, 2, 1)]
    assert await paging.read_split(store, ("ZMSCORE", key), asked) == [b"4", None, b"0", b"2", b"1"]
    assert await paging.read_split(store, ("ZMSCORE", key), []) == []
