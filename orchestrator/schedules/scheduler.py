"""Fires due schedules, and sleeps until the next fire time.

Any number of supervisors may run this loop. A fire is one script call: it stores the task and the next fire time, or is
refused if the schedule no longer waits for that fire time.
"""

from __future__ import annotations

import itertools
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import InvalidInput, ServerRefused, StoreError
from orchestrator.core.ids import TaskIds
from orchestrator.core.live_settings import sweep_s
from orchestrator.core.log import get_logger
from orchestrator.core.reading import read_whole
from orchestrator.core.wakeups import EVERYTHING, SCHEDULES
from orchestrator.schedules import scripts
from orchestrator.schedules.model import NEVER, CatchUp, FireOutcome, Overlap, decode_plan
from orchestrator.schedules.plans import fire_row, refusal
from orchestrator.schedules.scripts import SkipRow
from orchestrator.schedules.timing import fires
from orchestrator.tasks import scripts as tasks
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.scripts import CREATED, ScheduledFire
from orchestrator.tasks.submission import SubmissionValidator, submit_caps
from orchestrator.tracing.active import active
from orchestrator.tracing.names import SCHEDULE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.core.turns import LoopTurn
    from orchestrator.core.wakeups import Wakeup
    from orchestrator.schedules.model import Plan
    from orchestrator.schedules.scripts import DueSchedule
    from orchestrator.schedules.timing import Timing
    from orchestrator.services import Services
    from orchestrator.tasks.scripts import SubmitAnswer, SubmitRow
    from orchestrator.tracing.spans import SubmitSpan

LIMIT: Final = 100
"""Schedules per call."""
CATCH_UP_MAX: Final = 100
"""Fire times that `catch_up="all"` makes up for, the newest."""
COUNTED_MAX: Final = 1_000
"""Missed fire times that are counted, so that those of a long outage do not keep the loop busy."""
PUNCTUAL_MS: Final = 60_000
"""Delay within which a fire time is not missed, because a supervisor restarted or another one took over."""
ERROR_CHARS: Final = 1000
IDLE_S: Final = 30.0
"""Time between two looks while there are no schedules. Adding one notifies, but a notification may be lost."""
EXCLUDE_FOR_S: Final = 60.0
"""Time until an invalid schedule is tried again."""
_ENDED: Final = frozenset(state.value for state in TaskState if state.final)
_log = get_logger(__name__)


class FireDecision(NamedTuple):
    """Decision about due fire times: the one to fire, or None; the next one; and the number missed."""

    fired_ms: int | None
    next_ms: int | None
    missed: int


@dataclass(frozen=True, slots=True)
class _ReadyFire:
    """A schedule to fire now."""

    due: DueSchedule
    plan: Plan
    row: SubmitRow
    fire: ScheduledFire
    span: SubmitSpan | None = None

    def skip_row(self, outcome: FireOutcome, *, error: str = "") -> SkipRow:
        """Return the row that records a fire without a task."""
        return _skip_row(self.fire, outcome, error=error)


