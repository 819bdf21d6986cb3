"""Checks rate limits by name, by the server's clock. No window holds more than the limit; refused calls do not count.

A limit adds up the costs of each 64th of its window. What is older than the window leaves with the rest of its 64th.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.core.durations import Duration, to_ms
from orchestrator.core.errors import InvalidInput
from orchestrator.core.formats import Feature
from orchestrator.limits import scripts
from orchestrator.store.keys import ScopeKeys
from orchestrator.store.scoped import OpIds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.store.store import Store

PROFILES: Final[Mapping[str, tuple[int, float]]] = {
    "tasks": (10, 60.0),
    "hooks": (20, 3600.0),
    "chat": (10, 60.0),
    "api": (60, 60.0),
}
"""Usual limits, as number per seconds: tasks, hooks and chat messages of an agent; requests to an API."""
MAX_LIMIT: Final = 2**53
"""Largest limit and cost. Numbers in scripts are doubles, which are exact up to here."""
UNITS_COST: Final = 500
UNITS_LIMIT: Final = 100_000
"""Largest cost and limit while the pool admits programs that store a member per unit of the cost."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Result of a check.

    Attributes:
        allowed: whether it was within the limit; only then it was counted.
        used: number counted in the window that ends now.
        remaining: number that the limit still allows.
        retry_after: seconds until the same check may pass; 0 if it was allowed.
    """

    allowed: bool
    used: int
    remaining: int
    retry_after: float


class Limits:
    """Rate limits by name, shared by all programs with the same prefix."""

    __slots__ = ("_op_ids", "_prefix", "_retry_for_s", "_store")

    def __init__(self, store: Store, *, prefix: str, retry_for_s: float) -> None:
        self._store, self._prefix, self._retry_for_s = store, prefix, retry_for_s
        self._op_ids = OpIds()

    async def check(
        self,
        name: str,
        limit: int | None = None,
        window: Duration | None = None,
        *,
        cost: int = 1,
        profile: str | None = None,
        op_id: str | None = None,
    ) -> Decision:
        """Count an event if the limit allows it: `if not (await orc.limits.check(ip, profile="api")).allowed: ...`.

        Args:
            name: what is limited, as an agent or an address; any text of up to 200 bytes.
            limit: number of events that every window allows, at most 2^53.
            window: length of the window, seconds or timedelta.
            cost: number that this event counts for, as the tokens of a model; at most `limit`.
            profile: usual limit and window instead: `tasks` (10 a minute), `hooks` (20 an hour), `chat` (10 a minute),
                `api` (60 a minute). Each profile counts separately.
            op_id: id of the event; repeated within the window, it counts once, unless 1000 others came in between.

        Raises:
            InvalidInput: an invalid name or number, or a cost above the limit.
            UpgradeUnfinished: a limit above 100,000 or a cost above 500, while the pool admits programs that cannot
                count it.
            StoreError: Redis did not reply; the event may or may not have been counted.
        """
        if profile is not None:
            if limit is not None or window is not None or profile not in PROFILES:
                raise InvalidInput(f"give limit and window, or one of the profiles {', '.join(PROFILES)}")
            (limit, window), name = PROFILES[profile], f"{profile}:{name}"
        if limit is None or window is None:
            raise InvalidInput("give limit and window, or profile=")
        _check_count("limit", limit, MAX_LIMIT)
        _check_count("cost", cost, limit)
        window_ms = to_ms("window", window)
        if window_ms == 0:
            raise InvalidInput("window must be above 0; give seconds or a timedelta")
        if limit > UNITS_LIMIT or cost > UNITS_COST:
            await self._store.require(Feature.LARGE_COSTS)
        call = scripts.check(
            ScopeKeys(self._prefix, "limit", name),
            op=self._op_ids.take(op_id),
            most=limit,
            window_us=window_ms * 1000,
            cost=cost,
            sums=self._store.floor.admits(Feature.LARGE_COSTS),
        )
        found = await self._store.call(call, retry_for_s=self._retry_for_s)
        allowed, used = found.status != "refused", found.used
        return Decision(allowed, used, max(0, limit - used), found.retry_us / 1_000_000)


def _check_count(name: str, value: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise InvalidInput(f"{name} must be a whole number from 1 to {most}, not {value!r:.80}")
