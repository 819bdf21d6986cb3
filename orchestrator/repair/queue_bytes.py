"""Recounts the bytes of the tasks that wait while a scan passes their records, and corrects the stored numbers.

Scripts keep these numbers (protocol rule 34). They drift if a record expires before its task has started, or if a
program of an older version takes part. A scan sees each record once, at some time; so what it counts of a queue mostly
lies between the least and the greatest number that the queue had meanwhile, and another sum shows a drift. But it may
count a task that starts behind it and the one that comes in its place, while each look finds the same number.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from orchestrator.core.reading import read_whole, readable
from orchestrator.tasks import scripts as tasks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.store.store import Store

POOL: Final = b"*"
LOOK_EVERY: Final = 20
"""Steps of a scan between two looks at the numbers."""
LOOK_EVERY_S: Final = 2.0
"""A scan that rests between its steps looks as often as this, so that it sees how far the numbers go."""
MARGIN_BYTES: Final = 1024**2
"""Least drift that is corrected while tasks are submitted and start."""
MARGIN_SHARE: Final = 0.1
"""Least drift that is corrected in such a queue, as a share of its bytes."""
_AT_ONCE: Final = 500


class QueueBytes:
    """Recounts the bytes of the queues of one pool during one scan."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.begin()

    def begin(self) -> None:
        """Count from nothing: the scan begins, or begins again after a restart of Redis and sees all records again."""
        self._counted: Counter[bytes] = Counter()
        self._least: dict[bytes, int] = {}
        self._most: dict[bytes, int] = {}
        self._looks = self._steps = 0
        self._looked_s = 0.0
        self._first_counters: list[bytes] | None = None
        self._is_quiet = True
        """No task has begun or ceased to wait since the scan began."""

    async def look(self) -> None:
        """Note the stored numbers; call it at each step of the scan."""
        self._steps += 1
        if self._steps % LOOK_EVERY == 1 or time.monotonic() - self._looked_s >= LOOK_EVERY_S:
            await self._note_numbers()

    async def add(self, ids: Sequence[bytes]) -> None:
        """Count the tasks of these records."""
        for first in range(0, len(ids), _AT_ONCE):
            call = tasks.measure_bytes(self._store.keys, ids=ids[first : first + _AT_ONCE])
            self._counted.update(await self._store.call(call))

    async def correct(self) -> Mapping[bytes, int]:
        """Correct the numbers that have drifted, and return by how much."""
        right = await self._note_numbers()
        drifts = [(queue, drift) for queue in self._counted.keys() | self._most.keys() if (drift := self._drift(queue))]
        for first in range(0, len(drifts), _AT_ONCE):
            part = dict(drifts[first : first + _AT_ONCE])
            await self._store.call(tasks.correct_bytes(self._store.keys, changes=part))
        if not (right or drifts):
            await self._store.call(tasks.correct_bytes(self._store.keys, changes={}))
        return dict(drifts)

    def _drift(self, queue: bytes) -> int:
        counted, least, most = self._counted[queue], self._least.get(queue, 0), self._most.get(queue, 0)
        drift = counted - (most if counted > most else least)
        if least <= counted <= most:
            return 0
        # A surplus that is added by mistake stays until the next scan. What is taken off by mistake does no harm: the
        # ends of tasks take off no more than there is.
        is_safe = self._is_quiet or (least == most and drift < 0)
        return drift if is_safe or abs(drift) > max(MARGIN_BYTES, MARGIN_SHARE * counted) else 0

    async def _note_numbers(self) -> bool:
        """Note the stored numbers; return whether that of the pool is the sum of the others."""
        numbers, counters = await self._numbers()
        if self._first_counters is None:
            self._first_counters = counters
        self._is_quiet = counters == self._first_counters
        of_pool = numbers.pop(POOL, 0)
        for queue in numbers.keys() | self._most.keys():
            number = numbers.get(queue, 0)
            self._least[queue] = min(number, self._least.get(queue, 0 if self._looks else number))
            self._most[queue] = max(number, self._most.get(queue, 0))
        self._looks += 1
        self._looked_s = time.monotonic()
        return of_pool == sum(numbers.values())

    async def _numbers(self) -> tuple[dict[bytes, int], list[bytes]]:
        """Return the stored numbers, and the counters of the pool, which count all that begins or ceases to wait."""
        keys = self._store.keys
        asked = [("HGETALL", keys.queue_bytes), ("HGETALL", keys.stats("TOTAL"))]
        # The scan reports keys of another type.
        flat, counters = [readable(reply, []) for reply in await self._store.pipeline(asked)]
        return {queue: read_whole(number) for queue, number in zip(flat[::2], flat[1::2], strict=True)}, counters
