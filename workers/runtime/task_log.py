"""Logs the life of tasks: each attempt that starts, and each verdict that Redis has stored.

Starts and successes are written at debug, and at info under `orc up`, whose reader watches the tasks. Failures and dead
letters have a budget of their own, so that successes do not crowd them out.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from orchestrator.core.line_cap import LineCap
from orchestrator.core.log import get_logger
from orchestrator.core.reading import read_text
from orchestrator.tasks.model import VerdictKind
from orchestrator.workers.runtime.places import definition_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.tasks.model import Verdict
    from orchestrator.workers.runtime.attempt import Attempt

LINES_PER_S: Final = 100
"""Lines about tasks in a second and process; 100 take 1 % of a processor."""
FAILURES_PER_S: Final = 50
"""The same for failures and dead letters, whose lines may have a traceback."""
REMEMBERED: Final = 1000
"""Failed tasks whose last traceback the process knows."""

_FAILURES: Final = frozenset({VerdictKind.RETRY, VerdictKind.DEAD, VerdictKind.INVALID})
_CONTINUED: Final = {
    VerdictKind.SNOOZE: "task_snoozed",
    VerdictKind.ASK: "task_asked",
    VerdictKind.JOIN: "task_joins",
    VerdictKind.CANCELLED: "task_cancelled",
    VerdictKind.REQUEUE: "task_requeued",
    VerdictKind.AWAIT_LOCK: "task_awaits_lock",
    VerdictKind.RELEASED: "task_released",
}
_WITH_DEBUG: Final = frozenset({VerdictKind.RELEASED, VerdictKind.AWAIT_LOCK})
_log = get_logger(__name__)


class _Level:
    """The level of starts and successes in this process and in those that it forks."""

    is_info = False


def tell_of_tasks() -> None:
    """Write starts and successes at info, for `orc up`."""
    _Level.is_info = True


class TaskLog:
    """Writes the lines of one worker. Used in its event loop only."""

    def __init__(self) -> None:
        self._cap, self._failure_cap = LineCap(LINES_PER_S, _tell_left_out), LineCap(FAILURES_PER_S, _tell_left_out)
        self._loop_cap = LineCap(LINES_PER_S, _tell_left_out)
        self._traces: OrderedDict[str, int] = OrderedDict()

    @property
    def tells_all(self) -> bool:
        """Return whether starts and successes are written now."""
        return _log.writes_info if _Level.is_info else _log.writes_debug

    def started(self, attempt: Attempt) -> None:
        """Write that a handler starts; its success is written if its start was."""
        attempt.start_logged = self._cap.admits("task_started", lines=2)
        if not attempt.start_logged:
            return
        task, skill = attempt.delivery, attempt.envelope.skill
        if _Level.is_info:
            _log.info("task_started", task=task.task_id, agent=task.agent, skill=skill, attempt=task.attempt)
        else:
            _log.debug("task_started", task=task.task_id, agent=task.agent, skill=skill, attempt=task.attempt)

    def ended(self, attempt: Attempt, kind: VerdictKind, verdict: Verdict) -> None:
        """Write what became of a task.

        Args:
            attempt: that has ended.
            kind: what Redis made of the verdict.
            verdict: of the attempt.
        """
        if kind is VerdictKind.SUCCEEDED:
            if self.tells_all:
                self._succeeded(attempt)
        elif kind in _FAILURES:
            self._failed(attempt, kind, verdict)
        elif kind not in _WITH_DEBUG or _log.writes_debug:
            self._continued(attempt, kind, verdict)

    def entries_read(self, agent: str, count: int) -> None:
        """Write that a read of an inbox brought entries."""
        if _log.writes_debug and self._loop_cap.admits("entries_read"):
            _log.debug("entries_read", agent=agent, count=count)

    def verdicts_stored(self, count: int) -> None:
        """Write that Redis has stored verdicts."""
        if _log.writes_debug and self._loop_cap.admits("verdicts_stored"):
            _log.debug("verdicts_stored", count=count)

    def _succeeded(self, attempt: Attempt) -> None:
        if attempt.start_logged is False:
            self._cap.leave_out("task_succeeded")
            return
        if attempt.start_logged is None and not self._cap.admits("task_succeeded"):
            return
        task, ran_ms = attempt.delivery, round((attempt.ran_s or 0.0) * 1000, 1)
        skill = attempt.envelope.skill
        if _Level.is_info:
            _log.info(
                "task_succeeded", task=task.task_id, agent=task.agent, skill=skill, attempt=task.attempt, ran_ms=ran_ms
            )
        else:
            _log.debug(
                "task_succeeded", task=task.task_id, agent=task.agent, skill=skill, attempt=task.attempt, ran_ms=ran_ms
            )

    def _failed(self, attempt: Attempt, kind: VerdictKind, verdict: Verdict) -> None:
        event = "task_failed" if kind is VerdictKind.DEAD else "attempt_failed"
        if not self._failure_cap.admits(event):
            return
        task = attempt.delivery
        where = attempt.raised_at or definition_of(attempt.skill)
        log = _log.bind(task=task.task_id, agent=task.agent, skill=attempt.envelope.skill, attempt=task.attempt)
        if kind is VerdictKind.INVALID:
            log.warning("task_awaits_version", reason=verdict.reason, where=where)
            return
        trace = self._new_trace(task.task_id, verdict.payload) if attempt.raised else None
        reason = verdict.reason
        if verdict.kind is VerdictKind.SNOOZE:
            reason = f"it raised Snooze once more than max_snoozes={verdict.number} of its skill allows"
        if kind is VerdictKind.DEAD:
            log.error("task_failed", reason=reason, where=where, traceback=trace)
        else:
            delay_ms = verdict.delay_ms
            log.warning("attempt_failed", reason=reason, retry_in_ms=delay_ms, where=where, traceback=trace)

    def _continued(self, attempt: Attempt, kind: VerdictKind, verdict: Verdict) -> None:
        if not self._cap.admits(_CONTINUED[kind]):
            return
        task = attempt.delivery
        log = _log.bind(task=task.task_id, agent=task.agent, skill=attempt.envelope.skill, attempt=task.attempt)
        match kind:
            case VerdictKind.SNOOZE:
                delay_ms = max(0, verdict.at_ms - round(time.time() * 1000)) if verdict.at_ms else verdict.delay_ms
                log.info("task_snoozed", reason=verdict.reason, retry_in_ms=delay_ms, where=attempt.raised_at)
            case VerdictKind.ASK:
                log.info("task_asked", question=verdict.number)
            case VerdictKind.JOIN:
                log.info("task_joins", join=verdict.number)
            case VerdictKind.CANCELLED:
                log.info("task_cancelled")
            case VerdictKind.REQUEUE:
                log.info("task_requeued", reason=verdict.reason)
            case VerdictKind.AWAIT_LOCK:
                log.debug("task_awaits_lock", reason=verdict.reason, retry_in_ms=verdict.delay_ms)
            case _:
                log.debug("task_released", reason=verdict.reason)

    def _new_trace(self, task_id: str, trace: bytes) -> str | None:
        """Return a traceback, unless the last one of the task came from the same lines of code."""
        text = read_text(trace)
        places = tuple(line for line in text.splitlines() if line.lstrip(" |").startswith('File "'))
        if not places:
            return None  # the worker made the exception, and its reason says all
        lines = hash(places)
        known = self._traces.pop(task_id, None)
        self._traces[task_id] = lines
        if len(self._traces) > REMEMBERED:
            self._traces.popitem(last=False)
        return None if known == lines else text

    def close(self) -> None:
        """Write what was left out in the last second."""
        self._cap.flush()
        self._failure_cap.flush()
        self._loop_cap.flush()


def _tell_left_out(events: Mapping[str, int]) -> None:
    _log.info("task_lines_left_out", count=sum(events.values()), events=dict(events))