class Scheduler:
    """Fires due schedules."""

    def __init__(self, services: Services, wakeup: Wakeup, *, repair_requested: Wakeup) -> None:
        self._services, self._wakeup, self._repair_requested = services, wakeup, repair_requested
        self._validator = SubmissionValidator(services.live, ids=TaskIds(listens=False))
        self._pauses = Pauses()
        self._wait_s: float | None = 0.0
        self._asks_at_s = 0.0
        self._excluded_until_s: dict[str, float] = {}

    async def run(self) -> None:
        """Fire schedules until cancelled."""
        # The sweep wakes it, so that it waits no longer than that.
        with self._services.watch_loop("scheduler", waits_s=sweep_s) as turn:
            while True:
                changed = await self._wakeup.wait(self._wait_s)
                turn.record()
                # Without schedules, do not look on every sweep.
                if changed == {EVERYTHING} and self._wait_s is None and time.monotonic() < self._asks_at_s:
                    continue
                try:
                    self._wait_s = await self.fire_all(turn)
                    self._asks_at_s = time.monotonic() + IDLE_S
                    self._pauses.reset()
                except StoreError as failure:
                    _log.failure("schedule_fire_failed", error=failure)
                    if isinstance(failure, ServerRefused):
                        self._repair_requested.notify("schedules")
                    await anyio.sleep(self._pauses.next_s(failure))
                    self._wakeup.notify(SCHEDULES)

    async def fire_all(self, turn: LoopTurn | None = None) -> float | None:
        """Fire all due schedules and return the seconds until the next one, or None if none is scheduled."""
        while True:
            if turn is not None:
                turn.record()
            now_s = time.monotonic()
            self._excluded_until_s = {name: at_s for name, at_s in self._excluded_until_s.items() if at_s > now_s}
            found = await self._services.store.call(
                scripts.due(self._services.keys, excluded=self._excluded_until_s, limit=LIMIT)
            )
            _log.debug("schedules_checked", count=len(found.schedules))
            await self._fire(found.schedules, found.now_ms)
            if found.wait_s != 0 and not found.schedules:
                return found.wait_s

    async def _fire(self, due: list[DueSchedule], now_ms: int) -> None:
        """Fire each schedule once, or skip its fire time. One with more missed fire times is due again."""
        ready: list[_ReadyFire] = []
        passed: list[SkipRow] = []
        for each in due:
            try:
                plan = decode_plan(each.plan)
                choice = decide_fire(plan.timing(each.anchor_ms), plan.catch_up, each.next_ms, now_ms)
                fire = _scheduled_fire(each, choice)
                if choice.fired_ms is None:
                    passed.append(_skip_row(fire, FireOutcome.MISSED))
                else:
                    ready.append(_ReadyFire(each, plan, fire_row(self._validator, plan, fire), fire))
            except InvalidInput as invalid:
                self._exclude(each.name, str(invalid))
                stays = FireDecision(None, each.next_ms, 0)
                passed.append(_skip_row(_scheduled_fire(each, stays), FireOutcome.REFUSED, error=str(invalid)))
        passed += await self._submit(await self._make_room(ready, passed))
        if passed:
            await self._services.store.call(scripts.skip(self._services.keys, rows=passed))

    async def _make_room(self, ready: list[_ReadyFire], passed: list[SkipRow]) -> list[_ReadyFire]:
        """Apply the overlap policies to previous tasks that have not ended, and return the schedules to fire."""
        room: list[_ReadyFire] = []
        for each in ready:
            busy = bool(each.due.state) and each.due.state not in _ENDED
            if busy and each.plan.overlap is Overlap.SKIP:
                passed.append(each.skip_row(FireOutcome.SKIPPED))
                continue
            if busy and each.plan.overlap is Overlap.REPLACE:
                # Cancel before the fire: if this process dies in between, the schedule stays due and is fired later.
                reason = f"replaced by the next task of schedule {each.due.name}"
                await self._services.store.call(tasks.cancel(self._services.keys, ids=[each.due.task], reason=reason))
            room.append(each)
        return room

    async def _submit(self, ready: list[_ReadyFire]) -> list[SkipRow]:
        """Submit the tasks, and return the rows of those that were refused."""
        if not ready:
            return []
        queue = self._services.settings.queue
        with ExitStack() as ending:
            ready = [self._traced(each, ending) for each in ready]
            call = tasks.submit(
                self._services.keys,
                rows=[each.row for each in ready],
                max_tasks=queue.max_tasks,
                max_wait_s=round(queue.max_wait_s),
                caps=submit_caps(queue, self._services.store.floor),
            )
            answers = await self._services.store.call(call)
            for each, answer in zip(ready, answers, strict=True):
                if each.span is not None and answer != CREATED:
                    each.span.refuse(answer.status)
        return [
            row
            for each, answer in zip(ready, answers, strict=True)
            if (row := self._skip_row_of(each, answer)) is not None
        ]

    def _traced(self, each: _ReadyFire, ending: ExitStack) -> _ReadyFire:
        """Start the span of a fire, if this process traces. It begins a trace, because no request led to the fire."""
        if (tracing := active()) is None:
            return each
        span = tracing.start_submit(
            each.plan.skill, pool=self._services.keys.pool, root=True, extra={SCHEDULE: each.due.name}
        )
        ending.callback(span.span.end)
        row = fire_row(self._validator, each.plan, each.fire, trace=span.header)
        span.note_task(row.id, len(row.envelope))
        return replace(each, row=row, span=span)

    def _skip_row_of(self, each: _ReadyFire, answer: SubmitAnswer) -> SkipRow | None:
        name, task = each.due.name, each.row.id
        if answer == CREATED:
            _log.info(
                "schedule_fired", schedule=name, task=task, at_ms=read_whole(each.fire.fired), missed=each.fire.missed
            )
            return None
        if answer.status == "stale":  # another supervisor fired it, or it was changed
            return None
        reason = str(refusal(answer, self._services.settings.queue))
        _log.warning("schedule_task_refused", schedule=name, error=reason)
        return each.skip_row(FireOutcome.REFUSED, error=reason)

    def _exclude(self, name: str, reason: str) -> None:
        _log.error("schedule_invalid", schedule=name, error=reason)
        self._excluded_until_s[name] = time.monotonic() + EXCLUDE_FOR_S


def decide_fire(timing: Timing, catch_up: CatchUp, due_ms: int, now_ms: int) -> FireDecision:
    """Decide about the fire times from `due_ms` up to now. The schedule waits for `due_ms`."""
    passed = [due_ms, *_until(now_ms, itertools.islice(fires(timing, due_ms), COUNTED_MAX))]
    if len(passed) > COUNTED_MAX:
        passed += _newest(timing, passed[-1], now_ms)
    next_ms = timing.after(max(now_ms, due_ms))
    if catch_up is CatchUp.ALL:
        caught_up = passed[-CATCH_UP_MAX:]
        return FireDecision(caught_up[0], caught_up[1] if len(caught_up) > 1 else next_ms, len(passed) - len(caught_up))
    if catch_up is CatchUp.NONE and now_ms - passed[-1] > PUNCTUAL_MS:
        return FireDecision(None, next_ms, len(passed))
    return FireDecision(passed[-1], next_ms, len(passed) - 1)


def _newest(timing: Timing, behind_ms: int, now_ms: int) -> list[int]:
    """Return the newest fire times of a period, at most `CATCH_UP_MAX`, searching back from its end."""
    back_ms = 60_000 * CATCH_UP_MAX
    while True:
        found = list(_until(now_ms, fires(timing, max(behind_ms, now_ms - back_ms))))
        if len(found) >= CATCH_UP_MAX or now_ms - back_ms <= behind_ms:
            return found[-CATCH_UP_MAX:]
        back_ms *= 2


def _until(now_ms: int, times: Iterable[int]) -> Iterable[int]:
    return itertools.takewhile(lambda ms: ms <= now_ms, times)


def _scheduled_fire(due: DueSchedule, choice: FireDecision) -> ScheduledFire:
    next_text = NEVER if choice.next_ms is None else str(choice.next_ms)
    return ScheduledFire(due.name, str(due.next_ms), str(choice.fired_ms or 0), next_text, choice.missed)


def _skip_row(fire: ScheduledFire, outcome: FireOutcome, *, error: str = "") -> SkipRow:
    return SkipRow(fire.schedule, fire.due, fire.next, fire.missed, outcome=outcome, error=error[:ERROR_CHARS])
