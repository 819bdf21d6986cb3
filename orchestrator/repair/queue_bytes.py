"""Recounts the bytes of the tasks that wait while a scan passes their records, and corrects the stored numbers.

Scripts keep these numbers (protocol rule 34). They drift if a record expires before its task has started, or if a
program of an older version takes part. A scan sees each record once, at some time; so what it counts of a queue lies
between the least and the greatest number that the queue had meanwhile, and another sum shows a drift.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import ServerRefused
from orchestrator.core.reading import read_whole
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
"""Least drift that is corrected in a queue which changed during the scan."""
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
        small = max(MARGIN_BYTES, MARGIN_SHARE * counted) if least < most else 0
        return drift if abs(drift) > small else 0

    async def _note_numbers(self) -> bool:
        """Note the stored numbers; return whether that of the pool is the sum of the others."""
        numbers = await self._numbers()
        of_pool = numbers.pop(POOL, 0)
        for queue in numbers.keys() | self._most.keys():
            number = numbers.get(queue, 0)
            self._least[queue] = min(number, self._least.get(queue, 0 if self._looks else number))
            self._most[queue] = max(number, self._most.get(queue, 0))
        self._looks += 1
        self._looked_s = time.monotonic()
        return of_pool == sum(numbers.values())

    async def _numbers(self) -> dict[bytes, int]:
        try:
            flat = await self._store.execute("HGETALL", self._store.keys.queue_bytes)
        except ServerRefused:  # a key of another type, which the scan reports
            return {}
        return {queue: read_whole(number) for queue, number in zip(flat[::2], flat[1::2], strict=True)}
