"""Collects the generated pages, by their paths below docs/."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tools.reference import tables
from tools.reference.api import api
from tools.reference.commands import commands

if TYPE_CHECKING:
    from collections.abc import Callable

SINGLE: Final[dict[str, Callable[[], str]]] = {
    "reference/commands.md": commands,
    "reference/control-commands.md": tables.control_commands,
    "reference/settings.md": tables.settings,
    "reference/task-options.md": tables.task_options,
    "reference/keys.md": tables.keys,
    "reference/states.md": tables.states,
    "reference/metrics.md": tables.metrics,
    "reference/alerts.md": tables.alerts,
    "reference/doctor-codes.md": tables.doctor,
    "reference/repair-codes.md": tables.repair,
    "reference/errors.md": tables.errors,
    "reference/events.md": tables.events,
}


def pages() -> dict[str, str]:
    """Return the Markdown of every generated page."""
    return {**{path: render() for path, render in SINGLE.items()}, **api()}
