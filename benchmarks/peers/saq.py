"""saq: asyncio, a list with a blocking read per slot."""

from __future__ import annotations

from benchmarks.peers.peer import Peer

_APP = "benchmarks.peers.saq_app"

SAQ = Peer(
    name="saq",
    worker=("saq", f"{_APP}.settings"),
    app=_APP,
    # Of all jobs that are neither finished nor given up.
    remaining=lambda meter: int(meter.zcard("saq:default:incomplete")),
    drain_share=0.06,
)
