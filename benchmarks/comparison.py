"""Compares one quantity of all systems of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.figures import median
from benchmarks.server import EMBEDDED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OURS, RAW = "ours", "raw"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row of the table of peers.

    Attributes:
        rounds: values by system; a system that failed or lacks the feature is missing.
        peers: names of the peers.
        settings: the settings of the server.
    """

    quantity: str
    unit: str
    rounds: Mapping[str, Sequence[float]]
    peers: Sequence[str]
    more_is_better: bool = False
    settings: str = EMBEDDED

    def value(self, system: str) -> float | None:
        """Return the median of the rounds."""
        return median(self.rounds[system]) if self.rounds.get(system) else None

    def ours_to(self, system: str) -> float | None:
        """Return our value as a multiple of another system's; compares medians, because peers may run fewer rounds."""
        ours, other = self.value(OURS), self.value(system)
        return ours / other if ours is not None and other else None

    @property
    def best_peer(self) -> str | None:
        """The leading peer."""
        values = {peer: value for peer in self.peers if (value := self.value(peer)) is not None}
        if not values:
            return None
        return max(values, key=values.__getitem__) if self.more_is_better else min(values, key=values.__getitem__)
