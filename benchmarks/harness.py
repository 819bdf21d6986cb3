"""Provides a measure with the server, the sizes of the run, and interleaved passes of all systems."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from benchmarks.comparison import Comparison
from benchmarks.figures import Failure
from benchmarks.server import EMBEDDED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from redis import Redis

    from benchmarks.peer import InstalledHistory, InstalledPeer
    from benchmarks.server import Server
    from benchmarks.server_cost import Drain
    from benchmarks.sizes import Sizes

K = TypeVar("K", bound="str | tuple[str, str]")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bench:
    """One run of the benchmarks.

    Attributes:
        peers: task queues of this run.
        histories: libraries of this run that keep histories of chats.
        comparisons: comparisons so far, if the run has peers.
        failures: failed passes of peers; the measure goes on without that peer.
        drains: drains that several measures use, by number of worker processes.
        settings: the settings of the server, one of `benchmarks.server.SETTINGS`.
        payload_bytes: size of a body in arguments and result; 0 for small arguments and a small result.
    """

    server: Server
    meter: Redis
    sizes: Sizes
    folder: Path
    ours: bool = True
    peers: Sequence[InstalledPeer] = ()
    histories: Sequence[InstalledHistory] = ()
    comparisons: list[Comparison] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    drains: dict[int, dict[str, list[Drain]]] = field(default_factory=dict)
    settings: str = EMBEDDED
    payload_bytes: int = 0

    @property
    def peer_names(self) -> list[str]:
        """Names of the task queues of this run."""
        return [one.peer.name for one in self.peers]

    @property
    def foreign_names(self) -> list[str]:
        """Names of all packages of this run that are not ours."""
        return [*self.peer_names, *(one.package.name for one in self.histories)]

    def with_payload(self, payload_bytes: int) -> Bench:
        """Return the same run with bodies of a size; comparisons and failures go to this run."""
        return replace(self, payload_bytes=payload_bytes, sizes=self.sizes.with_payload(payload_bytes), drains={})

    def compare(
        self, quantity: str, unit: str, rounds: Mapping[str, Sequence[float]], *, more_is_better: bool = False
    ) -> Comparison:
        """Compare the systems; the report shows it if the run has peers."""
        comparison = Comparison(quantity, unit, rounds, self.peer_names, more_is_better, self.settings)
        if self.peers:
            self.comparisons.append(comparison)
        return comparison

    def clean(self) -> None:
        """Empty the server between two passes."""
        self.meter.flushall(asynchronous=False)

    def in_turns(
        self, runs: Mapping[K, Callable[[], T]], *, rounds: int | None = None, rounds_factor: int = 1
    ) -> dict[K, list[T]]:
        """Run every pass once per round, so that noise of the machine hits all systems alike.

        Args:
            runs: passes by system, or by system and kind. A peer that fails is left out of the result.
            rounds: default: the rounds of this run.
            rounds_factor: more rounds, for short passes with noisy results; peers run only one round of each such
                group. A peer that `runs_every_round` runs all.
        """
        steady = {one.peer.name for one in self.peers if one.peer.runs_every_round}
        rounds = (rounds or self.sizes.rounds) * rounds_factor
        taken: dict[K, list[T]] = {name: [] for name in runs}
        for number in range(1, rounds + 1):
            for name, run_once in runs.items():
                system, words = (name, name) if isinstance(name, str) else (name[0], " ".join(name))
                is_peer = system in self.foreign_names
                skipped = is_peer and system not in steady and (number - 1) % rounds_factor
                if name not in taken or skipped:
                    continue
                say(f"  {words}, round {number} of {rounds}")
                self.clean()
                try:
                    taken[name].append(run_once())
                except Exception as error:
                    if not is_peer:
                        raise
                    self._note_failure(words, error)
                    del taken[name]
        self.clean()
        return taken

    def _note_failure(self, words: str, error: Exception) -> None:
        say(traceback.format_exc())
        self.failures.append(Failure(words, f"{type(error).__name__}: {error}"))


def say(line: str) -> None:
    """Print progress to standard error; only the report goes to standard output."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
