"""Reads the newest dead letters in groups: same skill, and same first line of the error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.core.durations import from_instant_ms
from orchestrator.tasks import scripts
from orchestrator.tasks.selecting import error_line

if TYPE_CHECKING:
    from datetime import datetime

    from orchestrator.services import Services
    from orchestrator.tasks.scripts import DeadLine

LOOKED: Final = 1000
"""Dead letters that are grouped: the newest ones."""
GROUPS: Final = 100


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead letters of one skill with the same first line of the error, without its numbers and ids.

    Attributes:
        example: the newest of them.
    """

    skill: str
    line: str
    tasks: int
    oldest: datetime
    newest: datetime
    example: str


@dataclass(frozen=True, slots=True)
class DeadGroups:
    """Groups of dead letters, largest first.

    Attributes:
        groups: at most `GROUPS`.
        found: number of groups.
        looked: dead letters that were looked at, the newest ones.
        total: all dead letters.
    """

    groups: tuple[DeadGroup, ...]
    found: int
    looked: int
    total: int


async def read_dead_groups(services: Services, *, skill: str | None = None) -> DeadGroups:
    """Read the groups of the newest dead letters; with `skill`, those of one skill."""
    total, letters = await services.store.call(scripts.list_dead(services.store.keys, limit=LOOKED))
    members: dict[tuple[str, str], list[DeadLine]] = {}
    for one in letters:
        if skill is None or one.skill == skill:
            members.setdefault((one.skill, error_line(one.line)), []).append(one)
    groups = sorted(
        (_group(name, line, alike) for (name, line), alike in members.items()),
        key=lambda group: (-group.tasks, group.skill, group.line),
    )
    return DeadGroups(tuple(groups[:GROUPS]), len(groups), len(letters), total)


async def read_dead_group(services: Services, skill: str, line: str) -> list[str]:
    """Return the ids of the dead letters of a group among the newest ones, newest first."""
    _, letters = await services.store.call(scripts.list_dead(services.store.keys, limit=LOOKED))
    return [one.id for one in letters if one.skill == skill and error_line(one.line) == line]


def _group(skill: str, line: str, alike: list[DeadLine]) -> DeadGroup:
    newest, oldest = alike[0], alike[-1]
    return DeadGroup(
        skill, line, len(alike), from_instant_ms(oldest.ended_ms), from_instant_ms(newest.ended_ms), newest.id
    )
