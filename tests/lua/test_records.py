"""docs/internals/data-model.md explains every field that real records have, and no field that none ever has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.agents.model import SkillVersion
from orchestrator.core.amounts import Amounts
from orchestrator.tasks.model import VerdictKind
from tests.lua.pool import Team, row
from tests.lua.scenario import play
from tests.lua.tasks.test_values_apart import large, submit

if TYPE_CHECKING:
    from tests.lua.pool import Pool

PAGE = (Path(__file__).parents[2] / "docs/internals/data-model.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """One section of the page."""
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def explained(title: str) -> set[str]:
    """The fields that the items of a section explain."""
    items = re.findall(r"^- (`[^(:]+(?::N|:NAME)?`)", section(title), re.MULTILINE)
    return {name for item in items for name in re.findall(r"`([^`]+)`", item)}


def test_fields_and_counters(pool: Pool) -> None:
    """What tasks, agents and counters hold, over a life in which everything happens once, is what the page explains."""
    task_fields: set[str] = set()
    agent_fields: set[str] = set()
    schedule_fields: set[str] = set()

    def look() -> None:
        for name, (contents, _) in pool.snapshot().items():
            fields = (
                {re.sub(r":\d+$", ":N", re.sub("^(once|effect):.*", r"\1:NAME", field.decode())) for field in contents}
                if isinstance(contents, dict)
                else set()
            )
            if ":task:" in name:
                task_fields.update(fields)
            elif name.endswith(":agent:ed"):
                agent_fields.update(fields)
            elif ":schedule:" in name:
                schedule_fields.update(fields)

    pool.register(slots=1)
    (parked,) = pool.put(row(queue="agent:ed", skill="other"))
    pool.assign()
    team = Team(skills=frozenset({"sum", "other"}), funds=(("other", (Amounts(usd=1), ())),))
    pool.register(team=team, slots=1)
    look()
    pool.cancel(parked)
    pool.register(slots=1)
    pool.put(row(start_by_ms=pool.now_ms + 500), row(priority=3))
    delivery = pool.one()
    pool.cancel(delivery.task_id)
    pool.adopt()
    pool.recover()
    look()
    pool.end(delivery, VerdictKind.RETRY)
    delivery = pool.one()
    pool.end(delivery, VerdictKind.SNOOZE, number=9)
    pool.put(row(start_by_ms=pool.now_ms))
    pool.promote()
    play(pool)
    versions = [SkillVersion("d1"), SkillVersion("d2")]
    for worker, version in zip(("old", "new"), versions, strict=True):
        pool.register(worker, Team("al", version=version))
        pool.sleep(1000)
    pool.put(row(queue="agent:al", skill="sum"))
    for delivery in pool.deliver("old", agent="al"):
        pool.refuse(delivery, versions[0])
    submit(pool, large())
    look()
    # tests/lua/backup/test_restore.py looks at records that a restore wrote.
    assert task_fields | {"restored"} == explained("Fields of a task")
    assert agent_fields == explained("Fields of an agent")
    assert schedule_fields == explained("Fields of a schedule")
    assert set(pool.stats()) == set(re.findall(r"`(\w+)`", section("Counters").partition("count ")[2]))
