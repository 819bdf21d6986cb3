"""ardiq: a Rust core under a Python API, on Redis streams; needs Python 3.12."""

from __future__ import annotations

from benchmarks.peers.peer import Peer

_APP = "benchmarks.peers.ardiq_app"
_STREAM = "ardiq:default:queues:default"

ARDIQ = Peer(
    name="ardiq",
    # One process: `ardiq run`. Its own log lines are a few at the start; --quiet leaves out the banner.
    worker=("ardiq", "run", f"{_APP}:app", "--quiet"),
    app=_APP,
    # Finished entries are deleted.
    remaining=lambda meter: int(meter.xlen(_STREAM)),
    has_bulk=True,
    pythons=("python3.12", "python3.13"),
    drain_share=0.6,
    submit_share=1.0,
    trip_share=0.7,
)
