"""Draws the lanes of a session as SVG: who worked on what over time, one lane per agent.

The drawing has no script, no style of its own and no links: the table beside it has the links and says the same in
words. Colours come from classes, and a bar that is wide enough has the icon of its outcome.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from orchestrator.core.durations import in_words
from orchestrator.dashboard.rendering import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orchestrator.views.session_summary import SessionTask

WIDTH: Final = 960
LABEL: Final = 170
LANE: Final = 22
BAR: Final = 14
TOP: Final = 24
MOST_LANES: Final = 20
MOST_ROWS: Final = 4
"""Bars of one agent that are drawn one above the other when it works on several tasks at once."""
MOST_BARS: Final = 150
TICKS: Final = 6
WAITING: Final = ""
_KINDS: Final = {
    None: ("▶", "run"),
    "succeeded": ("✓", "good"),
    "failed": ("✕", "bad"),
    "timed_out": ("✕", "bad"),
    "died": ("✕", "bad"),
    "asked": ("?", "ask"),
    "joining": ("⋈", "wait"),
}
_OTHER: Final = ("·", "off")


@dataclass(frozen=True, slots=True)
class Bar:
    """A time in which an agent had a task, or in which a task waited.

    Attributes:
        agent: the agent; empty for a wait.
        start: its beginning.
        end: its end; now, while it lasts.
        outcome: how it ended; None while it lasts, `waiting` for a wait.
        text: what a person sees who points at it.
    """

    agent: str
    start: datetime
    end: datetime
    outcome: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Lanes:
    """A drawing and what it shows in words.

    Attributes:
        svg: the drawing; empty if there is nothing to draw.
        summary: one sentence.
        left_out: bars and lanes that it does not show.
    """

    svg: Markup
    summary: str
    left_out: int


def bars_of(tasks: Iterable[SessionTask], now: datetime) -> list[Bar]:
    """Return the bars of tasks: of each attempt, and of the wait before the first one."""
    bars: list[Bar] = []
    for task in tasks:
        first = task.attempts[0].assigned_at if task.attempts else task.ended_at or now
        if first > task.submitted_at:
            bars.append(Bar(WAITING, task.submitted_at, first, "waiting", f"{task.skill} waited"))
        for one in task.attempts:
            end = one.ended_at or now
            outcome = None if one.outcome is None else one.outcome.value
            said = "runs" if outcome is None else outcome.replace("_", " ")
            text = f"{task.skill}, attempt {one.number} of {task.id}, {said}"
            if one.agent:
                bars.append(Bar(one.agent, one.assigned_at, max(one.assigned_at, end), outcome, text))
    return bars


def draw(bars: Sequence[Bar], *, since: datetime | None = None, until: datetime | None = None) -> Lanes:
    """Draw bars, between two times if they are given.

    Args:
        bars: the bars.
        since: beginning of the drawing; by default that of the first bar.
        until: end of the drawing; by default that of the last bar.
    """
    within = [bar for bar in bars if (since is None or bar.end >= since) and (until is None or bar.start <= until)]
    if not within:
        return Lanes(Markup(""), "No agent worked in this time.", 0)
    start = since or min(bar.start for bar in within)
    end = until or max(bar.end for bar in within)
    length_s = max((end - start).total_seconds(), 0.001)
    shown = sorted(within, key=lambda bar: bar.start)[-MOST_BARS:]
    names = sorted({bar.agent for bar in shown}, key=lambda name: (name != WAITING, name))[:MOST_LANES]
    parts: list[Markup] = []
    y = TOP
    drawn = 0
    for name in names:
        rows = _pack([bar for bar in shown if bar.agent == name])
        height = LANE * len(rows)
        label = visible(name)[:24] if name else "waiting"
        parts.append(
            Markup('<line class="rule" x1="0" x2="{}" y1="{}" y2="{}"/><text x="2" y="{}">{}</text>').format(
                WIDTH, y, y, y + 15, label
            )
        )
        for row, members in enumerate(rows):
            for bar in members:
                parts.append(_draw_bar(bar, start, length_s, y + row * LANE + (LANE - BAR) // 2))
                drawn += 1
        y += height
    summary = _summary(within, names, start, end)
    svg = Markup(
        '<svg class="lanes" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        'aria-label="{label}">{axis}{parts}</svg>'
    ).format(
        width=WIDTH,
        height=y + 4,
        label=summary,
        axis=_axis(start, length_s, y),
        parts=Markup("").join(parts),
    )
    return Lanes(svg, summary, len(within) - drawn)


def _pack(bars: Sequence[Bar]) -> list[list[Bar]]:
    """Return the bars of one agent in rows without overlaps; the last row takes what is too much for the others."""
    rows: list[list[Bar]] = []
    for bar in bars:
        free = next((row for row in rows if row[-1].end <= bar.start), None)
        if free is None and len(rows) < MOST_ROWS:
            rows.append(free := [])
        (rows[-1] if free is None else free).append(bar)
    return rows


def _draw_bar(bar: Bar, start: datetime, length_s: float, y: int) -> Markup:
    left = _x(bar.start, start, length_s)
    width = max(2.0, _x(bar.end, start, length_s) - left)
    icon, kind = ("", "wait") if bar.outcome == "waiting" else _KINDS.get(bar.outcome, _OTHER)
    lasted = _lasted((bar.end - bar.start).total_seconds())
    title = f"{visible(bar.text)[:160]}, {lasted} from {_clock(bar.start)} UTC"
    letter = Markup('<text class="icon" x="{}" y="{}">{}</text>').format(f"{left + 3:.1f}", y + 11, icon)
    return Markup('<g class="bar {}"><title>{}</title><rect x="{}" y="{}" width="{}" height="{}"/>{}</g>').format(
        kind, title, f"{left:.1f}", y, f"{width:.1f}", BAR, letter if width >= 16 and icon else ""
    )


def _axis(start: datetime, length_s: float, height: int) -> Markup:
    parts: list[Markup] = []
    dated = length_s > 86_400
    for n in range(TICKS):
        x = LABEL + (WIDTH - LABEL) * n / TICKS
        at = start + timedelta(seconds=length_s * n / TICKS)
        said = f"{at.astimezone(UTC):%m-%d %H:%M}" if dated else _clock(at, exact=length_s < 2 * TICKS)
        parts.append(
            Markup('<line class="rule" x1="{0}" x2="{0}" y1="16" y2="{1}"/><text x="{0}" y="12">{2}</text>').format(
                f"{x:.1f}", height, said
            )
        )
    return Markup("").join(parts)


def _summary(bars: Sequence[Bar], names: Sequence[str], start: datetime, end: datetime) -> str:
    agents = [name for name in names if name]
    attempts = [bar for bar in bars if bar.agent]
    busy_s = _covered([(bar.start, bar.end) for bar in attempts])
    said = f"{_number(len(attempts), 'attempt')} of {_number(len(agents), 'agent')}" if attempts else "no attempt yet"
    return (
        f"Lanes of the agents from {start.astimezone(UTC):%Y-%m-%d %H:%M:%S} to {end.astimezone(UTC):%H:%M:%S} UTC: "
        f"{said}; some agent worked in {_lasted(busy_s)} of {_lasted((end - start).total_seconds())}."
    )


def _covered(times: Sequence[tuple[datetime, datetime]]) -> float:
    """Return the seconds that at least one of these times covers."""
    merged: list[tuple[datetime, datetime]] = []
    for begin, end in sorted(times):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return sum((end - begin).total_seconds() for begin, end in merged)


def _x(at: datetime, start: datetime, length_s: float) -> float:
    share = min(1.0, max(0.0, (at - start).total_seconds() / length_s))
    return LABEL + (WIDTH - LABEL) * share


def _clock(at: datetime, *, exact: bool = False) -> str:
    return at.astimezone(UTC).strftime("%H:%M:%S.%f")[:-3] if exact else f"{at.astimezone(UTC):%H:%M:%S}"


def _lasted(seconds: float) -> str:
    return in_words(seconds) if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _number(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
