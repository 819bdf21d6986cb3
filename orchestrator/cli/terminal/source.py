"""Opens the pool for views, and says where a view was read and how old it may be."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from orchestrator.cli.terminal import output

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.cli.terminal.options import Globals
    from orchestrator.services import Services
    from orchestrator.views.source import ViewSource


@asynccontextmanager
async def viewed(common: Globals) -> AsyncIterator[Services]:
    """Open the pool that the options name for views, and say at the end where they were read."""
    from orchestrator.views.source import open_views

    async with open_views(common.settings(), name="cli") as opened:
        yield opened.services
        say_source(opened.source())


def say_source(source: ViewSource) -> None:
    """Say on standard error which replicas were read and how old the view may be; nothing if none was asked for."""
    read = f"read from {_named('the primary', 'primaries', source.primaries)}: {source.problem}"
    if source.replicas:
        of_replicas = f"read from {_named('the replica', 'replicas', source.replicas)}, {_age(source)}"
        output.say(f"{of_replicas}; the rest {read}" if source.primaries else of_replicas)
    elif source.primaries:
        output.say(read)


def _named(one: str, several: str, addresses: tuple[str, ...]) -> str:
    return f"{one} {addresses[0]}" if len(addresses) == 1 else f"{len(addresses)} {several}"


def _age(source: ViewSource) -> str:
    if source.age_s is not None:
        return f"at most {max(source.age_s, 0.1):.1f} s old"
    if source.link_down_s is not None:
        return f"older than {source.link_down_s} s, because it has no link to its primary"
    if source.lacks_bytes:
        return f"{source.lacks_bytes} bytes behind its primary"
    return "of unknown age, because its primary does not say how far it is behind"
