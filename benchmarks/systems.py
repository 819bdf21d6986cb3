"""Builds the systems of a run: ours unless it is left out, the raw loop with results, and peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.comparison import OURS, RAW
from benchmarks.ours.team import FREE, LIMITED, OurTeam
from benchmarks.peers.team import PeerTeam
from benchmarks.raw.team import RawTeam

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.harness import Bench
    from benchmarks.team import Team


def all_systems(bench: Bench, env: Mapping[str, str] | None = None) -> dict[str, Team]:
    """Return all systems by name; `env` goes to the worker processes."""
    return {**our_system(bench, env), RAW: RawTeam(bench, env=env), **peer_systems(bench, env)}


def our_system(bench: Bench, env: Mapping[str, str] | None = None, *, limited: bool = False) -> dict[str, Team]:
    """Return our system by name, or nothing if the run leaves it out."""
    if not bench.ours:
        return {}
    return {OURS: OurTeam(bench, LIMITED if limited else FREE, env or {})}


def peer_systems(bench: Bench, env: Mapping[str, str] | None = None) -> dict[str, Team]:
    """Return the peers of this run by name."""
    return {one.peer.name: PeerTeam(bench, one, env or {}) for one in bench.peers}
