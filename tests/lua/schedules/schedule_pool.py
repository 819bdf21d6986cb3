"""Schedules for script tests: short calls with the wrappers behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from orchestrator.schedules import scripts
from orchestrator.schedules.scripts import Due, PutStatus, SkipRow, SkipStatus, SwitchStatus
from orchestrator.tasks import scripts as tasks
from orchestrator.tasks.scripts import ScheduledFire, UnusualRow
from tests.lua.pool import Row, row

if TYPE_CHECKING:
    from orchestrator.schedules.model import FireOutcome
    from tests.lua.pool import Pool

PLAN = b'{"skill":"sum","args":{},"every_ms":1000}'


@dataclass(frozen=True)
class SchedulePool:
    """The schedules of one pool."""

    pool: Pool

    def put(
        self,
        name: str = "n",
        *,
        at: int | str,
        plan: bytes = PLAN,
        digest: str = "d1",
        before: str = "",
        anchor: int = 0,
    ) -> PutStatus:
        """Run put; `at` is the next fire time."""
        keys = self.pool.keys
        return self.pool.call(
            scripts.put(keys, name=name, plan=plan, digest=digest, before=before, next_ms=str(at), anchor_ms=anchor)
        )

    def pause(self, name: str = "n") -> SwitchStatus:
        """Run pause."""
        return self.pool.call(scripts.pause(self.pool.keys, name=name))

    def resume(self, name: str = "n", *, at: int | str, before: str = "d1") -> SwitchStatus:
        """Run resume."""
        return self.pool.call(scripts.resume(self.pool.keys, name=name, before=before, next_ms=str(at)))

    def delete(self, name: str = "n") -> bool:
        """Run delete."""
        return self.pool.call(scripts.delete(self.pool.keys, name=name))

    def due(self, *excluded: str, limit: int = 100) -> Due:
        """Run due."""
        return self.pool.call(scripts.due(self.pool.keys, excluded=excluded, limit=limit))

    def names(self, *excluded: str, limit: int = 100) -> list[str]:
        """What is due, by name."""
        return [each.name for each in self.due(*excluded, limit=limit).schedules]

    def fire(
        self,
        task: Row,
        *,
        due: int | str,
        name: str = "n",
        fired: int | None = None,
        following: int | str,
        missed: int = 0,
    ) -> tuple[str, str]:
        """Submit a task as a fire; status and detail."""
        sent = task.sent()
        unusual = sent if isinstance(sent, UnusualRow) else UnusualRow(sent.id, sent.envelope)
        fire = ScheduledFire(name, str(due), str(fired if fired is not None else due), str(following), missed)
        call = tasks.submit(self.pool.keys, rows=[replace(unusual, fire=fire)], max_tasks=self.cap, max_wait_s=1000)
        (answer,) = self.pool.call(call)
        return answer.status, answer.detail

    cap: int = 1000

    def skip(
        self, outcome: FireOutcome, *, due: int, following: int | str, missed: int = 0, error: str = ""
    ) -> SkipStatus:
        """Run skip for one fire time."""
        made = SkipRow("n", str(due), str(following), missed, outcome, error)
        return self.pool.call(scripts.skip(self.pool.keys, rows=[made]))[0]

    def repair(self, *names: str, repair: bool = True) -> list[str]:
        """Run repair; the codes."""
        rows = [name.encode() for name in names]
        found = self.pool.call(scripts.repair(self.pool.keys, rows=rows, repair=repair))
        assert all(repaired is repair for _, _, repaired in found)
        return [code for _, code, _ in found]

    def record(self, name: str = "n") -> dict[str, str]:
        """The stored fields."""
        found = self.pool.execute("HGETALL", self.pool.keys.schedule(name))
        pairs = found.items() if isinstance(found, dict) else zip(found[::2], found[1::2], strict=True)
        return {field.decode(): value.decode() for field, value in pairs}

    def scores(self) -> dict[str, str]:
        """The index: when each is to be looked at."""
        found = self.pool.execute("ZRANGE", self.pool.keys.schedules, 0, -1, "WITHSCORES")
        return {name.decode(): score.decode() for name, score in zip(found[::2], found[1::2], strict=True)}


def task(**fields: object) -> Row:
    """A task to fire."""
    return row(**fields)  # type: ignore[arg-type]  # any field of a row
