"""`memory.preview_forget`, `forget` and `supersede`: what was shown is what is removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator import InvalidInput, NotFound, Record, RecordFilter
from orchestrator.testing.waiting import wait_for

if TYPE_CHECKING:
    from orchestrator import Memory
    from tests.helpers.local_team import LocalTeam

FILTERS: dict[str, tuple[RecordFilter, set[str]]] = {
    "all": (RecordFilter(), {"s1", "s2", "s3", "i4", "i5"}),
    "ids": (RecordFilter(ids=("s1", "i4", "none")), {"s1", "i4"}),
    "kinds": (RecordFilter(kinds=("plan",)), {"s2", "i5"}),
    "actions": (RecordFilter(actions=("go",)), {"s1"}),
    "steps": (RecordFilter(since=2, until=4), {"s2", "s3", "i4"}),
    "importance": (RecordFilter(below=3.0), {"s1", "s2"}),
    "subject": (RecordFilter(subject="eve"), {"s3", "i5"}),
    "tier": (RecordFilter(tiers=("im",)), {"i4", "i5"}),
    "age": (RecordFilter(older_than=3600), set()),
    "both": (RecordFilter(kinds=("plan", "note"), subject="eve", since=4), {"i5"}),
}


async def _fill(team: LocalTeam, agent: str = "ada") -> None:
    memory = team.orc.memory(agent)
    for step, (name, kind, subject) in enumerate(
        [
            ("s1", "note", None),
            ("s2", "plan", None),
            ("s3", "note", "eve"),
            ("i4", "note", None),
            ("i5", "plan", "eve"),
        ],
        start=1,
    ):
        action = "go" if step == 1 else None
        record = Record(step=step, kind=kind, content=name, id=name, importance=step, subject=subject, action=action)
        await memory.store(record, tier="im" if name.startswith("i") else "stm")


async def test_filters(team: LocalTeam) -> None:
    """Each condition selects what it says, in both tiers; the rest stays."""
    for name, (wanted, expected) in FILTERS.items():
        memory = team.orc.memory(name)
        await _fill(team, name)
        preview = await memory.preview_forget(wanted)
        assert ({record.id for record in preview.examples}, preview.more) == (expected, False), name
        assert (await memory.forget(preview)).count == preview.count == len(expected)
        assert {record.id for record in await memory.recent(100)} == {"s1", "s2", "s3", "i4", "i5"} - expected


async def test_what_was_shown_is_removed(team: LocalTeam) -> None:
    """A record that comes later stays, as does one that has changed; a repeat returns the same."""
    memory = team.orc.memory("ada")
    await _fill(team)
    await memory.supersede("s1", "s2")
    preview = await memory.preview_forget(RecordFilter(kinds=("note",)))
    assert preview.count == 3
    await memory.store(Record(step=9, kind="note", content=1, id="later"))
    await memory.update("s3", importance=9.0)
    await memory.delete("i4")
    first = await memory.forget(preview)
    assert (first.count, first.missing, first.changed) == (1, 1, ("s3",))
    assert await memory.forget(preview) == first
    assert {record.id for record in await memory.recent()} == {"later", "s2", "s3", "i5"}
    assert await memory.get("s1") == [None]


async def test_a_large_selection(team: LocalTeam) -> None:
    """More than a page; a limit is kept and said."""
    memory = team.orc.memory("ada")
    await memory.store_many([Record(step=n, kind="note", content=n) for n in range(700)])
    preview = await memory.preview_forget(RecordFilter(), limit=550)
    assert (preview.count, len(preview.examples), preview.more) == (550, 10, True)
    assert (await memory.forget(preview)).count == 550
    done = await memory.forget(RecordFilter())
    assert (done.count, done.more) == (150, False)


async def test_refusals(team: LocalTeam) -> None:
    """Conditions that are none, a selection that has expired, records that cannot replace each other."""
    memory = team.orc.memory("ada")
    await _fill(team)
    for wanted in (
        RecordFilter(since=2**50), RecordFilter(below=float("nan")), RecordFilter(tiers=()),
        RecordFilter(ids="s1"), RecordFilter(kinds="note"), RecordFilter(actions="go"),  # type: ignore[arg-type]
    ):  # fmt: skip
        with pytest.raises(InvalidInput):
            await memory.forget(wanted)
    preview = await memory.preview_forget(RecordFilter())
    await team.services.store.execute("DEL", memory._scope.keys.key(f"forget:{preview.id}"))
    with pytest.raises(NotFound, match="expired"):
        await memory.forget(preview)
    with pytest.raises(InvalidInput, match="itself"):
        await memory.supersede("s1", "s1")
    with pytest.raises(NotFound, match="'none'"):
        await memory.supersede("s1", "none")
    await memory.supersede("s1", "s2")
    with pytest.raises(InvalidInput, match="name that one"):
        await memory.supersede("s3", "s1")
    (replaced,) = await memory.get("s1")
    assert replaced is not None
    assert replaced.superseded_by == "s2"
    assert (await memory.supersede("s1", None)).version == 3
    assert "s1" in {record.id for record in await memory.recent()}


async def test_expired_records_are_not_selected(team: LocalTeam) -> None:
    """A record that has expired, and is not removed yet, counts for no selection."""
    memory = team.orc.memory("ada")
    await memory.store(Record(id="old", step=1, kind="note", content=1, ttl=0.05))
    await memory.store(Record(id="new", step=1, kind="note", content=2))
    await wait_for(lambda: expired(memory), "the end of the record", 5)
    assert (await memory.stats()).stm.records == 2
    assert (await memory.preview_forget(RecordFilter())).count == 1


async def expired(memory: Memory) -> bool:
    """Return whether the record is no longer read."""
    return await memory.get("old") == [None]
