"""Forms for all commands that a person gives, made from their declarations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.core.errors import NotFound
from orchestrator.dashboard.command_forms import command_form as form_of
from orchestrator.dashboard.command_forms import described
from orchestrator.dashboard.commands import GIVEN
from orchestrator.dashboard.page import page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest


@page("/commands", "commands.html", narrowed=True)
async def commands(_: PageRequest) -> Mapping[str, Any]:
    """List the commands."""
    return {"kinds": [described(kind, model) for kind, model in sorted(GIVEN.items())]}


@page("/commands/{kind}", "command_form.html", narrowed=True)
async def command_form(asked: PageRequest) -> Mapping[str, Any]:
    """Describe the form of one command, with what the query fills in."""
    kind = asked.path["kind"]
    model = GIVEN.get(kind)
    if model is None:
        raise NotFound(f"there is no command {kind!r}; /commands lists them")
    return form_of(kind, model, {name: text.strip() for name, text in asked.query.items()})
