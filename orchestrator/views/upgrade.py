"""Reads the state of an upgrade: the programs of a pool, and the features that wait for its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.agents.programs import read_programs
from orchestrator.core.formats import FORMAT, Feature, program_version
from orchestrator.core.live_settings import LiveSettings
from orchestrator.repair.servers import each_server
from orchestrator.services import Services, pool_keys, reach_server
from orchestrator.store.store import Store

if TYPE_CHECKING:
    from orchestrator.agents.programs import Program
    from orchestrator.core.settings import Settings


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


async def load_scripts(settings: Settings) -> int:
    """Load all scripts of this version at each server, and return how many were missing. Uses no key.

    Raises:
        StoreError: Redis does not answer, or refuses.
    """
    with reach_server(settings) as where:
        async with Store(where, pool_keys(settings), name="loader") as store:
            services = Services(LiveSettings.of(settings), where, store.keys, store)
            async with each_server(services) as stores:
                return sum([await one.load_scripts(every=True) for one in stores])


async def read_upgrade(services: Services) -> UpgradeView:
    """Read the programs of the pool and what waits until the older ones are gone."""
    found = await read_programs(services.store)
    waiting = tuple(feature.label for feature in Feature if feature.floor > found.floor)
    return UpgradeView(found.floor, FORMAT, program_version(), found.programs, found.connections_known, waiting)
