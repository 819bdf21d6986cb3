"""Says where a view was read, and how old it may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.cli.terminal import output

if TYPE_CHECKING:
    from orchestrator.views.source import ViewSource


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
    return f"{source.lacks_bytes} bytes behind its primary"
