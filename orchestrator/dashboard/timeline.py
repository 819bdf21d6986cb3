"""Lays out the life of a task as spans of time, and draws them as SVG with a bar per span.

The same spans are a table, so that nothing is said by the picture alone. A record keeps the last 20 attempts; what was
before them is one span.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from orchestrator.core.durations import in_words
from orchestrator.dashboard.rendering import visible
from orchestrator.tasks.history import AttemptOutcome
from orchestrator.tasks.model import TaskState
from orchestrator.why.model import Cause

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from orchestrator.tasks.history import TaskAttempt
    from orchestrator.views.task_values import TaskDetails

WIDTH: Final = 1000
ROW: Final = 22
LABEL: Final = 190
LEAST: Final = 2.0
"""Width of the shortest bar."""
_PAUSES: Final[Mapping[AttemptOutcome | None, tuple[str, str]]] = {
    AttemptOutcome.FAILED: ("waits for the retry", "wait"),
    AttemptOutcome.TIMED_OUT: ("waits for the retry", "wait"),
    AttemptOutcome.DIED: ("waits after the death of its worker", "bad"),
    AttemptOutcome.SNOOZED: ("snoozed", "wait"),
    AttemptOutcome.ASKED: ("waits for an answer", "ask"),
    AttemptOutcome.JOINING: ("waits for tasks that it joins", "wait"),
}
_KINDS: Final[Mapping[AttemptOutcome | None, str]] = {
    None: "run",
    AttemptOutcome.SUCCEEDED: "good",
    AttemptOutcome.FAILED: "bad",
    AttemptOutcome.TIMED_OUT: "bad",
    AttemptOutcome.DIED: "bad",
    AttemptOutcome.ASKED: "ask",
}
_WAITS: Final[Mapping[Cause, str]] = {
    Cause.SCHEDULED: "scheduled for later",
    Cause.RETRYING: "waits for the retry",
    Cause.SNOOZED: "snoozed",
    Cause.LOCKED: "waits for a lock",
    Cause.RECOVERING: "waits after the death of its worker",
    Cause.STOPPED: "stopped by an operator",
    Cause.PAUSED: "paused by an operator",
    Cause.NO_SUPERVISOR: "waits for a supervisor",
    Cause.LOST: "does not go on, because Redis lost data",
    Cause.LANE: "waits for its turn in the lane",
    Cause.SHARE: "waits for its share",
    Cause.BUDGET: "waits for its budget",
    Cause.AGENT_UNKNOWN: "waits for its agent",
    Cause.AGENT_DOWN: "waits for its agent",
    Cause.AGENT_DRAINING: "waits for its agent",
    Cause.SKILL_MISSING: "waits for workers with its skill",
    Cause.SKILL_PARTIAL: "waits for workers with its skill",
    Cause.SKILL_OUTDATED: "waits for workers with another version of its skill",
    Cause.NO_AGENT: "waits for an agent with its skill",
    Cause.LIMIT_UNDEFINED: "waits for a limit that is not defined",
    Cause.SUSPECTED: "waits for a worker process with room for it",
    Cause.NO_ROOM: "waits for a free slot",
    Cause.PROVIDER: "waits for a provider",
    Cause.LIMIT: "waits for a limit",
    Cause.TURN: "waits for its turn",
    Cause.AWAITING_INPUT: "waits for an answer",
    Cause.CHILDREN: "waits for tasks that it joins",
    Cause.PREDECESSORS: "waits for its predecessors",
}
"""Words for each cause of a task that no agent has."""


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    """A part of the life of a task.

    Attributes:
        what: in words.
        kind: class of its colour, one of the states.
        end: None while it lasts.
        detail: who had it, or why it ended.
    """

    what: str
    kind: str
    start: datetime
    end: datetime | None
    detail: str = ""

    def seconds(self, now: datetime) -> float:
        """Return how long it took so far."""
        return max(0.0, ((self.end or now) - self.start).total_seconds())


def spans_of(task: TaskDetails) -> list[TimelineSpan]:
    """Return the spans of a task, oldest first."""
    info, found = task.info, list[TimelineSpan]()
    at, before = info.submitted_at, None
    for attempt in info.history:
        if attempt.number > 1 and before is None:
            found.append(
                TimelineSpan(
                    f"{attempt.number - 1} earlier attempts, no longer recorded", "off", at, attempt.assigned_at
                )
            )
        elif attempt.assigned_at > at:
            what, kind = _PAUSES.get(before.outcome, ("waits", "wait")) if before else ("waits", "wait")
            found.append(TimelineSpan(what, kind, at, attempt.assigned_at, _answered(task, before)))
        found += _attempt(attempt)
        at, before = attempt.ended_at or attempt.assigned_at, attempt
    if info.state.final:
        if info.ended_at is not None and info.ended_at > at:
            # Cancelled or expired while it waited.
            found.append(TimelineSpan("waits", "wait", at, info.ended_at, f"{info.state}: {info.reason}"))
    elif info.state not in {TaskState.RUNNING, TaskState.CANCELLING}:
        start = max(at, task.why.since) if info.state is TaskState.ASSIGNED and task.why.since else at
        what = "in the inbox of its agent" if info.state is TaskState.ASSIGNED else _WAITS.get(task.why.cause, "waits")
        kind = "ask" if info.state is TaskState.AWAITING_INPUT else "wait"
        found.append(TimelineSpan(what, kind, start, None, _waits_for(task)))
    return found


def _attempt(attempt: TaskAttempt) -> Iterable[TimelineSpan]:
    began = attempt.began_at or attempt.assigned_at
    if attempt.began_at is not None and attempt.began_at > attempt.assigned_at:
        yield TimelineSpan(
            "in the inbox of its agent", "off", attempt.assigned_at, attempt.began_at, attempt.agent or ""
        )
    outcome = "runs" if attempt.outcome is None else attempt.outcome.replace("_", " ")
    if attempt.ended_at is not None and attempt.outcome is None:
        outcome = "ended"
    who = " on ".join(filter(None, (attempt.agent, attempt.worker)))
    detail = f"{who}: {attempt.reason}" if attempt.reason else who
    kind = _KINDS.get(attempt.outcome, "off")
    yield TimelineSpan(f"attempt {attempt.number}: {outcome}", kind, began, attempt.ended_at, detail)


def _answered(task: TaskDetails, before: TaskAttempt | None) -> str:
    if before is None or before.outcome is not AttemptOutcome.ASKED or before.ended_at is None:
        return ""
    asked = [one for one in task.info.questions if one.answered_at is not None and one.answered_at >= before.ended_at]
    if not asked:
        return ""
    return f"answered by {asked[0].answered_by}" if asked[0].answered else "not answered in time"


def _waits_for(task: TaskDetails) -> str:
    why = task.why
    match why.cause:
        case Cause.LANE:
            return f"lane {why.lane}, behind task {why.task}"
        case Cause.LIMIT | Cause.LIMIT_UNDEFINED:
            return f"limit {why.limit}"
        case Cause.PROVIDER:
            return f"provider {why.limit}"
        case Cause.BUDGET:
            return f"budget {why.budget}"
        case Cause.SHARE:
            return f"key {why.key}"
    return why.reason or ""


# ------------------------------------------------------------------------------------------------------------- the SVG


def draw(spans: Sequence[TimelineSpan], now: datetime) -> Markup:
    """Return the SVG of spans: one bar below the other on one scale of time, each with a title."""
    if not spans:
        return Markup("")
    start, end = spans[0].start, max([now if span.end is None else span.end for span in spans])
    total = max((end - start).total_seconds(), 0.001)
    room = WIDTH - LABEL
    rows = []
    for number, span in enumerate(spans):
        x = LABEL + room * min(1.0, max(0.0, (span.start - start).total_seconds() / total))
        width = max(LEAST, room * min(1.0, span.seconds(now) / total))
        x, y = min(x, WIDTH - width), number * ROW
        said = visible(span.what)[:60]
        rows.append(
            Markup(
                '<g class="span {kind}"><title>{what}, {long}{detail}</title>'
                '<text x="{label}" y="{text}" text-anchor="end">{short}</text>'
                '<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" rx="2"/></g>'
            ).format(
                kind=span.kind,
                what=said,
                long=lasted(span, now),
                detail=f": {visible(span.detail)[:300]}" if span.detail else "",
                label=LABEL - 8,
                text=y + ROW - 8,
                short=said if len(said) <= 28 else said[:27] + "…",
                x=x,
                y=y + 3,
                width=width,
                height=ROW - 6,
            )
        )
    return Markup(
        '<svg class="timeline" viewBox="0 0 {width} {height}" role="img" aria-labelledby="timeline-title" '
        'preserveAspectRatio="xMinYMin meet"><title id="timeline-title">{count} spans over {total}; the table has '
        "each</title>{rows}</svg>"
    ).format(
        width=WIDTH,
        height=len(spans) * ROW,
        count=len(spans),
        total=in_words(total),
        rows=Markup("").join(rows),
    )


def lasted(span: TimelineSpan, now: datetime) -> str:
    """Return how long a span took, in words."""
    seconds = span.seconds(now)
    said = f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s" if seconds < 60 else in_words(seconds)
    return said if span.end is not None else f"{said} so far"
