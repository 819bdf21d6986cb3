"""Peers in the benchmarks: their client and their workers are processes of another interpreter, measured like ours."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.drains import drain
from benchmarks.harness import Bench
from benchmarks.payload import STARTS_FILE_VARIABLE
from benchmarks.peer import InstalledPeer, Peer
from benchmarks.peers.team import PeerTeam
from benchmarks.processes import ChildFailedError
from benchmarks.server import running_server
from benchmarks.sizes import QUICK
from benchmarks.traffic_runs import pick_up_waits_ms, round_trips_ms, submit_rate
from orchestrator.bench.measures import AT_ONCE
from tests.integration import list_peer_app

if TYPE_CHECKING:
    from collections.abc import Iterator

APP = "tests.integration.list_peer_app"
SIZES = replace(QUICK, drain_tasks=1_500, round_trips=5, pick_up_s=0.1)
STAND_IN = Peer(
    name="stand-in",
    worker=(APP,),
    app=APP,
    remaining=lambda meter: int(meter.get(list_peer_app.LEFT) or 0),
    result_ttl_s=60,
    drain_share=1.0,
    trip_share=1.0,
)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A run with one peer, on a server of its own."""
    with running_server(tmp_path, unix_socket=False) as server, server.connect() as meter:
        yield Bench(server, meter, SIZES, tmp_path, peers=[InstalledPeer(STAND_IN, Path(sys.executable))])


def test_drain(bench: Bench) -> None:
    """Two processes of a peer wait at the gate, begin together and empty the queue that its client has filled."""
    done = drain(bench, PeerTeam(bench, bench.peers[0], {}), processes=2)
    assert done.tasks == SIZES.drain_tasks
    assert bench.meter.get(list_peer_app.LEFT) == b"0"
    assert done.rate_per_s > 0
    assert done.worker_cpu_s > 0
    # An INCR and an RPUSH for each task; the readings are taken while the client is connected.
    assert done.load_cost.calls_by_command["rpush"] == done.loaded_tasks


def test_workers_wait_at_the_gate(bench: Bench) -> None:
    """Nothing is taken before the gate opens."""
    team = PeerTeam(bench, bench.peers[0], {})
    assert submit_rate(team, AT_ONCE, 50) > 0
    with team.worker_processes(1):
        assert bench.meter.llen(list_peer_app.QUEUE) == team.remaining()


def test_latencies(bench: Bench) -> None:
    """Round trips are timed in the client's process, waits in the handler's."""
    starts = bench.folder / "starts"
    team = PeerTeam(bench, bench.peers[0], {STARTS_FILE_VARIABLE: str(starts)})
    assert len(round_trips_ms(team)) == SIZES.round_trips
    bench.clean()
    waits_ms = pick_up_waits_ms(team, starts, rate_per_s=100)
    assert len(waits_ms) == 10
    assert all(0 < wait_ms < 10_000 for wait_ms in waits_ms)


def test_peer_that_fails(bench: Bench) -> None:
    """A pass of a peer that fails is noted and left out; the other sides go on, and their own failures do count."""
    team = PeerTeam(bench, InstalledPeer(replace(STAND_IN, app="no.such.app"), Path(sys.executable)), {})
    taken = bench.in_turns({"ours": lambda: 1.0, "stand-in": lambda: submit_rate(team, AT_ONCE, 10)}, rounds=2)
    assert taken == {"ours": [1.0, 1.0]}
    (failure,) = bench.failures
    assert failure.measure == "stand-in"
    assert "said '' instead of 'ready'" in failure.reason
    with pytest.raises(ChildFailedError):
        bench.in_turns({"ours": lambda: submit_rate(team, AT_ONCE, 10)})


def test_peers_take_part_in_fewer_short_rounds(bench: Bench) -> None:
    """Where the others run three times as many rounds, a peer runs as many as ever."""
    taken = bench.in_turns({("ours", "x"): lambda: 1, ("stand-in", "x"): lambda: 2}, rounds=2, rounds_factor=3)
    assert taken == {("ours", "x"): [1] * 6, ("stand-in", "x"): [2] * 2}
