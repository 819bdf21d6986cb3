"""Reads the rate limits page by page, and the locks of one scope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orchestrator.agents import queries
from orchestrator.core.errors import NotFound
from orchestrator.core.rates import ANY_STARTS
from orchestrator.core.reading import read_text, read_whole
from orchestrator.core.slots import hold_slot, limit_slot
from orchestrator.locks import scripts
from orchestrator.locks.model import parse_scope
from orchestrator.views.active_commands import desired_reads, of_slots, parse_desired
from orchestrator.views.paging import MOST_NAMES, cut, read_beside, read_together
from orchestrator.views.providers import provider_reads, provider_views, read_limits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.limits.providers import ProviderLimit
    from orchestrator.locks.model import LockInfo
    from orchestrator.services import Services
    from orchestrator.store.calls import Argument
    from orchestrator.views.active_commands import ActiveCommandView
    from orchestrator.views.providers import ProviderView

LIMITS: Final = 50
MOST_PROVIDERS: Final = 2000
"""Providers that a page looks at; `lua/limits/take.lua` lists about 1000."""
LOCKS: Final = 100
"""Locks of a scope that a page shows: those that lapse first."""


@dataclass(frozen=True, slots=True)
class LimitRow:
    """A rate limit.

    Attributes:
        limit: its name; `@AGENT` is an agent's own limit.
        rate: the rate that applies; None if its definition cannot be read.
        defined: the rate that a reset restores, if another one applies.
        starts: starts in its last windows that Redis still has, at least those of the current one.
        provider: the limits of the calls of a provider that workers have called.
    """

    limit: str
    rate: str | None
    defined: str | None
    starts: int
    active_commands: tuple[ActiveCommandView, ...]
    provider: ProviderView | None = None


@dataclass(frozen=True, slots=True)
class LimitPage:
    """A part of the limits by name; the fields are those of `NamePage`."""

    limits: tuple[LimitRow, ...]
    cursor: str | None
    looked: int
    more: bool


async def page_limits(
    services: Services, *, after: str | None = None, starts: str = "", limit: int = LIMITS
) -> LimitPage:
    """Read the limits behind the cursor `after` whose names begin with `starts`."""
    keys = services.store.keys
    fields, listed, *desired = await read_together(
        services,
        [
            ("HRANDFIELD", keys.limits, MOST_NAMES),
            ("HRANDFIELD", keys.providers, MOST_PROVIDERS, "WITHVALUES"),
            *desired_reads(services),
        ],
    )
    names, providers = [read_text(name) for name in fields or ()], read_limits(listed or ())
    wanted = {name for name in names if not name.startswith("=")} | providers.keys()
    page = cut([name for name in wanted if name.startswith(starts)], after=after, limit=limit)
    rows = await read_limit_rows(services, page.names, providers, desired)
    more = len(names) >= MOST_NAMES or len(listed or ()) >= 2 * MOST_PROVIDERS
    return LimitPage(tuple(rows), page.cursor, page.looked, more)


async def read_limit_rows(
    services: Services, names: Sequence[str], providers: Mapping[str, ProviderLimit], desired: Sequence[Any]
) -> list[LimitRow]:
    """Read limits by name, with the replies to `desired_reads`; one round trip."""
    keys, now, now_us = services.keys, parse_desired(services, *desired), time_us(desired[-1])
    called = {name: providers[name] for name in names if name in providers}
    commands: list[Sequence[Argument]] = []
    for name in names:
        commands += [("HMGET", keys.limits, name, f"={name}"), ("ZCARD", keys.limit(name))]
    reads = provider_reads(keys, called, now_us=now_us)
    replies, of_providers = await read_beside(services, commands, reads) if names else ([], [])
    views = provider_views(called, of_providers, now_us=now_us)
    rows = []
    for at, name in enumerate(names):
        rates, count = replies[2 * at : 2 * at + 2]
        rate, defined = map(queries.rate_text, rates or (None, None))
        if rates is not None and rates[0] is None:
            rate = str(ANY_STARTS)  # agents that call a provider need not have its limit
        commands_of = of_slots(now, limit_slot(name), hold_slot("limit", name))
        changed = limit_slot(name) in now.active
        rows.append(LimitRow(name, rate, defined if changed else None, count or 0, commands_of, views.get(name)))
    return rows


def time_us(reply: Sequence[bytes]) -> int:
    """Return the reply to TIME in microseconds."""
    return read_whole(reply[0]) * 1_000_000 + read_whole(reply[1])


async def read_locks(services: Services, scope: str) -> list[LockInfo]:
    """Read the held locks of a scope, those that lapse first in front, at most `LOCKS`.

    Raises:
        InvalidInput: that is no scope.
    """
    keys = parse_scope(scope, prefix=services.keys.prefix, pool=services.keys.pool)
    return await services.store.call(scripts.peek(keys, limit=LOCKS))


async def find_held_lock(services: Services, scope: str, at: str, nonce: str) -> LockInfo:
    """Return a lock if it is still of the ownership that a page showed.

    Raises:
        InvalidInput: that is no scope.
        NotFound: that ownership has ended.
    """
    keys = parse_scope(scope, prefix=services.keys.prefix, pool=services.keys.pool)
    for lock in await services.store.call(scripts.peek(keys, lock=at)):
        if lock.nonce and lock.nonce == nonce:
            return lock
    raise NotFound(f"the lock of {scope} has another holder by now; nothing was changed")
