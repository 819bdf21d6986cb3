"""streaq: anyio and coredis, on Redis streams."""

from __future__ import annotations

from benchmarks.peers.peer import Peer

_APP = "benchmarks.peers.streaq_app"

STREAQ = Peer(
    name="streaq",
    worker=("streaq", "run", f"{_APP}:worker"),
    app=_APP,
    # Finished entries are deleted.
    remaining=lambda meter: int(meter.xlen("streaq:default:queues:normal")),
    has_bulk=True,
    drain_share=0.04,
    trip_share=0.2,
)
