"""Writes the report of a run: Markdown, JSON, and the tables of the documentation."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from benchmarks.comparison import OURS, RAW

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.comparison import Comparison
    from benchmarks.figures import Failure, Figure
    from benchmarks.peer import InstalledPeer, MissingPeer

_SHARED_STATE = frozenset({"shared state", "locks", "limits by name", "delivery"})
_CHAT_AND_MEMORY = frozenset({"chat", "memory"})
_VECTORS = frozenset({"vectors"})


@dataclass(frozen=True, slots=True)
class Run:
    """Conditions and results of one run.

    Attributes:
        servers: kinds of servers of the run, with the settings in which they differ.
    """

    started: datetime
    duration_s: float
    server_version: str
    transport: str
    servers: Mapping[str, str]
    sizes: dict[str, Any]
    figures: Sequence[Figure]
    failures: Sequence[Failure]
    load_before: float
    comparisons: Sequence[Comparison] = ()
    peers: Sequence[InstalledPeer] = ()
    missing_peers: Sequence[MissingPeer] = ()

    @property
    def missed(self) -> list[Figure]:
        """Figures that miss a goal."""
        return [figure for figure in self.figures if figure.met is False]


def start_of_run() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(tz=UTC)


def as_markdown(run: Run) -> str:
    """Render one table, with the conditions above and the missed goals below it."""
    goals = sum(figure.met is not None for figure in run.figures)
    rounds = run.sizes["rounds"]
    lines = [
        f"Measured {run.started:%Y-%m-%d %H:%M} UTC in {run.duration_s:.0f} s: {_machine()};",
        f"Redis {run.server_version} over {run.transport}; {', '.join(_versions())};",
        f"{rounds} {'rounds' if rounds > 1 else 'round'}, medians; load before the run {run.load_before:.1f}.",
        "",
        *(f"- Server *{name}*: {settings}." for name, settings in run.servers.items()),
        "",
        "| measure | | server | value | range | ratio | goal | |",
        "|---|---|---|--:|---|--:|---|---|",
        *(_row(figure) for figure in run.figures),
        "",
        f"{goals - len(run.missed)} of {goals} figures with a goal meet it.",
    ]
    lines += [
        f"- **Missed** {figure.measure}, {figure.name}, {figure.settings}: {_distance(figure)}" for figure in run.missed
    ]
    lines += [f"- **Failed** {failure.measure}: {failure.reason}" for failure in run.failures]
    lines += _peer_lines(run)
    return "\n".join(lines) + "\n"


def as_json(run: Run) -> str:
    """Render everything as JSON."""
    return json.dumps(
        {
            "started": run.started.isoformat(),
            "duration_s": round(run.duration_s, 1),
            "machine": _machine(),
            "versions": _versions(),
            "server_version": run.server_version,
            "transport": run.transport,
            "servers": dict(run.servers),
            "load_before": run.load_before,
            "sizes": run.sizes,
            "figures": [
                {
                    **asdict(figure),
                    "ratio": figure.ratio,
                    "met": figure.met,
                    "goals": [asdict(goal) for goal in figure.goals],
                }
                for figure in run.figures
            ],
            "failures": [asdict(failure) for failure in run.failures],
            "peers": {one.peer.name: one.peer.version for one in run.peers},
            "missing_peers": [asdict(missing) for missing in run.missing_peers],
            "comparisons": [
                {
                    "quantity": one.quantity,
                    "unit": one.unit,
                    "settings": one.settings,
                    "rounds": one.rounds,
                    "ours_to": {system: one.ours_to(system) for system in one.rounds if system != OURS},
                    "best_peer": one.best_peer,
                }
                for one in run.comparisons
            ],
        },
        indent=1,
        ensure_ascii=False,
    )


def write_results(run: Run, folder: Path) -> Path:
    """Write both forms under the start time of the run; returns the path of the Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{run.started:%Y%m%d-%H%M%S}"
    (folder / f"{stem}.json").write_text(as_json(run), encoding="utf-8")
    path = folder / f"{stem}.md"
    path.write_text(as_markdown(run), encoding="utf-8")
    return path


