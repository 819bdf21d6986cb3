"""Defines the memory that a host shares with its workers and with the process that serves its health.

The host makes it before it forks. Each field is written by one process, and aligned, so that a reader sees no half of a
number. Times are of the monotonic clock, which the processes of a machine share.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from typing import TYPE_CHECKING, Final

from orchestrator.monitoring.catalogue import LAG_BUCKETS_S

if TYPE_CHECKING:
    from collections.abc import Iterator

SNAPSHOT_TRIES: Final = 20
"""Tries to copy the cells; a host that was frozen amid a change must not keep its reader from an answer."""
SNAPSHOT_AGAIN_S: Final = 0.0005
_LagCounts: Final = ctypes.c_uint64 * (len(LAG_BUCKETS_S) + 1)


class WorkerCell(ctypes.Structure):
    """One worker: when its event loop turned, what it holds, how late its timers are."""

    _fields_ = (
        ("turned_s", ctypes.c_double),
        ("waits_since_s", ctypes.c_double),
        ("recent_lag_s", ctypes.c_double),
        ("lag_sum_s", ctypes.c_double),
        ("lag_counts", _LagCounts),
        ("reconnects", ctypes.c_uint64),
        ("cached_bytes", ctypes.c_uint64),
        ("cache_loads", ctypes.c_uint64),
        ("held", ctypes.c_uint32),
        ("slots", ctypes.c_uint32),
        ("used", ctypes.c_bool),
        ("retired", ctypes.c_bool),
        ("registered", ctypes.c_bool),
        ("reachable", ctypes.c_bool),
        ("draining", ctypes.c_bool),
    )
    turned_s: float
    waits_since_s: float
    recent_lag_s: float
    lag_sum_s: float
    lag_counts: ctypes.Array[ctypes.c_uint64]
    reconnects: int
    cached_bytes: int
    cache_loads: int
    held: int
    slots: int
    used: bool
    retired: bool
    registered: bool
    reachable: bool
    draining: bool


class HostCell(ctypes.Structure):
    """The host: when its loop turned, and the sums of the workers that have ended.

    `changes` is odd while the host moves the sums of a worker to its own.
    """

    _fields_ = (
        ("turned_s", ctypes.c_double),
        ("lag_sum_s", ctypes.c_double),
        ("lag_counts", _LagCounts),
        ("reconnects", ctypes.c_uint64),
        ("cache_loads", ctypes.c_uint64),
        ("restarts", ctypes.c_uint64),
        ("changes", ctypes.c_uint64),
        ("stopping", ctypes.c_bool),
    )
    turned_s: float
    lag_sum_s: float
    lag_counts: ctypes.Array[ctypes.c_uint64]
    reconnects: int
    cache_loads: int
    restarts: int
    changes: int
    stopping: bool


class HostMemory:
    """Cells of a host and of at most `processes` workers at a time."""

    def __init__(self, processes: int) -> None:
        size = ctypes.sizeof(HostCell)
        memory = mmap.mmap(-1, size + processes * ctypes.sizeof(WorkerCell))
        self.host = HostCell.from_buffer(memory)
        self._cells = (WorkerCell * processes).from_buffer(memory, size)

    def take(self) -> WorkerCell:
        """Return a cleared cell for a new worker."""
        cell = next(cell for cell in self._cells if not cell.used)
        ctypes.memset(ctypes.addressof(cell), 0, ctypes.sizeof(cell))
        cell.used = True
        return cell

    def release(self, cell: WorkerCell) -> None:
        """Add the counters of a worker that has ended to those of the host, so that sums never fall."""
        self.host.changes += 1
        cell.used = False
        self.host.reconnects += cell.reconnects
        self.host.cache_loads += cell.cache_loads
        self.host.lag_sum_s += cell.lag_sum_s
        for number, count in enumerate(cell.lag_counts):
            self.host.lag_counts[number] += count
        self.host.changes += 1

    def snapshot(self) -> tuple[HostCell, list[WorkerCell]]:
        """Copy the cells of the host and of the workers that run, when no sums are on their way between them."""
        tries = 0
        while True:
            tries, before = tries + 1, self.host.changes
            host = HostCell.from_buffer_copy(self.host)
            cells = [WorkerCell.from_buffer_copy(cell) for cell in self.workers()]
            if (before % 2 == 0 and before == self.host.changes) or tries == SNAPSHOT_TRIES:
                return host, cells
            time.sleep(SNAPSHOT_AGAIN_S)

    def workers(self) -> Iterator[WorkerCell]:
        """Yield the cells of the workers that run."""
        return (cell for cell in self._cells if cell.used)
