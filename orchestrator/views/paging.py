"""Limits the length of lists, and cuts lists of names into pages."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import InvalidInput, ServerUnavailable
from orchestrator.core.reading import read_text, readable
from orchestrator.store.failures import GroupMissing

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import Any

    from orchestrator.services import Services
    from orchestrator.store.calls import Argument

LIMIT: Final = 1000
"""Agents, workers, queues, tasks or sessions that a view returns unless the caller asks for more."""
MOST_NAMES: Final = 5000
"""Names that a page is cut from. Heartbeats move agents and workers all the time, so that pages go by name."""


@dataclass(frozen=True, slots=True)
class NamePage:
    """A page of a list by name.

    Attributes:
        names: of this page.
        cursor: the last of them if more follow, else None.
        looked: number of names that the page was cut from.
        more: there are perhaps more names than these.
    """

    names: tuple[str, ...]
    cursor: str | None
    looked: int
    more: bool


def cut(names: Collection[str], *, after: str | None, limit: int, most: int = MOST_NAMES) -> NamePage:
    """Return the names behind a cursor, in their order."""
    known = sorted(names)
    first = 0 if after is None else bisect_right(known, after)
    page = tuple(known[first : first + limit])
    return NamePage(page, page[-1] if first + limit < len(known) else None, len(known), len(known) >= most)


@dataclass(frozen=True, slots=True)
class ScoredPage:
    """A page of a sorted set.

    Attributes:
        members: of this page, with their scores as Redis writes them.
        cursor: score and member of the last one if more follow, else None.
        total: size of the set.
    """

    members: tuple[tuple[str, str], ...]
    cursor: str | None
    total: int


async def page_sorted(services: Services, key: str, *, after: str | None, limit: int) -> ScoredPage:
    """Read the members of a sorted set behind a cursor: those that moved meanwhile are shown twice rather than not.

    Raises:
        InvalidInput: `after` is no cursor.
    """
    first = 0
    if after is not None:
        score, _, member = after.partition(" ")
        if not member or not is_number(score):
            raise InvalidInput(f"cursor {ascii(after)[:80]} is none of this list; begin at its first page")
        rank, present, before = await read_together(
            services, [("ZRANK", key, member), ("ZSCORE", key, member), ("ZCOUNT", key, "-inf", f"({score}")]
        )
        # A member that has moved stands elsewhere: go on at the first one with its old score.
        first = rank + 1 if rank is not None and read_text(present) == score else before or 0
    flat, total = await read_together(
        services, [("ZRANGE", key, first, first + limit - 1, "WITHSCORES"), ("ZCARD", key)]
    )
    names = [read_text(text) for text in flat or ()]
    members = tuple(zip(names[::2], names[1::2], strict=True))
    more = members and first + len(members) < (total or 0)
    return ScoredPage(members, f"{members[-1][1]} {members[-1][0]}" if more else None, total or 0)


def is_number(text: str) -> bool:
    """Return whether Redis takes a text for a score."""
    try:
        return not isnan(float(text))
    except ValueError:
        return False


async def read_together(services: Services, commands: Sequence[Sequence[Argument]]) -> list[Any]:
    """Send commands in one round trip; the reply about a key of another type, or about no group, is None.

    Raises:
        StoreError: Redis did not answer.
    """
    replies = await services.store.pipeline(commands) if commands else []
    return [_readable(reply) for reply in replies]


async def read_beside(
    services: Services, commands: Sequence[Sequence[Argument]], others: Sequence[Sequence[Argument]]
) -> tuple[list[Any], list[Any]]:
    """Send commands to the pool, and others to scopes, in one round trip; return the replies to both.

    In a cluster a scope may be on another server. If that does not answer, its replies are the errors. Otherwise the
    replies are as those of `read_together`.

    Args:
        services: of the pool.
        commands: at least one, because a pipeline fails as a whole if the first server does not answer.
        others: commands with keys of scopes.

    Raises:
        StoreError: the server of the pool did not answer.
    """
    assert commands
    replies = await services.store.pipeline([*commands, *others])
    own, theirs = replies[: len(commands)], replies[len(commands) :]
    apart = [reply if isinstance(reply, ServerUnavailable) else _readable(reply) for reply in theirs]
    return [_readable(reply) for reply in own], apart


def _readable(reply: Any) -> Any:
    return None if isinstance(reply, GroupMissing) else readable(reply, None)
