"""Renders the reference table of control commands from their declarations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.control.commands import KINDS, given_fields

if TYPE_CHECKING:
    from orchestrator.control.commands import Command

HEAD: Final = """\
| command line | `orc.admin` | effect | desired state | receipts from |
|---|---|---|---|---|
"""
RECEIPTS: Final = {"all": "supervisor and workers", "supervisor": "supervisor", "worker": "the worker", "none": "-"}


def commands_table() -> str:
    """Return a Markdown table with a row for each command that has a place on the command line."""
    return HEAD + "".join(_row(model) for model in KINDS.values() if model.verb)


def _row(model: type[Command]) -> str:
    names = list(given_fields(model))
    required = [name for name in names if model.model_fields[name].is_required()]
    optional = [name for name in names if name not in required]
    typed = [
        f"orc {model.verb}",
        *(name.upper() for name in required),
        *(f"[{_option(model, name)}]" for name in optional),
    ]
    typed += ["[--wait]"] * model.drains + ["[--yes]"] * bool(model.confirm)
    method = model.model_fields["kind"].default.replace("-", "_")
    parameters = ", ".join([*required, *(f"{name}={model.model_fields[name].default}" for name in optional)])
    effect = " ".join((model.__doc__ or "").split())
    slots = ", ".join(f"`{slot.replace('{.', '{')}` {_mark(mark)}" for slot, mark in model.slots.items())
    cells = (f"`{' '.join(typed)}`", f"`{method}({parameters})`", effect, slots, RECEIPTS[model.audience])
    return f"| {' | '.join(cells)} |\n"


def _option(model: type[Command], name: str) -> str:
    return f"--{name}" if model.model_fields[name].annotation is bool else f"--{name} {name.upper()}"


def _mark(mark: str) -> str:
    return {"": "cleared", "+": "raised"}.get(mark, "set")
