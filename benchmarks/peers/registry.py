"""The peers, in the order of the report."""

from __future__ import annotations

from benchmarks.peer import Peer

_PEERS = (
    Peer(
        name="ardiq",
        result_ttl_s=300,
        # One process: `ardiq run`. It logs a few lines at the start; --quiet leaves out the banner.
        worker=("ardiq", "run", "benchmarks.peers.ardiq_app:app", "--quiet"),
        app="benchmarks.peers.ardiq_app",
        # Finished entries are deleted.
        remaining=lambda meter: int(meter.xlen("ardiq:default:queues:default")),
        has_bulk=True,
        pythons=("python3.12", "python3.13"),
        drain_share=0.6,
        submit_share=1.0,
        trip_share=0.7,
        runs_every_round=True,
    ),
    Peer(
        name="arq",
        result_ttl_s=3600,
        # --custom-log-dict replaces a logging set-up that writes two lines per task.
        worker=(
            "arq",
            "benchmarks.peers.arq_app.WorkerSettings",
            "--custom-log-dict",
            "benchmarks.peers.arq_app.QUIET",
        ),
        app="benchmarks.peers.arq_app",
        # A job stays in the queue until it is finished.
        remaining=lambda meter: int(meter.zcard("arq:queue")),
    ),
    Peer(
        name="saq",
        result_ttl_s=600,
        worker=("saq", "benchmarks.peers.saq_app.settings"),
        app="benchmarks.peers.saq_app",
        # Jobs that are neither finished nor failed.
        remaining=lambda meter: int(meter.zcard("saq:default:incomplete")),
        drain_share=0.06,
    ),
    Peer(
        name="dramatiq",
        result_ttl_s=600,
        # A hundred slots are a hundred threads, beside a master process. An idle consumer backs off from 5 ms on, and
        # has no interval to set for throughput.
        worker=("dramatiq", "benchmarks.peers.dramatiq_app", "--processes", "1", "--threads", "100"),
        app="benchmarks.peers.dramatiq_app",
        # A message stays in the hash until it is acknowledged.
        remaining=lambda meter: int(meter.hlen("dramatiq:default.msgs")),
    ),
    Peer(
        name="streaq",
        result_ttl_s=300,
        worker=("streaq", "run", "benchmarks.peers.streaq_app:worker"),
        app="benchmarks.peers.streaq_app",
        # Finished entries are deleted.
        remaining=lambda meter: int(meter.xlen("streaq:default:queues:normal")),
        has_bulk=True,
        drain_share=0.04,
        trip_share=0.2,
    ),
)
PEERS = {peer.name: peer for peer in _PEERS}
