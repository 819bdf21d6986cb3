"""Forms for all commands that a person gives, made from their declarations."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from orchestrator.control.commands import given_fields
from orchestrator.core.errors import NotFound
from orchestrator.dashboard.commands import GIVEN
from orchestrator.dashboard.page import page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.fields import FieldInfo

    from orchestrator.control.commands import Command
    from orchestrator.dashboard.page import PageRequest


@page("/commands", "commands.html", narrowed=True)
async def commands(_: PageRequest) -> Mapping[str, Any]:
    """List the commands."""
    return {"kinds": [_described(kind, model) for kind, model in sorted(GIVEN.items())]}


@page("/commands/{kind}", "command_form.html", narrowed=True)
async def command_form(asked: PageRequest) -> Mapping[str, Any]:
    """Describe the form of one command, with what the query fills in."""
    kind = asked.path["kind"]
    model = GIVEN.get(kind)
    if model is None:
        raise NotFound(f"there is no command {kind!r}; /commands lists them")
    fields = [_field(name, field, asked.text(name) or "") for name, field in given_fields(model).items()]
    return {"command": _described(kind, model), "fields": fields}


def _described(kind: str, model: type[Command]) -> dict[str, Any]:
    first, _, rest = inspect.cleandoc(model.__doc__ or "").partition("\n\n")
    return {"kind": kind, "danger": model.danger, "text": " ".join(first.split()), "more": " ".join(rest.split())}


def _field(name: str, field: FieldInfo, value: str) -> dict[str, Any]:
    """Describe one input: its kind follows the type of the field."""
    choices: tuple[str, ...] = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return {
        "name": name,
        "text": field.description or "",
        "required": field.is_required(),
        "flag": field.annotation is bool,
        "choices": choices,
        "value": value,
    }
