"""The fastest peer beside us, so that goals against it need not be carried over from another day."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks import goals
from benchmarks.drains import watch
from benchmarks.figures import Figure, figure_of, median, percentiles
from benchmarks.peers.ardiq import REQUIREMENT, Ardiq
from benchmarks.peers.environment import peer_python

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.harness import Bench


def measure(bench: Bench) -> Iterator[Figure]:
    """Drain, submit and wait as the other measures do; later goals of this run use these figures."""
    sizes = bench.sizes
    peer = Ardiq(bench, peer_python(REQUIREMENT))
    rates = bench.in_turns(
        {
            goals.FASTEST_DRAIN_1: partial(_drain_rate, peer, 1),
            goals.FASTEST_DRAIN_2: partial(_drain_rate, peer, 2),
            goals.FASTEST_SUBMIT_ONE: partial(peer.ask_client, "one_by_one", sizes.submits_one_by_one),
            goals.FASTEST_SUBMIT_100: partial(peer.ask_client, "at_once", sizes.submits_at_once),
            goals.FASTEST_SUBMIT_MANY: partial(peer.ask_client, "many", sizes.submits_many),
        }
    )
    for reference, values in rates.items():
        bench.measured_peers[reference] = median(values)
        yield figure_of("peers", f"ardiq, {reference.figure}", "tasks/s", values)
    trips = [percentiles(values) for values in bench.in_turns({"ardiq trips": partial(_trips_ms, peer)})["ardiq trips"]]
    for reference, name in ((goals.FASTEST_END_TO_END_P50, "p50"), (goals.FASTEST_END_TO_END_P99, "p99")):
        values = [getattr(latencies, name) for latencies in trips]
        bench.measured_peers[reference] = median(values)
        yield figure_of("peers", f"ardiq, {reference.figure}", "ms", values)


def _drain_rate(peer: Ardiq, processes: int) -> float:
    tasks = peer.bench.sizes.drain_tasks
    peer.ask_client("many", tasks)
    loaded = peer.remaining()
    with peer.workers(processes) as workers:
        return watch(peer.remaining, loaded, workers).rate_per_s


def _trips_ms(peer: Ardiq) -> list[float]:
    with peer.workers(1):
        taken_ms: list[float] = peer.ask_client("round_trips", peer.bench.sizes.round_trips)
        return taken_ms
