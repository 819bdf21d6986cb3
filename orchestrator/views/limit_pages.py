"""Reads the rate limits page by page, and the locks of one scope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.agents import queries
from orchestrator.core.errors import NotFound
from orchestrator.core.reading import read_text
from orchestrator.core.slots import hold_slot, limit_slot
from orchestrator.locks import scripts
from orchestrator.locks.model import parse_scope
from orchestrator.views.active_commands import desired_reads, of_slots, parse_desired
from orchestrator.views.paging import MOST_NAMES, cut, read_together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.locks.model import LockInfo
    from orchestrator.services import Services
    from orchestrator.store.calls import Argument
    from orchestrator.views.active_commands import ActiveCommandView

LIMITS: Final = 50
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
    """

    limit: str
    rate: str | None
    defined: str | None
    starts: int
    active_commands: tuple[ActiveCommandView, ...]


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
    fields, *desired = await read_together(
        services, [("HRANDFIELD", keys.limits, MOST_NAMES), *desired_reads(services)]
    )
    now, names = parse_desired(services, *desired), [read_text(name) for name in fields or ()]
    wanted = [name for name in names if not name.startswith("=") and name.startswith(starts)]
    page = cut(wanted, after=after, limit=limit)
    commands: list[Sequence[Argument]] = []
    for name in page.names:
        commands += [("HMGET", keys.limits, name, f"={name}"), ("ZCARD", keys.limit(name))]
    replies = await read_together(services, commands)
    rows = []
    for name, rates, count in zip(page.names, replies[::2], replies[1::2], strict=True):
        rate, defined = map(queries.rate_text, rates or (None, None))
        commands_of = of_slots(now, limit_slot(name), hold_slot("limit", name))
        changed = limit_slot(name) in now.active
        rows.append(LimitRow(name, rate, defined if changed else None, count or 0, commands_of))
    return LimitPage(tuple(rows), page.cursor, page.looked, len(names) >= MOST_NAMES)


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
