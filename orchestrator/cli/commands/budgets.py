"""`orc budgets`: list and show; set and delete are declared control commands."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from orchestrator.cli.terminal.declared import noun
from orchestrator.cli.terminal.inputs import check_limit
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.output import say_rest, show_list, show_record
from orchestrator.cli.terminal.parsing import option, positional
from orchestrator.cli.terminal.source import viewed

if TYPE_CHECKING:
    from orchestrator.views.budgets import BudgetUnit, BudgetView

Name = Annotated[str, positional("NAME", help="Name of the budget.")]

commands = noun(
    "budgets",
    "orc budgets list",
    "orc budgets set run-7 --usd 2 --tokens 2M",
    "orc budgets show run-7",
    "orc budgets delete run-7",
)


@commands.command("list", "orc budgets list", "orc budgets list -o json")
async def list_(*, limit: Annotated[int, option("--limit", metavar="N")] = 1000, common: Globals = DEFAULTS) -> None:
    """List the budgets of tasks (`--budget`) with limits, what is spent and held, and how many tasks wait for room.

    Args:
        limit: How many, by name [1000].
    """
    from orchestrator.views.budgets import list_budgets

    check_limit(limit)
    async with viewed(common) as services:
        found = await list_budgets(services, limit=limit)
    rows = [_row(view, table=common.output == "table") for view in found.budgets]
    columns = ("budget", "state", "units", "per", "at_hard", "attempts", "waiting")
    show_list(common.output, rows, columns, key="budget", empty="no budgets")
    say_rest(len(rows), found.total)


@commands.command("show", "orc budgets show run-7")
async def show(name: Name, /, *, common: Globals = DEFAULTS) -> None:
    """Show a budget: limits, what is spent, held and left, and how many attempts and tasks use it."""
    from orchestrator.core.ids import check_name
    from orchestrator.views.budgets import show_budget

    check_name("budget", name)
    async with viewed(common) as services:
        found = await show_budget(services, name)
    show_record(common.output, _row(found, table=common.output == "table"), key="budget")


def _row(view: BudgetView, *, table: bool) -> dict[str, Any]:
    row = asdict(view)
    if table:
        row["units"] = ", ".join(map(_words, view.units)) or "nothing spent, no limit"
    return row


def _words(unit: BudgetUnit) -> str:
    from orchestrator.core.amounts import MICRO, show_amount

    spent, held = (show_amount(round(amount * MICRO)) for amount in (unit.spent, unit.held))
    limit = "" if unit.limit is None else f" of {show_amount(round(unit.limit * MICRO))}"
    return f"{spent}{f' + {held} held' if unit.held else ''}{limit} {unit.unit}"
