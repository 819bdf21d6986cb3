"""Reads the rate limits of a pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.agents import queries
from orchestrator.core.rates import ANY_STARTS
from orchestrator.core.slots import hold_slot, limit_slot
from orchestrator.views.active_commands import of_slots, read_desired
from orchestrator.views.paging import LIMIT
from orchestrator.views.providers import read_providers
from orchestrator.views.queues import SERVING

if TYPE_CHECKING:
    from orchestrator.services import Services
    from orchestrator.views.active_commands import ActiveCommandView
    from orchestrator.views.providers import ProviderView


@dataclass(frozen=True, slots=True)
class LimitView:
    """A rate limit.

    Attributes:
        limit: its name; @AGENT is an agent's own limit.
        rate: the rate that applies, as `10/min`; `any` of a provider that limits no starts.
        defined: the rate that a reset restores, or None if none is defined.
        agents: the first `SERVING` agents that have the limit, by name.
        bound: number of agents that have it.
        provider: the limits of the calls of a provider that workers have called.
    """

    limit: str
    rate: str
    defined: str | None
    agents: tuple[str, ...]
    bound: int
    active_commands: tuple[ActiveCommandView, ...]
    provider: ProviderView | None = None


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
    providers = await read_providers(services)

    def view(name: str) -> LimitView:
        found = of_slots(now, limit_slot(name), hold_slot("limit", name))
        # Agents that call a provider need not have its limit.
        rate = rates.get(name, str(ANY_STARTS))
        defined = rates.get(f"={name}") if limit_slot(name) in now.active else rate
        names = bound.get(name, ())
        return LimitView(name, rate, defined, tuple(names[:SERVING]), len(names), found, providers.get(name))

    names = sorted({name for name in rates if not name.startswith("=")} | providers.keys())
    return LimitList(tuple(view(name) for name in names[:limit]), len(names))
