"""Draws the lines of a screen as plain text: states are words and marks, so that nothing depends on colours.

Every stored text passes `cell`, which escapes what a terminal would obey. None is read as markup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from orchestrator.cli.terminal.output import clean, fitting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.views.health import PoolHealth

CURSOR: Final = "> "
_BETWEEN: Final = "  "
_CUT: Final = "…"
_BARS: Final = "▁▂▃▄▅▆▇█"
RATES: Final = ("submitted", "succeeded", "retried", "dead")


def line(text: str, width: int) -> str:
    """Return a text without control characters that takes `width` columns, cut or padded."""
    return _fit(clean(text), width)


def cell(text: str) -> str:
    """Return the text of a cell without control characters; of an empty one, a hyphen."""
    return clean(text) or "-"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, current: int | None, width: int) -> Text:
    """Draw a table; the row `current` has the cursor."""
    titles = [title.upper() for title in columns]
    cells = [[cell(text) for text in row] for row in rows]
    widest = [max(map(cell_len, column)) for column in zip(titles, *cells, strict=True)]
    widths = fitting(widest, titles, width - len(CURSOR))
    drawn = Text(_row(" " * len(CURSOR), titles, widths, width), style="bold", no_wrap=True)
    for number, row in enumerate(cells):
        is_current = number == current
        text = _row(CURSOR if is_current else " " * len(CURSOR), row, widths, width)
        drawn.append("\n")
        drawn.append(text, "bold reverse" if is_current else "not bold")
    return drawn


def head(health: PoolHealth) -> tuple[str, str]:
    """Return the lines with the sizes of a pool and its rates."""
    counts = (
        f"agents {health.agents:,}  workers {health.workers:,}  queues {health.queues:,}  "
        f"later {health.scheduled:,}  asking {health.asking:,}  dead {health.dead:,}"
    )
    rates = "  ".join(f"{name} {health.rates[name][-1]:,}" for name in RATES)
    return f"{counts}  {health.server.memory_bytes / 1e6:,.0f} MB", f"last minute: {rates}"


def bars(numbers: Sequence[int]) -> str:
    """Draw numbers as a row of bars, the largest at full height."""
    top = max(numbers, default=0) or 1
    return "".join(_BARS[round(number / top * (len(_BARS) - 1))] for number in numbers)


def _row(mark: str, cells: Sequence[str], widths: Sequence[int], width: int) -> str:
    return _fit(mark + _BETWEEN.join(map(_fit, cells, widths)), width)


def _fit(text: str, width: int) -> str:
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, max(0, width - 1)) + _CUT
