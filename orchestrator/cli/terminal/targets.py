"""Says when a control command names an agent, queue or limit that is not known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.cli.terminal import output

if TYPE_CHECKING:
    from orchestrator.views.targets import UnknownTarget


def say_unknown(target: UnknownTarget | None) -> None:
    """Print a message on standard error about an unknown target."""
    if target is None:
        return
    known = ", ".join(target.known) or "none"
    match target.kind:
        case "agent":
            output.say(f"no agent {target.name!r} is known now (known: {known}); the command applies when it registers")
        case "queue":
            output.say(f"queue {target.name} is empty and no known agent serves it; the command applies all the same")
        case _:
            named = output.clean(target.name)
            output.say(f"no known agent has the limit {named!r} (known: {known}); the command applies all the same")
