"""arq: asyncio, a sorted set that workers poll."""

from __future__ import annotations

from benchmarks.peers.peer import Peer

_APP = "benchmarks.peers.arq_app"

ARQ = Peer(
    name="arq",
    # --custom-log-dict (its command line's help) replaces a logging set-up that writes two lines a task.
    worker=("arq", f"{_APP}.WorkerSettings", "--custom-log-dict", f"{_APP}.QUIET"),
    app=_APP,
    # A job stays in the queue until it is finished.
    remaining=lambda meter: int(meter.zcard("arq:queue")),
)
