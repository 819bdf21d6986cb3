"""`orc stats`: attempts, waiting and running times per agent and skill."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.inputs import check_limit, duration_s
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.output import say_rest
from orchestrator.cli.terminal.parsing import Commands, option
from orchestrator.cli.terminal.source import viewed

if TYPE_CHECKING:
    from orchestrator.agents.stats import AttemptStats
    from orchestrator.agents.timings import Durations

commands = Commands("stats", "orc stats", "orc stats --by agent --within 15m", "orc stats -o json")

QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
OUTCOMES: Final = ("succeeded", "failed", "dead")


@commands.itself
async def stats(
    *,
    by: Annotated[Literal["agent", "skill", "both"], option("--by")] = "both",
    within: Annotated[str, option("--within", metavar="DURATION")] = "1h",
    limit: Annotated[int, option("--limit", metavar="N")] = 1000,
    common: Globals = DEFAULTS,
) -> None:
    """Show how many attempts ended, and how long they waited and ran, per agent and skill.

    A time is the upper end of a range that begins at its half: ≤64 ms stands for 32 to 64 ms. Workers send their
    numbers with the heartbeat.

    Args:
        by: agent, skill, or both.
        within: How far back; at most 24h [1h].
        limit: How many, those with the most attempts first [1000].
    """
    from orchestrator.views.stats import list_stats

    within_s = duration_s("--within", within)
    check_limit(limit)
    async with viewed(common) as services:
        found = await list_stats(services, within=within_s or 0, by=by, limit=limit)
    names = [name for name in ("agent", "skill") if by in {name, "both"}]
    if common.output == "table":
        rows = [_cells(one) for one in found.stats]
        other = ("other",) if any(row["other"] for row in rows) else ()
        columns: tuple[str, ...] = (*names, "/min", *OUTCOMES, *other, *_TIMES)
    else:
        rows, columns = [_record(one) for one in found.stats], ()
    output.show_list(common.output, rows, columns, key=names[0], empty="no attempt ended in this time")
    say_rest(len(rows), found.total)


_SHOWN: Final = ("p50", "p99")
"""Shares that fit a table of 80 columns; JSON has all."""
_TIMES: Final = ("wait_p50_p99", "run_p50_p99")


def _cells(one: AttemptStats) -> dict[str, Any]:
    outcomes = dict(one.timings.outcomes)
    counted = {name: outcomes.pop(name, 0) for name in OUTCOMES}
    times = {
        name: " ".join(_duration(durations.quantile_ms(QUANTILES[share])) for share in _SHOWN)
        for name, durations in zip(_TIMES, (one.timings.waited, one.timings.ran), strict=True)
    }
    return {
        "agent": one.agent,
        "skill": one.skill,
        "/min": f"{one.per_minute:.1f}",
        **counted,
        "other": sum(outcomes.values()),
        **times,
    }


def _record(one: AttemptStats) -> dict[str, Any]:
    return {
        "agent": one.agent,
        "skill": one.skill,
        "seconds": one.seconds,
        "per_minute": round(one.per_minute, 3),
        "outcomes": one.timings.outcomes,
        "waited": _durations(one.timings.waited),
        "ran": _durations(one.timings.ran),
    }


def _durations(durations: Durations) -> dict[str, Any]:
    quantiles = {f"{name}_ms": durations.quantile_ms(share) for name, share in QUANTILES.items()}
    buckets = {1 << number: count for number, count in enumerate(durations.buckets) if count}
    return {"count": durations.count, "mean_ms": durations.mean_ms, **quantiles, "below_ms": buckets}


def _duration(ms: int | None) -> str:
    if ms is None:
        return ""
    if ms < 1000:
        return f"≤{ms} ms"
    # Rounded up, because the time is an upper end.
    return f"≤{math.ceil(ms / 100) / 10:g} s" if ms < 600_000 else f"≤{math.ceil(ms / 60_000)} min"
