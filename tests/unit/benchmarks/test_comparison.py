"""Systems side by side: which peer is best, how ours compares, and which peer a goal names."""

from __future__ import annotations

import pytest

from benchmarks.comparison import Comparison
from benchmarks.goals import OnRecord, at_least_peer, rival
from benchmarks.sizes import FULL, QUICK, Sizes
from orchestrator.bench.measures import AT_ONCE, MANY, ONE_BY_ONE

RATES = {"ours": [30.0, 40.0, 50.0], "raw": [40.0, 40.0, 40.0], "slow": [1.0], "fast": [8.0, 12.0, 10.0]}
ON_RECORD = OnRecord("fast", value=5.0, raw=20.0)


def _rates(*systems: str) -> Comparison:
    rounds = {system: RATES[system] for system in ("ours", "raw", *systems)}
    return Comparison("drain", "tasks/s", rounds, ["slow", "fast"], more_is_better=True)


def test_best_peer() -> None:
    """The best peer has the highest rate or the lowest latency, and is never ours or the raw loop."""
    assert _rates("slow", "fast").best_peer == "fast"
    latencies = {"ours": [0.1], "raw": [0.2], "slow": [9.0, 7.0, 8.0], "fast": [3.0]}
    assert Comparison("p50", "ms", latencies, ["slow", "fast"]).best_peer == "fast"


def test_best_peer_of_those_measured() -> None:
    """A peer that could not be measured is passed over; without any there is none."""
    assert _rates("slow").best_peer == "slow"
    assert _rates().best_peer is None


def test_ours_to_a_peer() -> None:
    """Ours is told as a multiple of the other's median, which may come from fewer rounds."""
    assert _rates("slow", "fast").ours_to("fast") == pytest.approx(4.0)
    assert _rates("slow").ours_to("slow") == pytest.approx(40.0)
    assert _rates("slow").ours_to("fast") is None


def test_rival_is_the_fastest_of_this_run() -> None:
    """A goal against peers names the fastest one of the run and its figure there."""
    peer = rival(_rates("slow", "fast"), ON_RECORD)
    assert peer.value == 10.0
    assert at_least_peer(4.0, peer).text == "≥ 4 x fast, the fastest peer (10)"


def test_rival_without_peers() -> None:
    """Without peers, the one on record counts, carried over by the ratio of the raw loops."""
    peer = rival(_rates(), ON_RECORD)
    assert (peer.value, peer.words) == (10.0, "fast, carried over")


def test_rival_that_is_missing() -> None:
    """The fastest on record that takes no part still counts where it is ahead: its absence makes no goal easier."""
    assert rival(_rates("slow"), ON_RECORD).words == "fast, carried over"
    assert rival(_rates("slow"), OnRecord("fast", value=0.1, raw=20.0)).words == "slow, the fastest peer"


def test_rival_of_latencies_that_is_missing() -> None:
    """With latencies, ahead means lower."""
    latencies = Comparison("p50", "ms", {"raw": [1.0], "slow": [8.0]}, ["slow"])
    assert rival(latencies, OnRecord("fast", value=4.0, raw=1.0)).value == 4.0
    assert rival(latencies, OnRecord("fast", value=9.0, raw=1.0)).value == 8.0


@pytest.mark.parametrize("whole", [FULL, QUICK], ids=["full", "quick"])
def test_sizes_of_a_slow_system(whole: Sizes) -> None:
    """A slow system is asked less of everything, but its drain has more than the thousand tasks that count apart."""
    less = whole.for_slower(drain=0.01, submit=0.1, trip=0.2)
    assert 1000 < less.drain_tasks < whole.drain_tasks
    assert less.round_trips == round(0.2 * whole.round_trips)
    assert all(less.submits(kind) == round(0.1 * whole.submits(kind)) for kind in (ONE_BY_ONE, AT_ONCE, MANY))
