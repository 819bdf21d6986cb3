"""Fires schedules: submits their tasks when their times have come, and sleeps until the next one does.

Any number of these loops may run. A fire is one script call, in which the task is stored and the schedule moved on,
and which is refused when the schedule does not wait for that time any more.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio

from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import InvalidInput, ServerRefused, StoreError
from orchestrator.core.ids import TaskIds
from orchestrator.core.log import get_logger
from orchestrator.core.wakeups import EVERYTHING, SCHEDULES
from orchestrator.schedules import scripts
from orchestrator.schedules.model import NEVER, CatchUp, FireOutcome, Overlap, decode_plan
from orchestrator.schedules.plans import fire_row, refusal
from orchestrator.schedules.scripts import SkipRow
from orchestrator.schedules.timing import fires
from orchestrator.tasks import scripts as tasks
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.scripts import CREATED, ScheduledFire
from orchestrator.tasks.submission import SubmissionValidator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.core.wakeups import Wakeup
    from orchestrator.schedules.model import Plan
    from orchestrator.schedules.scripts import DueSchedule
    from orchestrator.schedules.timing import Timing
    from orchestrator.services import Services
    from orchestrator.tasks.scripts import SubmitAnswer, SubmitRow

LIMIT: Final = 100
"""Schedules that one call looks at."""
CATCH_UP_MAX: Final = 100
"""Of the times that were missed so many are made up for, the newest."""
COUNTED_MAX: Final = 1_000
"""Of the times that were missed about so many are counted: those of a long outage would keep the loop busy."""
PUNCTUAL_MS: Final = 60_000
"""A time that passed so long ago was not missed: a supervisor was restarted, or another took over."""
ERROR_CHARS: Final = 1000
IDLE_S: Final = 30.0
"""So often it asks for schedules while there are none: adding one notifies, and notifications are hints."""
EXCLUDE_FOR_S: Final = 60.0
"""A schedule that cannot be worked with is tried again so soon."""
_ENDED: Final = frozenset(state.value for state in TaskState if state.final)
_log = get_logger(__name__)


class Choice(NamedTuple):
    """What to do with the times that have come: which to fire (None: none), which is next, how many were missed."""

    fired_ms: int | None
    next_ms: int | None
    missed: int


@dataclass(frozen=True, slots=True)
class _Ready:
    """A schedule that is to be fired now."""

    due: DueSchedule
    plan: Plan
    row: SubmitRow
    fire: ScheduledFire

    def skip_row(self, outcome: FireOutcome, *, error: str = "") -> SkipRow:
        """What is written into the schedule when the fire made no new task."""
        return _skip_row(self.fire, outcome, error=error)


class Scheduler:
    """Fires what is due; wakes by itself at the next time."""

    def __init__(self, services: Services, wakeup: Wakeup, *, repair_requested: Wakeup) -> None:
        self._services, self._wakeup, self._repair_requested = services, wakeup, repair_requested
        self._validator = SubmissionValidator(services.settings, ids=TaskIds(listens=False))
        self._pauses = Pauses()
        self._wait_s: float | None = 0.0
        self._asks_at_s = 0.0
        self._excluded_until_s: dict[str, float] = {}

    async def run(self) -> None:
        """Fire until cancelled."""
        while True:
            changed = await self._wakeup.wait(self._wait_s)
            # Where there is no schedule, not every sweep asks for one.
            if changed == {EVERYTHING} and self._wait_s is None and time.monotonic() < self._asks_at_s:
                continue
            try:
                self._wait_s = await self.fire_all()
                self._asks_at_s = time.monotonic() + IDLE_S
                self._pauses.reset()
            except StoreError as failure:
                _log.warning("schedules_interrupted", error=str(failure))
                if isinstance(failure, ServerRefused):
                    self._repair_requested.notify("schedules")
                await anyio.sleep(self._pauses.next_s())
                self._wakeup.notify(SCHEDULES)

    async def fire_all(self) -> float | None:
        """Fire all that is due; answers in how many seconds more is, None: nothing is."""
        while True:
            now_s = time.monotonic()
            self._excluded_until_s = {name: at_s for name, at_s in self._excluded_until_s.items() if at_s > now_s}
            found = await self._services.store.call(
                scripts.due(self._services.keys, excluded=self._excluded_until_s, limit=LIMIT)
            )
            await self._fire(found.schedules, found.now_ms)
            if found.wait_s != 0 and not found.schedules:
                return found.wait_s

    async def _fire(self, due: list[DueSchedule], now_ms: int) -> None:
        """Fire each once, or let it go on without a task; those that missed more are due again at once."""
        ready: list[_Ready] = []
        passed: list[SkipRow] = []
        for each in due:
            try:
                plan = decode_plan(each.plan)
                choice = choose(plan.timing(each.anchor_ms), plan.catch_up, each.next_ms, now_ms)
                fire = _scheduled_fire(each, choice)
                if choice.fired_ms is None:
                    passed.append(_skip_row(fire, FireOutcome.MISSED))
                else:
                    ready.append(_Ready(each, plan, fire_row(self._validator, plan, fire), fire))
            except InvalidInput as invalid:
                self._exclude(each.name, str(invalid))
                stays = Choice(None, each.next_ms, 0)
                passed.append(_skip_row(_scheduled_fire(each, stays), FireOutcome.REFUSED, error=str(invalid)))
        passed += await self._submit(await self._make_room(ready, passed))
        if passed:
            await self._services.store.call(scripts.skip(self._services.keys, rows=passed))

    async def _make_room(self, ready: list[_Ready], passed: list[SkipRow]) -> list[_Ready]:
        """Do what the overlap policy says about previous tasks that have not ended; answers what may be fired."""
        room: list[_Ready] = []
        for each in ready:
            busy = bool(each.due.state) and each.due.state not in _ENDED
            if busy and each.plan.overlap is Overlap.SKIP:
                passed.append(each.skip_row(FireOutcome.SKIPPED))
                continue
            if busy and each.plan.overlap is Overlap.REPLACE:
                # Before the fire: whoever is killed in between leaves the schedule due, and the next one does it all.
                reason = f"replaced by the next task of schedule {each.due.name}"
                await self._services.store.call(tasks.cancel(self._services.keys, ids=[each.due.task], reason=reason))
            room.append(each)
        return room

    async def _submit(self, ready: list[_Ready]) -> list[SkipRow]:
        """Submit the tasks of those that are due; answers those that led to none."""
        if not ready:
            return []
        queue = self._services.settings.queue
        call = tasks.submit(
            self._services.keys,
            rows=[each.row for each in ready],
            max_tasks=queue.max_tasks,
            max_wait_s=round(queue.max_wait_s),
        )
        answers = await self._services.store.call(call)
        return [
            row
            for each, answer in zip(ready, answers, strict=True)
            if (row := self._skip_row_of(each, answer)) is not None
        ]

    def _skip_row_of(self, each: _Ready, answer: SubmitAnswer) -> SkipRow | None:
        name, task = each.due.name, each.row.id
        if answer == CREATED:
            _log.info("schedule_fired", schedule=name, task=task, at_ms=each.fire.fired, missed=each.fire.missed)
            return None
        if answer.status == "stale":  # another supervisor was quicker, or the schedule was changed meanwhile
            return None
        reason = str(refusal(answer, max_tasks=self._services.settings.queue.max_tasks))
        _log.warning("schedule_refused", schedule=name, error=reason)
        return each.skip_row(FireOutcome.REFUSED, error=reason)

    def _exclude(self, name: str, reason: str) -> None:
        _log.error("schedule_invalid", schedule=name, error=reason)
        self._excluded_until_s[name] = time.monotonic() + EXCLUDE_FOR_S


def choose(timing: Timing, catch_up: CatchUp, due_ms: int, now_ms: int) -> Choice:
    """Decide about the fire times from `due_ms` up to now, of which the first is that for which the schedule waited."""
    passed = [due_ms, *_until(now_ms, itertools.islice(fires(timing, due_ms), COUNTED_MAX))]
    if len(passed) > COUNTED_MAX:
        passed += _newest(timing, passed[-1], now_ms)
    next_ms = timing.after(max(now_ms, due_ms))
    if catch_up is CatchUp.ALL:
        caught_up = passed[-CATCH_UP_MAX:]
        return Choice(caught_up[0], caught_up[1] if len(caught_up) > 1 else next_ms, len(passed) - len(caught_up))
    if catch_up is CatchUp.NONE and now_ms - passed[-1] > PUNCTUAL_MS:
        return Choice(None, next_ms, len(passed))
    return Choice(passed[-1], next_ms, len(passed) - 1)


def _newest(timing: Timing, behind_ms: int, now_ms: int) -> list[int]:
    """The newest fire times between two instants, as many as may be made up for, looked for from the later end."""
    back_ms = 60_000 * CATCH_UP_MAX
    while True:
        found = list(_until(now_ms, fires(timing, max(behind_ms, now_ms - back_ms))))
        if len(found) >= CATCH_UP_MAX or now_ms - back_ms <= behind_ms:
            return found[-CATCH_UP_MAX:]
        back_ms *= 2


def _until(now_ms: int, times: Iterable[int]) -> Iterable[int]:
    return itertools.takewhile(lambda ms: ms <= now_ms, times)


def _scheduled_fire(due: DueSchedule, choice: Choice) -> ScheduledFire:
    next_text = NEVER if choice.next_ms is None else str(choice.next_ms)
    return ScheduledFire(due.name, str(due.next_ms), str(choice.fired_ms or 0), next_text, choice.missed)


def _skip_row(fire: ScheduledFire, outcome: FireOutcome, *, error: str = "") -> SkipRow:
    return SkipRow(fire.schedule, fire.due, fire.next, fire.missed, outcome=outcome, error=error[:ERROR_CHARS])
