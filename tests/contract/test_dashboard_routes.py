"""The table of routes in the guide is what the routes declare. Run this file as a script to write it anew."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.control.commands import KINDS
from orchestrator.dashboard.app import declared_routes

if TYPE_CHECKING:
    from orchestrator.dashboard.route import DeclaredRoute

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "dashboard.md"
MARK = "<!-- routes -->\n"
HEADS = (
    "Route",
    "Class",
    "no login",
    "viewer",
    "operator",
    "admin",
    "narrowed",
    "foreign page",
    "foreign host",
    "neither",
)
RULE = "|" + "---|" * len(HEADS)


def answers(route: DeclaredRoute) -> tuple[str, ...]:
    """Return what the route should answer to each column."""
    if route.open:
        outside = "yes" if route.method == "GET" else "403"
        return ("yes",) * 5 + (outside, "421", outside)
    if route.danger is None:
        stranger = "login" if not route.path.startswith(("/live/", "/api/")) else "401"
        return (stranger, "yes", "yes", "yes", "yes" if route.narrowed else "403", "yes", "421", "yes")
    operator = "403" if route.danger == "C" else "yes"
    return ("401", "403", operator, "yes", "yes" if route.narrowed else "403", "403", "421", "403")


def lines() -> list[str]:
    """Return the lines of the table."""
    rows = [
        "| " + " | ".join((f"`{one.method} {one.path}`", one.danger or "", *answers(one))) + " |"
        for one in sorted(declared_routes(), key=lambda one: (one.path, one.method))
    ]
    return ["| " + " | ".join(HEADS) + " |", RULE, *rows]


def read_table() -> dict[str, tuple[str, ...]]:
    """Return the answers that the guide promises, by method and path."""
    _, _, table = PAGE.read_text(encoding="utf-8").partition(MARK)
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("| `")
    ]
    return {cells[0].strip("`"): tuple(cells[2:]) for cells in rows}


def test_the_table_is_generated() -> None:
    """Every route has a row, and every row a route."""
    _, mark, table = PAGE.read_text(encoding="utf-8").partition(MARK)
    assert mark, "the guide has no place for the table"
    assert table.splitlines() == lines(), f"run: python {__file__}"


def test_each_path_is_declared_once() -> None:
    """No route hides another one of the same method and path."""
    declared = [(one.method, one.path) for one in declared_routes()]
    assert len(declared) == len(set(declared))


def test_each_kind_of_command_is_reachable() -> None:
    """A person can give each kind from a page; the others are exempt, with a reason."""
    exempt = {
        *("cancel-tasks", "retry-tasks", "delete-tasks", "purge-queue"),  # jobs: they need a selection
        *("tasks", "answer", "schedule", "release-lock", "session", "change", "erase", "finish-upgrade"),  # records
    }
    reachable = {one.path.removeprefix("/commands/") for one in declared_routes() if one.path.startswith("/commands/")}
    assert set(KINDS) - reachable == exempt


if __name__ == "__main__":
    text, _, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    PAGE.write_text(text + MARK + "\n".join(lines()) + "\n", encoding="utf-8")
