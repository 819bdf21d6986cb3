"""Reads the rate limits of a pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.agents import queries
from orchestrator.core.slots import hold_slot, limit_slot
from orchestrator.views.active_commands import of_slots, read_desired
from orchestrator.views.paging import LIMIT
from orchestrator.views.queues import SERVING

if TYPE_CHECKING:
    from orchestrator.services import Services
    from orchestrator.views.active_commands import ActiveCommandView


@dataclass(frozen=True, slots=True)
class LimitView:
    """A rate limit.

    Attributes:
        limit: its name; @AGENT is an agent's own limit.
        rate: the rate that applies, as `10/min`.
        defined: the rate that a reset restores, or None if none is defined.
        agents: the first `SERVING` agents that have the limit, by name.
        bound: number of agents that have it.
    """

    limit: str
    rate: str
    defined: str | None
    agents: tuple[str, ...]
    bound: int
    active_commands: tuple[ActiveCommandView, ...]


@dataclass(frozen=True, slots=True)
class LimitList:
    """Rate limits by name.

    Attributes:
        total: how many there are, including those beyond the limit.
    """

    limits: tuple[LimitView, ...]
    total: int


async def list_limits(services: Services, *, limit: int = LIMIT) -> LimitList:
    """Read at most `limit` rate limits."""
    now = await read_desired(services)
    rates = await queries.limits(services.store)
    bound = await queries.limited(services.store)

    def view(name: str) -> LimitView:
        found = of_slots(now, limit_slot(name), hold_slot("limit", name))
        defined = rates.get(f"={name}") if limit_slot(name) in now.active else rates[name]
        names = bound.get(name, ())
        return LimitView(name, rates[name], defined, tuple(names[:SERVING]), len(names), found)

    names = sorted(name for name in rates if not name.startswith("="))
    return LimitList(tuple(view(name) for name in names[:limit]), len(names))
