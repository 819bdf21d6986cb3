"""Reads the limits of providers: what blocks each, and how much of its windows is used."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - a part of public values
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import ServerUnavailable
from orchestrator.core.rates import Rate
from orchestrator.core.reading import read_readable, read_text, read_whole
from orchestrator.limits.providers import BROKEN, STATES, ProviderLimit, read_blocked, read_named_limit
from orchestrator.limits.shared import scope_of
from orchestrator.views.paging import read_beside, read_together

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.limits.providers import BlockedState
    from orchestrator.services import Services
    from orchestrator.store.calls import Argument
    from orchestrator.store.keys import PoolKeys

_HEAD: Final = 8
_PART: Final = 24
"""Bytes of the sum, and of each sub-window behind it (`lua/includes/sums.lua`)."""


@dataclass(frozen=True, slots=True)
class Usage:
    """One limit of the calls of a provider.

    Attributes:
        unit: `requests`, `tokens` or `at_once`.
        limit: as `500/min`; of `at_once` a number.
        used: in the window that ends now, or running.
        left: the rest; negative if calls used more than they reserved.
    """

    unit: str
    limit: str
    used: int
    left: int


@dataclass(frozen=True, slots=True)
class ProviderView:
    """A provider.

    Attributes:
        state: `open`, `throttled`, `quota`, `broken`, `trial`: its block has ended, and one call tries it; or
            `unknown`: pools share it, and the server that counts its calls does not answer.
        until: the end of the state; None if it has none.
        since: when it was told.
        told_by: who told it.
        reason: why.
        usage: its limits.
        shared: whether all pools of the prefix share it; then `usage` counts the calls of all.
    """

    state: str
    until: datetime | None
    since: datetime | None
    told_by: str
    reason: str
    usage: tuple[Usage, ...]
    shared: bool = False


async def read_providers(services: Services) -> dict[str, ProviderView]:
    """Read the providers that workers have called, by name."""
    keys = services.keys
    time, reply = await read_together(services, [("TIME",), ("HGETALL", keys.providers)])
    now_us, reply = read_whole(time[0]) * 1_000_000 + read_whole(time[1]), reply or ()
    limits = read_limits(reply)
    if not limits:
        return {}
    _, replies = await read_beside(services, [("TIME",)], provider_reads(keys, limits, now_us=now_us))
    return provider_views(limits, replies, now_us=now_us)


def read_limits(flat: Sequence[bytes]) -> dict[str, ProviderLimit]:
    """Return the limits of providers from a list of names and stored values; damaged ones are left out."""
    stored = [(read_text(name), value) for name, value in zip(flat[::2], flat[1::2], strict=True)]
    return dict(read_readable(read_named_limit, stored))


def provider_reads(keys: PoolKeys, limits: Mapping[str, ProviderLimit], *, now_us: int) -> list[Sequence[Argument]]:
    """Return the commands that read providers, three for each, for `read_beside` and then `provider_views`."""
    commands: list[Sequence[Argument]] = []
    for name, limit in limits.items():
        fields = [_field(unit, window_us) for unit, _, window_us in _windows(limit)]
        its = scope_of(keys, name) if limit.shared else keys
        commands += [
            ("HMGET", its.provider_usage(name), *fields),
            ("HMGET", its.blocked(name), *STATES),
            ("ZCOUNT", its.provider_leases(name), f"({now_us}", "+inf"),
        ]
    return commands


def provider_views(
    limits: Mapping[str, ProviderLimit], replies: Sequence[Any], *, now_us: int
) -> dict[str, ProviderView]:
    """Return providers from the replies to `provider_reads`."""
    found: dict[str, ProviderView] = {}
    for at, (name, limit) in enumerate(limits.items()):
        its = replies[3 * at : 3 * at + 3]
        usage, blocked, running = its
        if failure := next((reply for reply in its if isinstance(reply, ServerUnavailable)), None):
            found[name] = ProviderView("unknown", None, None, "", str(failure), (), limit.shared)
            continue
        found[name] = _view(limit, usage or [None] * 2, blocked or [None] * len(STATES), running or 0, now_us)
    return found


def _windows(limit: ProviderLimit) -> tuple[tuple[str, int, int], tuple[str, int, int]]:
    return ("requests", limit.requests, limit.requests_us), ("tokens", limit.tokens, limit.tokens_us)


def _field(unit: str, window_us: int) -> str:
    return f"{unit}:{window_us}"


def _view(
    limit: ProviderLimit,
    sums: Sequence[bytes | None],
    blocked: Sequence[bytes | None],
    running: int,
    now_us: int,
) -> ProviderView:
    usage = []
    for (unit, most, window_us), stored in zip(_windows(limit), sums, strict=True):
        if most:
            used = _sum_of_window(stored or b"", now_us - window_us)
            usage.append(Usage(unit, str(Rate(most, window_us)), used, most - used))
    if limit.at_once:
        usage.append(Usage("at_once", str(limit.at_once), running, limit.at_once - running))
    stored_states = [(state, value) for state, value in zip(STATES, blocked, strict=True) if value is not None]
    states: Mapping[str, BlockedState] = {one.state: one for one in read_readable(read_blocked, stored_states)}
    now_ms = now_us // 1000
    lasting = [one for one in states.values() if not one.until_ms or one.until_ms > now_ms]
    if lasting:
        last = max(lasting, key=lambda one: one.until_ms or 1 << 63)
        state = last.state
    elif BROKEN in states:
        last, state = states[BROKEN], "trial"
    else:
        return ProviderView("open", None, None, "", "", tuple(usage), limit.shared)
    until = from_instant_ms(last.until_ms) if last.until_ms and state != "trial" else None
    since = from_instant_ms(last.since_ms)
    return ProviderView(state, until, since, last.by, last.reason, tuple(usage), limit.shared)


def _sum_of_window(stored: bytes, outside_us: int) -> int:
    """Return the sum of the sub-windows that end after a time."""
    total = 0.0
    for at in range(_HEAD, len(stored) - _PART + 1, _PART):
        _, last, part = struct.unpack_from(">ddd", stored, at)
        if last > outside_us:
            total += part
    return read_whole(total)
