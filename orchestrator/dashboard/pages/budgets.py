"""The budgets, and one budget with what attempts hold of it and the tasks that wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.amounts import UNITS
from orchestrator.dashboard.page import page
from orchestrator.dashboard.rendering import command_line
from orchestrator.views.budget_pages import MOST_HOLDS, page_budgets, read_budget_page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest

STATES: Final = {
    "open": ("○", "good"),
    "soft": ("◐", "ask"),
    "exhausted": ("●", "bad"),
    "overspent": ("✕", "bad"),
    "undefined": ("✕", "bad"),
    "damaged": ("✕", "bad"),
}
"""Icon and class of each state of a budget."""


@page("/budgets", "budgets.html")
async def budgets(asked: PageRequest) -> Mapping[str, Any]:
    """Read the budgets by name."""
    starts = asked.text("starts") or ""
    return {
        "found": await page_budgets(asked.services, after=asked.text("after"), starts=starts),
        "starts": starts,
        "states": STATES,
        "units": UNITS,
        "without": asked.without,
        "line": command_line("budgets", "list"),
    }


@page("/budgets/{budget}", "budget.html")
async def budget(asked: PageRequest) -> Mapping[str, Any]:
    """Read one budget: its limits, what attempts hold of it, and the tasks that wait for it."""
    name = asked.path["budget"]
    found = await read_budget_page(
        asked.services, name, after=asked.text("after"), holds_after=asked.text("holds_after")
    )
    return {
        "found": found,
        "most_holds": MOST_HOLDS,
        "limits": {unit.unit: unit.limit for unit in found.budget.units},
        "states": STATES,
        "units": UNITS,
        "lines": (command_line("budgets", "show", name), command_line("budgets", "set", name, "--usd", "N")),
    }
