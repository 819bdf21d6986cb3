"""Draws the picture that opens the performance page: rates of drains over payload sizes, one panel per size."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from benchmarks.comparison import OURS, RAW
from benchmarks.server import EMBEDDED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.comparison import Comparison

PANELS: Final = {
    "100 B": "drain, 1 worker process",
    "10 kB": "10 kB: drain, 1 worker process",
    "100 kB": "100 kB: drain, 1 worker process",
}
"""Sizes of argument and result, and the compared quantity of each."""

_NAMES: Final = {OURS: "this project", RAW: "raw loop"}
_LEFT, _PANEL, _BAR, _GAP, _ROW, _TOP = 110, 260, 160, 18, 28, 84
# The picture has its own background, so that it is readable on light and on dark pages.
_STYLE: Final = """<style>
.card{fill:#ffffff;stroke:#d1d5db} text{fill:#111827} .quiet{fill:#6b7280}
.ours{fill:#2563eb} .raw{fill:#9ca3af} .peer{fill:#d1d5db}
@media (prefers-color-scheme: dark){.card{fill:#111827;stroke:#374151} text{fill:#f3f4f6} .quiet{fill:#9ca3af}
.ours{fill:#60a5fa} .raw{fill:#6b7280} .peer{fill:#4b5563}}
</style>"""


def rates_by_size(comparisons: Sequence[Comparison], settings: str = EMBEDDED) -> dict[str, dict[str, float]]:
    """Return the rate of each system by size; empty unless the run measured every size."""
    found = {one.quantity: one for one in comparisons if one.settings == settings}
    if any(quantity not in found for quantity in PANELS.values()):
        return {}
    return {
        size: {system: value for system in found[quantity].rounds if (value := found[quantity].value(system))}
        for size, quantity in PANELS.items()
    }


def as_picture(rates: Mapping[str, Mapping[str, float]], server: str) -> str:
    """Return an SVG with a bar per system; each panel has a linear scale of its own, from zero.

    Args:
        rates: tasks per second by size and system.
        server: names the server and its settings.
    """
    systems = list(dict.fromkeys(system for panel in rates.values() for system in panel))
    width, height = _LEFT + len(rates) * _PANEL + 10, _TOP + _ROW * len(systems) + 34
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
            f'font-size="13">'
        ),
        _STYLE,
        f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>',
        '<text x="16" y="28" font-size="16" font-weight="bold">Tasks ended per second, one worker process</text>',
    ]
    for row, system in enumerate(systems):
        weight = ' font-weight="bold"' if system == OURS else ""
        y = _TOP + _ROW * row + _GAP - 4
        parts.append(
            f'<text x="{_LEFT - 10}" y="{y}" text-anchor="end"{weight}>{escape(_NAMES.get(system, system))}</text>'
        )
    for column, (size, panel) in enumerate(rates.items()):
        x = _LEFT + column * _PANEL
        parts.append(f'<text x="{x}" y="{_TOP - 22}" font-weight="bold">{escape(size)} argument and result</text>')
        largest = max(panel.values())
        for row, system in enumerate(systems):
            y = _TOP + _ROW * row
            if system not in panel:
                parts.append(f'<text class="quiet" x="{x}" y="{y + _GAP - 4}">not measured</text>')
                continue
            length = max(1.0, panel[system] / largest * _BAR)
            kind = system if system in (OURS, RAW) else "peer"
            weight = ' font-weight="bold"' if system == OURS else ""
            parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{length:.1f}" height="{_GAP}"/>')
            parts.append(f'<text x="{x + length + 6:.1f}" y="{y + _GAP - 4}"{weight}>{panel[system]:,.0f}</text>')
    parts.append(f'<text class="quiet" x="16" y="{height - 14}" font-size="11">{escape(server)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
