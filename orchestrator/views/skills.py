"""Reads the skills of a pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.agents import skills
from orchestrator.core.slots import STOP_ALL, pause_slot, stop_slot
from orchestrator.views.active_commands import of_slots, read_desired
from orchestrator.views.paging import LIMIT

if TYPE_CHECKING:
    from orchestrator.agents.skills import SkillInfo, SkillSummary
    from orchestrator.services import Services
    from orchestrator.views.active_commands import ActiveCommandView


@dataclass(frozen=True, slots=True)
class SkillList:
    """Skills by name.

    Attributes:
        total: how many there are, including those beyond the limit.
    """

    skills: tuple[SkillSummary, ...]
    total: int


@dataclass(frozen=True, slots=True)
class SkillView:
    """A skill, with the active commands that affect it."""

    skill: SkillInfo
    active_commands: tuple[ActiveCommandView, ...]


async def list_skills(services: Services, *, limit: int = LIMIT) -> SkillList:
    """Read the skills of the live agents; at most `limit`."""
    found = await skills.list_skills(services.store)
    return SkillList(tuple(found[:limit]), len(found))


async def list_latest(services: Services, *, agents: int, limit: int) -> tuple[tuple[SkillSummary, ...], bool]:
    """Read skills of the agents with the latest heartbeats, at most `limit`, and whether there may be more."""
    found, more = await skills.list_latest_skills(services.store, agents=agents, limit=limit)
    return tuple(found), more


async def find_skill(services: Services, name: str) -> SkillInfo | None:
    """Read one skill; None if no worker of the last week has it."""
    return await skills.find_skill(services.store, name)


async def read_skill(services: Services, name: str) -> SkillView:
    """Read one skill.

    Raises:
        NotFound: no worker of the last week has it.
    """
    found = await skills.read_skill(services.store, name)
    slots = (STOP_ALL, stop_slot("skill", name), pause_slot("skill", name))
    return SkillView(found, of_slots(await read_desired(services), *slots))
