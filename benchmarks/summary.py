"""Draws the picture and writes the short table at the top of the performance page, from its table of peers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from math import log10
from typing import TYPE_CHECKING, Final

from benchmarks.server import EMBEDDED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BEGIN: Final = "<!-- summary: begin -->"
END: Final = "<!-- summary: end -->"
SHOWN: Final = {
    "drain, 1 worker process, tasks/s": True,
    "drain, 2 worker processes, tasks/s": True,
    "submit, one by one, tasks/s": True,
    "submit, 100 at once, tasks/s": True,
    "submit, 1000 in a call, tasks/s": True,
    "end to end at rest, p50, ms": False,
    "end to end at rest, p99, ms": False,
    "pick-up at 500 tasks/s, p99, ms": False,
    "server CPU per task, whole life, µs": False,
    "network per task, bytes": False,
    "memory per queued task, bytes": False,
}
"""The quantities of the summary; True where a higher value is better."""

_COLOURS: Final = ("#6b7280", "#d97706", "#2563eb", "#7c3aed", "#dc2626", "#059669", "#0891b2", "#be185d")
_LEFT, _RIGHT, _TOP, _ROW = 250, 700, 56, 30
_TICKS: Final = (0.5, 1, 2, 5, 10, 20, 50, 100)


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity: its value here, and in each other system as printed and as a number."""

    quantity: str
    ours: str
    others: dict[str, tuple[str, float]]

    def advantage(self, system: str) -> float:
        """How many times better this project is than a system; below 1 it is worse."""
        ours, theirs = _number(self.ours), self.others[system][1]
        return ours / theirs if SHOWN[self.quantity] else theirs / ours

    @property
    def best_peer(self) -> str:
        """The peer that comes closest, or is ahead."""
        return min((name for name in self.others if name != "raw"), key=self.advantage)


def read_rows(text: str) -> list[Row]:
    """Return the shown quantities of the table of peers in a page."""
    start = text.index("| | server | ours | raw |")
    table = text[start:].partition("\n\n")[0]
    head, *lines = re.findall(r"^\| (.*) \|$", table, re.MULTILINE)
    systems = head.split(" | ")[2:]
    rows = []
    for line in lines:
        quantity, settings, ours, *cells = line.split(" | ")
        if quantity in SHOWN and settings == EMBEDDED:
            printed = {name: cell.split(" ")[0].strip("*") for name, cell in zip(systems, cells, strict=True)}
            rows.append(
                Row(quantity, ours, {name: (value, _number(value)) for name, value in printed.items() if value != "-"})
            )
    return rows


def write_summary(page: Path, picture: Path) -> None:
    """Write the table between the marks of the page, and the picture."""
    text = page.read_text(encoding="utf-8")
    rows = read_rows(text)
    before, _, rest = text.partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{as_table(rows)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    picture.write_text(as_svg(rows), encoding="utf-8")


def as_table(rows: Sequence[Row]) -> str:
    """Return the Markdown table: this project, the raw loop, and the best peer."""
    lines = ["| | ours | raw loop | best peer |", "|---|--:|--:|--:|"]
    for row in rows:
        raw = row.others["raw"][0] if "raw" in row.others else "-"
        lines.append(f"| {row.quantity} | **{row.ours}** | {raw} | {row.others[row.best_peer][0]} ({row.best_peer}) |")
    return "\n".join(lines) + "\n"


def as_svg(rows: Sequence[Row]) -> str:
    """Return a chart with one line per quantity and one dot per system, on a logarithmic axis of advantages."""
    systems = list(dict.fromkeys(name for row in rows for name in row.others))
    colours = dict(zip(systems, _COLOURS, strict=False))
    height = _TOP + _ROW * len(rows) + 30
    size = f"{_RIGHT + 30} {height}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_RIGHT + 30}" height="{height}" fill="#ffffff"/>',
    ]
    for position, name in enumerate(systems):
        x = 20 + position * 95
        parts.append(f'<circle cx="{x}" cy="16" r="5" fill="{colours[name]}"/>')
        parts.append(f'<text x="{x + 10}" y="20">{escape("raw loop" if name == "raw" else name)}</text>')
    for tick in _TICKS:
        parts.append(
            f'<line x1="{_x(tick):.1f}" y1="{_TOP - 16}" x2="{_x(tick):.1f}" y2="{height - 28}" '
            f'stroke="{"#111827" if tick == 1 else "#e5e7eb"}"/>'
        )
        parts.append(f'<text x="{_x(tick):.1f}" y="{height - 12}" text-anchor="middle">{tick:g}x</text>')
    for position, row in enumerate(rows):
        y = _TOP + position * _ROW
        parts.append(f'<text x="{_LEFT - 20}" y="{y + 4}" text-anchor="end">{escape(row.quantity)}</text>')
        parts += [
            f'<circle cx="{_x(row.advantage(name)):.1f}" cy="{y}" r="5" fill="{colours[name]}" fill-opacity="0.8">'
            f"<title>{escape(name)}: {row.advantage(name):.2f}x</title></circle>"
            for name in row.others
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _x(ratio: float) -> float:
    low, high = log10(0.2), log10(200)
    return _LEFT + (min(max(log10(ratio), low), high) - low) / (high - low) * (_RIGHT - _LEFT)


def _number(printed: str) -> float:
    return float(printed.replace(",", ""))
