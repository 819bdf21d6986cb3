"""Describes the forms of control commands, from their declarations."""

from __future__ import annotations

import inspect
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from orchestrator.control.commands import given_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.fields import FieldInfo

    from orchestrator.control.commands import Command


def described(kind: str, model: type[Command]) -> dict[str, Any]:
    """Return what a command does, in words, and its class."""
    first, _, rest = inspect.cleandoc(model.__doc__ or "").partition("\n\n")
    return {"kind": kind, "danger": model.danger, "text": " ".join(first.split()), "more": " ".join(rest.split())}


def command_form(kind: str, model: type[Command], typed: Mapping[str, str], *, problem: str = "") -> dict[str, Any]:
    """Return what the form of a command shows.

    Args:
        kind: of the command.
        model: its declaration.
        typed: texts of its fields, and of `reason`.
        problem: why the command was not given.
    """
    fields = [_field(name, field, typed.get(name, "")) for name, field in given_fields(model).items()]
    return {
        "command": described(kind, model),
        "fields": fields,
        "reason": typed.get("reason", ""),
        "problem": problem,
    }


def _field(name: str, field: FieldInfo, value: str) -> dict[str, Any]:
    """Describe one input: its kind follows the type of the field."""
    return {
        "name": name,
        "text": field.description or "",
        "required": field.is_required(),
        "flag": field.annotation is bool,
        "choices": _choices(field.annotation),
        "value": value,
    }


def _choices(annotation: Any) -> tuple[str, ...]:
    """Return the values of a field with a fixed set of them; the first is empty if it may be left out."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    parts = get_args(annotation)
    if len(parts) == 2 and parts[1] is NoneType and get_origin(parts[0]) is Literal:
        return ("", *get_args(parts[0]))
    return ()
