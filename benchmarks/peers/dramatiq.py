"""dramatiq: threads and a synchronous client, a list behind one script."""

from __future__ import annotations

from benchmarks.peers.peer import Peer

_APP = "benchmarks.peers.dramatiq_app"

DRAMATIQ = Peer(
    name="dramatiq",
    # A hundred slots are a hundred threads; it has its master process besides the one that works. Its consumer looks
    # more and more rarely while it finds nothing, from 5 ms on: there is no interval to set for throughput.
    worker=("dramatiq", _APP, "--processes", "1", "--threads", "100"),
    app=_APP,
    # A message stays in the hash until it is acknowledged.
    remaining=lambda meter: int(meter.hlen("dramatiq:default.msgs")),
)
