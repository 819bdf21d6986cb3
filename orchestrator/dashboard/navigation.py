"""Lists the pages of the navigation, and the letters that go to them after `g`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from orchestrator.dashboard.page import PAGES


@dataclass(frozen=True, slots=True)
class Entry:
    """A link of the navigation.

    Attributes:
        path: of the page, below the base path.
        title: of the link.
        key: the letter that goes there after `g`.
    """

    path: str
    title: str
    key: str

    def holds(self, here: str) -> bool:
        """Return whether a page belongs to this entry."""
        return here == self.path or (self.path != "/" and here.startswith(self.path + "/"))


_ENTRIES: Final = (
    Entry("/", "Overview", "o"),
    Entry("/queues", "Queues", "q"),
    Entry("/agents", "Agents", "a"),
    Entry("/workers", "Workers", "w"),
    Entry("/tasks", "Tasks", "t"),
    Entry("/questions", "Questions", "p"),
    Entry("/dead", "Dead letters", "d"),
    Entry("/sessions", "Sessions", "e"),
    Entry("/schedules", "Schedules", "s"),
    Entry("/limits", "Limits", "l"),
    Entry("/budgets", "Budgets", "b"),
    Entry("/control", "Control", "c"),
    Entry("/doctor", "Doctor", "h"),
    Entry("/submit", "Submit", "n"),
)


@cache
def navigation() -> tuple[Entry, ...]:
    """Return the entries whose pages exist."""
    paths = {page.path for page in PAGES}
    return tuple(entry for entry in _ENTRIES if entry.path in paths)
