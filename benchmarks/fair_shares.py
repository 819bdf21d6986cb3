"""Measures shares of keys: `python -m benchmarks.fair_shares URL`, on an empty server.

First the weights: keys with waiting tasks, started one after another, and how far the starts of a key in any 1,000 are
from its weight. Then two customers: how long the tasks of a small one wait alone, and beside one with 100,000 waiting
tasks.
"""

from __future__ import annotations

import math
import random
import sys
import time
from itertools import accumulate, count
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator import Agent, Submission
from orchestrator.testing.temporary_pool import open_temporary_pool, temporary_settings
from orchestrator.workers.testing.worker_pool import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.client.client import Orchestrator
    from orchestrator.core.settings import Settings

WINDOW: Final = 1000
STARTS: Final = 6000
SLOTS: Final = 40
TASK_S: Final = 0.5
"""Mean; durations are random, so that slots do not become free together."""
ROUNDS: Final = 3
SMALL_PER_S: Final = 10
SMALL_TASKS: Final = 150
BIG_TASKS: Final = 100_000
BIG_AT_MOST: Final = 36


def largest_error(order: Sequence[str], weights: Mapping[str, float]) -> float:
    """Return by how much the starts of a key in any window differ from its weight at most, as a part of these."""
    worst = 0.0
    for key, weight in weights.items():
        meant = WINDOW * weight / sum(weights.values())
        before = [0, *accumulate(int(one == key) for one in order)]
        counts = [before[at + WINDOW] - before[at] for at in range(len(order) - WINDOW + 1)]
        worst = max(worst, *(abs(count - meant) / meant for count in counts))
    return worst


async def start_in_turns(settings: Settings, weights: Mapping[str, float], *, slots: int) -> list[str]:
    """Let tasks of all keys wait, start them, and return the keys in the order of the starts."""
    order: list[str] = []
    enough = anyio.Event()
    agent = Agent("starter", concurrency=slots)

    @agent.skill
    async def note(key: str) -> None:
        order.append(key)
        if len(order) == STARTS:
            enough.set()

    async with open_temporary_pool(settings) as pool:
        workers = WorkerPool(pool)
        for key, weight in weights.items():
            await pool.orc.admin.set_share(key, weight=weight)
        number = round(STARTS * max(weights.values()) / sum(weights.values())) + WINDOW
        for key in weights:
            await pool.orc.submit_many([Submission("note", {"key": key}, fair=key) for _ in range(number)])
        await workers.start_worker([agent], settings=settings)
        await enough.wait()
        await workers.stop_all()
    return order[:STARTS]


async def small_waits_ms(settings: Settings, *, big: int, at_most: int | None = None) -> list[float]:
    """Return how long each task of the small customer waits, in order of size."""
    waits: list[float] = []
    dice = random.Random(1)
    agent = Agent("customers", concurrency=SLOTS)

    @agent.skill
    async def serve(asked_s: float) -> None:
        if asked_s:
            waits.append((time.monotonic() - asked_s) * 1000)
        await anyio.sleep(TASK_S * dice.uniform(0.5, 1.5))

    async with open_temporary_pool(settings) as pool:
        workers = WorkerPool(pool)
        if at_most is not None:
            await pool.orc.admin.set_share("big", at_most=at_most)
        await _load(pool.orc, big)
        await workers.start_worker([agent], settings=settings)
        await anyio.sleep(1)
        begin_s = time.monotonic()
        for number in range(SMALL_TASKS):
            await anyio.sleep(max(0.0, begin_s + number / SMALL_PER_S - time.monotonic()))
            await pool.orc.submit("serve", {"asked_s": time.monotonic()}, fair="small")
        await anyio.sleep(1)
        await workers.stop_all()
    return sorted(waits)


async def _load(orc: Orchestrator, number: int) -> None:
    for first in range(0, number, 10_000):
        tasks = [Submission("serve", {"asked_s": 0.0}, fair="big") for _ in range(min(10_000, number - first))]
        await orc.submit_many(tasks)


def _show(title: str, waits_ms: Sequence[float]) -> None:
    shares = {"p50": 0.5, "p99": 0.99}
    at = {name: waits_ms[math.ceil(share * len(waits_ms)) - 1] for name, share in shares.items()}
    print(f"{title}: {len(waits_ms)} tasks, " + ", ".join(f"{name} {ms:.1f} ms" for name, ms in at.items()))


async def main(url: str) -> None:
    """Measure and print."""
    runs = count(1)

    def fresh() -> Settings:
        return temporary_settings(url, f"bench:shares:run{next(runs)}", {"queue.max_tasks": 200_000})

    for weights in () if "--waits" in sys.argv else ({"a": 3.0, "b": 1.0}, {"a": 5.0, "b": 3.0, "c": 1.0, "d": 1.0}):
        for slots in (1, 50):
            error = largest_error(await start_in_turns(fresh(), weights, slots=slots), weights)
            print(f"weights {weights}, {slots} slots: at most {error:.1%} off in any {WINDOW} of {STARTS} starts")
    alone: list[float] = []
    beside: list[float] = []
    capped: list[float] = []
    for _ in range(ROUNDS):
        alone += await small_waits_ms(fresh(), big=0)
        beside += await small_waits_ms(fresh(), big=BIG_TASKS)
        capped += await small_waits_ms(fresh(), big=BIG_TASKS, at_most=BIG_AT_MOST)
    _show("small alone", sorted(alone))
    _show("beside the big one", sorted(beside))
    _show(f"beside the big one, at most {BIG_AT_MOST} of {SLOTS}", sorted(capped))


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
