"""Draws panels and their series as one SVG picture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

COLUMN: Final = 50
ROW: Final = 24
GAP: Final = 8
LEGEND: Final = 4
"""Series that a legend names."""
_COLOURS: Final = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#6b7280")

Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one legend entry, as time in s and value."""

    legend: str
    points: Points


def draw(dashboard: Mapping[str, Any], data: Mapping[int, Sequence[Series]], span: tuple[float, float]) -> str:
    """Return the picture of a dashboard.

    Args:
        dashboard: the dashboard as Grafana reads it.
        data: the series of each panel, by the panel's id.
        span: first and last time in s.
    """
    panels = dashboard["panels"]
    width = 24 * COLUMN + GAP
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) * ROW + GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="11"><rect width="{width}" height="{height}" fill="#f4f5f5"/>'
    )
    parts = [head]
    for panel in panels:
        place = panel["gridPos"]
        x, y = place["x"] * COLUMN + GAP, place["y"] * ROW + GAP
        w, h = place["w"] * COLUMN - GAP, place["h"] * ROW - GAP
        if panel["type"] == "row":
            parts.append(
                f'<text x="{x}" y="{y + 13}" font-size="13" font-weight="bold">{escape(panel["title"])}</text>'
            )
            continue
        parts.append(f'<g transform="translate({x} {y})"><rect width="{w}" height="{h}" rx="3" fill="#fff"/>')
        parts.append(f'<text x="8" y="15" font-weight="bold">{escape(panel["title"])}</text>')
        written = _UNITS[panel["fieldConfig"]["defaults"]["unit"]]
        found = data.get(panel["id"], ())
        if panel["type"] == "stat":
            parts += _number(panel, found, written, w, h)
        else:
            parts += _chart(found, written, w, h, span)
        parts.append("</g>")
    return "".join([*parts, "</svg>\n"])


def _number(
    panel: Mapping[str, Any], found: Sequence[Series], written: Callable[[float], str], w: int, h: int
) -> list[str]:
    value = found[0].points[-1][1] if found and found[0].points else None
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    colour = "gray"
    for step in steps:
        if value is not None and (step["value"] is None or value >= step["value"]):
            colour = step["color"]
    shade = {"green": "#059669", "red": "#dc2626"}.get(colour, "#6b7280")
    text = "no data" if value is None else written(value)
    return [
        f'<text x="{w / 2}" y="{h / 2 + 18}" font-size="24" text-anchor="middle" fill="{shade}">{escape(text)}</text>'
    ]


def _chart(
    found: Sequence[Series], written: Callable[[float], str], w: int, h: int, span: tuple[float, float]
) -> list[str]:
    left, top, bottom = 58, 26, 42
    values = [value for series in found for _, value in series.points]
    if not values:
        return [f'<text x="{w / 2}" y="{h / 2}" text-anchor="middle" fill="#6b7280">no data</text>']
    low, high = min(0.0, *values), _round_up(max(values))
    if high <= low:
        high = low + 1
    parts = []
    for part in range(5):
        value = low + (high - low) * part / 4
        y = h - bottom - (h - top - bottom) * part / 4
        parts.append(f'<path d="M{left} {y:.1f}H{w - 8}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{left - 5}" y="{y + 4:.1f}" text-anchor="end" fill="#6b7280">{written(value)}</text>')
    begin, end = span
    parts.append(f'<text x="{left}" y="{h - bottom + 12}" fill="#6b7280">0</text>')
    parts.append(
        f'<text x="{w - 8}" y="{h - bottom + 12}" text-anchor="end" fill="#6b7280">{_seconds(end - begin)}</text>'
    )
    x_at = left
    for number, series in enumerate(found):
        colour = _COLOURS[number % len(_COLOURS)]
        line = " ".join(
            f"{left + (at - begin) / (end - begin) * (w - 8 - left):.1f},"
            f"{h - bottom - (value - low) / (high - low) * (h - top - bottom):.1f}"
            for at, value in series.points
        )
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
        named = number < LEGEND and x_at + 13 + 5.8 * len(series.legend) < w
        if named:
            parts.append(f'<rect x="{x_at}" y="{h - 16}" width="9" height="3" fill="{colour}"/>')
            parts.append(f'<text x="{x_at + 13}" y="{h - 11}" fill="#374151">{escape(series.legend)}</text>')
            x_at += 25 + round(5.8 * len(series.legend))
    return parts


def _round_up(value: float) -> float:
    """Return a round number that is not below the value."""
    if value <= 0:
        return 0.0
    size = float(10 ** math.floor(math.log10(value)))
    return next(step * size for step in (1, 2, 4, 5, 8, 10) if step * size >= value)


def _plain(value: float) -> str:
    return f"{value:.4g}" if value < 10_000 else f"{value / 1000:.4g} k"


def _seconds(value: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1000:.3g} ms"


def _bytes(value: float) -> str:
    for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"


_UNITS: Final[Mapping[str, Callable[[float], str]]] = {
    "none": _plain,
    "ops": lambda value: f"{_plain(value)}/s",
    "s": _seconds,
    "bytes": _bytes,
    "percentunit": lambda value: f"{value * 100:.3g} %",
    "bool_yes_no": lambda value: "yes" if value else "no",
    "bool_on_off": lambda value: "on" if value else "off",
}
