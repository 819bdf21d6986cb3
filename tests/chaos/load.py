"""The load of a chaos run: one client that submits tasks of all kinds, waits for them, and writes its history."""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import anyio

from orchestrator.client.handle import TaskHandle
from orchestrator.core.errors import (
    LaneBusy,
    OrchestratorError,
    ServerUnavailable,
    StoreError,
    SubmitRefused,
    TaskError,
)
from orchestrator.tasks.submission import Submission
from tests.faultkit.checkers.history import (
    CancelAnswered,
    CancelStarted,
    EndSeen,
    Recorder,
    SubmitAccepted,
    SubmitRejected,
    SubmitStarted,
    SubmitUnanswered,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anyio.abc import TaskGroup

    from orchestrator.client.client import Orchestrator

MOST_WAITING: Final = 150
PAUSE_S: Final = 0.03
STEERED_LANES: Final = "steered"
"""How the names of lanes begin in which tasks interrupt and replace others."""

KINDS: Final[dict[str, float]] = {
    "fast": 20, "twice": 4, "delayed": 4, "start_by": 3, "cancelled": 4, "thread": 6, "slow": 16, "flaky": 6,
    "broken": 2, "refuse": 1, "nap": 5, "poison": 0.4, "parent": 4, "tell": 20, "crunch": 1, "ranked": 4, "stamp": 1.5,
    "share": 1.5, "lane": 1.5, "steer": 2,
}  # fmt: skip
"""How often each kind is chosen. Many are slow: what still runs when a frozen worker wakes shows who stores results."""


class Load:
    """Submits until it is told to stop; `waiting` are the tasks whose end is not known yet.

    Args:
        longest_s: the longest handlers of the mix take so many seconds.
    """

    def __init__(
        self, orc: Orchestrator, recorder: Recorder, *, seed: int, tasks: TaskGroup, prefix: str, longest_s: float
    ) -> None:
        self._orc, self._recorder, self._tasks = orc, recorder, tasks
        self._dice = random.Random(f"load {seed}")
        self._prefix, self._count = prefix, 0
        self._longest_s = longest_s
        self.waiting = 0
        self.submitting = 0

    async def run(self) -> None:
        """Submit until cancelled; what is under way is finished."""
        while True:
            if self.waiting + self.submitting < MOST_WAITING:
                kind = self._dice.choices(list(KINDS), list(KINDS.values()))[0]
                tasks = self._tasks_of(kind)
                self.submitting += len(tasks)
                if kind == "lane":
                    self._tasks.start_soon(self._submit_together, tasks)
                else:
                    for skill, args, options in tasks:
                        self._tasks.start_soon(self._submit, kind, skill, args, options)
            await anyio.sleep(self._dice.expovariate(1 / PAUSE_S))

    def submit_steady(self, seconds: float) -> None:
        """Submit a task that takes so long; it counts as waiting at once."""
        self._start("steady", {"seconds": seconds})

    def submit_poison(self, seconds: float) -> None:
        """Submit a task that kills its process after this time, in every attempt."""
        self._start("poison", {"deaths": 9, "seconds": seconds})

    def _start(self, skill: str, args: dict[str, Any]) -> None:
        self._count += 1
        self.submitting += 1
        op = f"{self._prefix}-single-{self._count}"
        self._tasks.start_soon(self._submit, skill, skill, {"op": op} | args, {})

    def _tasks_of(self, kind: str) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
        dice = self._dice
        self._count += 1
        op = f"{self._prefix}-{kind}-{self._count}"
        args: dict[str, Any] = {"op": op}
        if kind == "twice":
            return [("fast", args, {"key": f"key of {op}"})] * 2
        if kind == "ranked":
            many = range(dice.randint(15, 40))
            return [(kind, {"op": f"{op}.{n}"}, {"priority": dice.randint(0, 9)}) for n in many]
        if kind in {"stamp", "share"}:
            return [(kind, {"op": f"{op}.{n}"}, {}) for n in range(dice.randint(5, 30))]
        if kind == "lane":
            skills = dice.choices(["fast", "thread", "slow", "flaky", "nap", "tell"], k=dice.randint(4, 12))
            return [
                (skill, {"op": f"{op}.{n}"} | self._arguments(skill, hasty=True), {"lane": f"lane {op}"})
                for n, skill in enumerate(skills)
            ]
        if kind == "steer":
            on_busy = dice.choice(["enqueue", "reject", "interrupt", "replace"])
            lane = f"{STEERED_LANES} {dice.randint(0, 4)}"
            return [("slow", args | {"seconds": 0.3}, {"lane": lane, "on_busy": on_busy})]
        if kind == "delayed":
            return [("fast", args, {"delay": dice.uniform(0.1, 2.0)})]
        if kind == "start_by":
            return [("fast", args, {"start_by": datetime.now(UTC) + timedelta(seconds=dice.uniform(0.05, 1.0))})]
        if kind == "cancelled":
            return [("slow", args | {"seconds": dice.uniform(0.1, 2.0)}, {})]
        return [(kind, args | self._arguments(kind), {})]

    def _arguments(self, kind: str, *, hasty: bool = False) -> dict[str, Any]:
        dice = self._dice
        match kind:
            case "slow" if hasty:
                return {"seconds": dice.uniform(0.0, 0.3)}
            case "thread":
                return {"seconds": dice.uniform(0.0, 0.3)}
            case "tell" if hasty:
                return {"seconds": dice.uniform(0.0, 0.5)}
            case "slow" | "tell":
                return {"seconds": dice.uniform(1.0, self._longest_s)}
            case "flaky":
                return {"fails": dice.randint(1, 3)}
            case "poison":
                return {
                    "deaths": dice.choice([1, 1, 9]),
                    "seconds": dice.choice([0.0, dice.uniform(0.0, self._longest_s)]),
                }
            case "parent":
                return {"children": dice.randint(1, 4)}
        return {}

    async def _submit(self, kind: str, skill: str, args: dict[str, Any], options: dict[str, Any]) -> None:
        op, write = args["op"], self._recorder.write
        write(SubmitStarted(op, options.get("key")))
        try:
            handle = await self._orc.submit(skill, args, **options)
        except ServerUnavailable as failure:
            # One whose outcome is unknown may be there in the end, or not.
            for id_ in failure.task_ids if kind == "steer" else ():
                write(CancelStarted(id_))
            write(
                SubmitUnanswered(op, failure.task_ids) if failure.outcome_unknown else SubmitRejected(op, str(failure))
            )
            return
        except LaneBusy as busy:
            write(SubmitRejected(op, str(busy)))
            return
        except StoreError as failure:
            write(SubmitUnanswered(op, ()) if failure.outcome_unknown else SubmitRejected(op, str(failure)))
            return
        finally:
            self.submitting -= 1
        if kind == "steer":
            self._recorder.write(CancelStarted(handle.id))  # those that come later may do that
        await self._follow(kind, op, handle)

    async def _submit_together(self, tasks: list[tuple[str, dict[str, Any], dict[str, Any]]]) -> None:
        """Submit tasks in one call, so that they keep their order."""
        ops, write = [args["op"] for _, args, _ in tasks], self._recorder.write
        for op in ops:
            write(SubmitStarted(op))
        try:
            outcomes: Sequence[object] = await self._orc.submit_many(
                [Submission(skill, args, **options) for skill, args, options in tasks]
            )
        except SubmitRefused as refused:
            outcomes = refused.outcomes
        except StoreError as failure:
            outcomes = [failure] * len(ops)
        finally:
            self.submitting -= len(ops)
        async with anyio.create_task_group() as waits:
            for op, outcome in zip(ops, outcomes, strict=True):
                if isinstance(outcome, TaskHandle):
                    waits.start_soon(self._follow, "lane", op, outcome)
                elif isinstance(outcome, StoreError) and outcome.outcome_unknown:
                    write(SubmitUnanswered(op, getattr(outcome, "task_ids", ())))
                else:
                    write(SubmitRejected(op, str(outcome)))

    async def _follow(self, kind: str, op: str, handle: TaskHandle[Any]) -> None:
        self._recorder.write(SubmitAccepted(op, handle.id))
        self.waiting += 1
        try:
            if kind == "cancelled":
                await self._cancel(handle)
            await self._wait(handle)
        finally:
            self.waiting -= 1

    async def _cancel(self, handle: TaskHandle[Any]) -> None:
        await anyio.sleep(self._dice.uniform(0.0, 1.0))
        self._recorder.write(CancelStarted(handle.id))
        with suppress(StoreError):
            self._recorder.write(CancelAnswered(handle.id, (await handle.cancel("chaos")).value))

    async def _wait(self, handle: TaskHandle[Any]) -> None:
        try:
            await handle.result()
        except TaskError:
            pass
        except OrchestratorError:
            return  # the client was closed
        outcome = handle.outcome
        if outcome is not None and outcome.state is not None:
            result = None if outcome.result is None else outcome.result.decode()
            self._recorder.write(EndSeen(handle.id, outcome.state.value, result))
