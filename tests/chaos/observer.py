"""Looks at the server beside everything else: who leads, which tasks ended; writes that into a history of its own."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final, Self

import redis

from tests.faultkit.checkers.final_state import read_ends
from tests.faultkit.checkers.history import EndNoted, LeaderSeen, Recorder

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.store.keys import PoolKeys
    from tests.chaos.topology import Topology

LOOK_S: Final = 0.03
KEEP_S: Final = 1.0
"""A lease that does not change hands is written down so often."""


class Observer:
    """Runs in a thread, over a connection that no fault but those of Redis itself reaches."""

    def __init__(self, topology: Topology, keys: PoolKeys, history: Path) -> None:
        self._topology, self._keys = topology, keys
        self._recorder = Recorder(history, "observer")
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observer")
        self._last: LeaderSeen | None = None
        self._written_s = 0.0
        self._cursor = "-"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._recorder.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                master = self._topology.master()
                with master.client() as client:
                    # A server that is no longer the master has old news.
                    while not self._stopped.wait(LOOK_S) and self._topology.master() is master:
                        self._look_at_leader(client)
                        self._look_at_ends(client)
            except redis.RedisError:
                self._stopped.wait(0.1)

    def _look_at_leader(self, client: redis.Redis) -> None:
        with client.pipeline(transaction=True) as pipeline:
            pipeline.time()
            pipeline.get(self._keys.leader)
            pipeline.pttl(self._keys.leader)
            (seconds, micros), holder, left_ms = pipeline.execute()
        if holder is None:
            return
        seen = LeaderSeen(seconds * 1000 + micros // 1000, holder.decode(), left_ms)
        changed = self._last is not None and self._last.holder != seen.holder
        if changed and self._last is not None:
            self._recorder.write(self._last)
        if changed or time.monotonic() - self._written_s > KEEP_S:
            self._recorder.write(seen)
            self._written_s = time.monotonic()
        self._last = seen

    def _look_at_ends(self, client: redis.Redis) -> None:
        entries: Any = read_ends(client, self._keys, self._cursor)
        for entry, ends in entries:
            for task, state in ends:
                self._recorder.write(EndNoted(task, state, entry))
            self._cursor = f"({entry}"
