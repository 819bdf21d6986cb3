"""One quantity of all systems of a run side by side, and which peer is best at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.figures import median

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OURS, RAW = "ours", "raw"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A row of the table of peers.

    Attributes:
        rounds: by system; one that could not be measured, or does not have it, is missing.
        peers: which of the systems are peers.
    """

    quantity: str
    unit: str
    rounds: Mapping[str, Sequence[float]]
    peers: Sequence[str]
    more_is_better: bool = False

    def value(self, system: str) -> float | None:
        """The median of the rounds."""
        return median(self.rounds[system]) if self.rounds.get(system) else None

    def ours_to(self, system: str) -> float | None:
        """Ours as a multiple of another system's; medians are compared, since a peer may take part in fewer rounds."""
        ours, other = self.value(OURS), self.value(system)
        return ours / other if ours is not None and other else None

    @property
    def best_peer(self) -> str | None:
        """The peer that is ahead of the others."""
        values = {peer: value for peer in self.peers if (value := self.value(peer)) is not None}
        if not values:
            return None
        return max(values, key=values.__getitem__) if self.more_is_better else min(values, key=values.__getitem__)
