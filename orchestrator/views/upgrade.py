"""Reads the state of an upgrade: the programs of a pool, and the features that wait for its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.agents.programs import read_programs
from orchestrator.core.formats import FORMAT, Feature, program_version

if TYPE_CHECKING:
    from orchestrator.agents.programs import Program
    from orchestrator.services import Services


@dataclass(frozen=True, slots=True)
class UpgradeView:
    """The state of an upgrade.

    Attributes:
        floor: the lowest format that the pool admits.
        format: the format of this program, to which `orc upgrade finish` raises the floor.
        version: of this program.
        programs: supervisors, workers and clients.
        connections_known: False if the Redis user may not list connections, so that some programs are unknown.
        waiting: labels of the features that wait for a higher floor.
    """

    floor: int
    format: int
    version: str
    programs: tuple[Program, ...]
    connections_known: bool
    waiting: tuple[str, ...]


async def read_upgrade(services: Services) -> UpgradeView:
    """Read the programs of the pool and what waits until the older ones are gone."""
    found = await read_programs(services.store)
    waiting = tuple(feature.label for feature in Feature if feature.floor > found.floor)
    return UpgradeView(found.floor, FORMAT, program_version(), found.programs, found.connections_known, waiting)