def write_into_docs(run: Run, page: Path) -> None:
    """Replace the tables between the marks of a page: figures of tasks, shared state, chats and memories, vectors."""
    text = page.read_text(encoding="utf-8")
    shared = [figure for figure in run.figures if figure.measure in _SHARED_STATE]
    chats = [figure for figure in run.figures if figure.measure in _CHAT_AND_MEMORY]
    vectors = [figure for figure in run.figures if figure.measure in _VECTORS]
    tasks = [figure for figure in run.figures if figure.measure not in _SHARED_STATE | _CHAT_AND_MEMORY | _VECTORS]
    parts = {
        "figures": replace(run, figures=tasks),
        "shared state": replace(run, figures=shared, comparisons=(), missing_peers=()),
        "chats and memories": replace(run, figures=chats, comparisons=()),
        "vectors": replace(run, figures=vectors, comparisons=(), missing_peers=()),
    }
    for name, part in parts.items():
        if not part.figures:
            continue
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, begun, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        if not begun or not ended:
            raise SystemExit(f"{page} has no marks {begin} and {end} to write between.")
        text = f"{before}{begin}\n\n{as_markdown(part)}\n{end}{after}"
    page.write_text(text, encoding="utf-8")


def _row(figure: Figure) -> str:
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
    spread = f"{_number(min(figure.rounds))} to {_number(max(figure.rounds))}" if len(figure.rounds) > 1 else ""
    goals = "; ".join(goal.text for goal in figure.goals)
    met = {True: "met", False: "**missed**", None: ""}[figure.met]
    note = f" ({figure.note})" if figure.note else ""
    value = f"{_number(figure.value)} {figure.unit}"
    where = f"{figure.measure} | {figure.name}{note} | {figure.settings}"
    return f"| {where} | {value} | {spread} | {ratio} | {goals} | {met} |"


def _peer_lines(run: Run) -> list[str]:
    """Render the table of peers and the missing ones; nothing for a run without peers."""
    missing = [f"- **Missing** {one.name}: {one.reason}" for one in run.missing_peers]
    if not run.comparisons:
        return ["", *missing] if missing else []
    versions = ", ".join(f"{one.peer.name} {one.peer.version}" for one in run.peers)
    systems = [OURS, RAW, *(one.peer.name for one in run.peers)]
    return [
        "",
        f"Peers of the same run, in turns with the others: {versions}.",
        "In brackets: ours as a multiple of it; the best peer's figure is bold.",
        "",
        f"| | server | {' | '.join(systems)} |",
        f"|---|---|{'--:|' * len(systems)}",
        *(_comparison_row(comparison, systems) for comparison in run.comparisons),
        *(["", *missing] if missing else []),
    ]


def _comparison_row(comparison: Comparison, systems: Sequence[str]) -> str:
    cells = (_comparison_cell(comparison, system) for system in systems)
    return f"| {comparison.quantity}, {comparison.unit} | {comparison.settings} | {' | '.join(cells)} |"


def _comparison_cell(comparison: Comparison, system: str) -> str:
    value = comparison.value(system)
    if value is None:
        return "-"
    number = f"**{_number(value)}**" if system == comparison.best_peer else _number(value)
    ratio = comparison.ours_to(system)
    return number if system == OURS or ratio is None else f"{number} ({ratio:.2f})"


def _distance(figure: Figure) -> str:
    missed = [goal for goal in figure.goals if not goal.met_by(figure)]
    return "; ".join(
        f"ratio {figure.ratio:.2f}, goal {goal.text}"
        if goal.of_ratio
        else f"{_number(figure.value)} {figure.unit}, goal {goal.text} = {_number(goal.bound)}"
        for goal in missed
    )


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _machine() -> str:
    return f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"


def _versions() -> list[str]:
    loop = f"uvloop {version('uvloop')}" if find_spec("uvloop") else "asyncio's own loop"
    return [*(f"{name} {version(name)}" for name in ("redis", "hiredis")), loop]
