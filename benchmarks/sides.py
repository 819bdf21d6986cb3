"""The systems that a measure compares: ours, unless only the raw loop is wanted, and the raw loop with results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.ours.team import FREE, LIMITED, OurTeam
from benchmarks.raw.team import RawTeam

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.harness import Bench
    from benchmarks.team import Team


def both_sides(bench: Bench, env: Mapping[str, str] | None = None) -> dict[str, Team]:
    """Ours and raw by name; `env` goes to the worker processes of both."""
    return {**our_side(bench, env), "raw": RawTeam(bench, env=env)}


def our_side(bench: Bench, env: Mapping[str, str] | None = None, *, limited: bool = False) -> dict[str, Team]:
    """Ours by name, or nothing when only the raw loop is wanted."""
    if not bench.ours:
        return {}
    return {"ours": OurTeam(bench, LIMITED if limited else FREE, env or {})}
