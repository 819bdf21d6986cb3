"""Declares pages: a path, a template, and a function that reads what the template shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlencode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from orchestrator.dashboard.displays import Displays
    from orchestrator.dashboard.identity import Identity
    from orchestrator.services import Services


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request to a page.

    Attributes:
        services: of the pool.
        identity: who asks.
        path: the parts of the path that the page names.
        query: the query; of a parameter that is given twice, the last.
        displays: the `display` functions of agents, if the settings name some.
    """

    services: Services
    identity: Identity
    path: Mapping[str, str]
    query: Mapping[str, str]
    displays: Displays | None = None

    def text(self, name: str) -> str | None:
        """Return a parameter, None if it is missing or empty."""
        return self.query.get(name, "").strip() or None

    def without(self, *names: str) -> str:
        """Return the query without some parameters, for links that change them."""
        return urlencode({name: value for name, value in self.query.items() if name not in names and value})


Read: TypeAlias = "Callable[[PageRequest], Awaitable[Mapping[str, Any]]]"


@dataclass(frozen=True, slots=True)
class WebPage:
    """One page. Its template has a block `region_NAME` for each part that changes while the page is open.

    Attributes:
        narrowed: it shows a narrowed user only what `PageRequest.includes` allows; else it refuses such a user.
    """

    path: str
    template: str
    read: Read = field(repr=False)
    narrowed: bool = False


PAGES: Final[list[WebPage]] = []
"""All pages, in the order of the navigation."""


def page(path: str, template: str, *, narrowed: bool = False) -> Callable[[Read], Read]:
    """Declare the decorated function as the reader of a page.

    Args:
        path: below the base path; `{name}` is a part of it that `PageRequest.path` has.
        template: its file.
        narrowed: the function shows users who are narrowed to agents, queues or sessions only those.
    """

    def declare(read: Read) -> Read:
        PAGES.append(WebPage(path, template, read, narrowed))
        return read

    return declare
