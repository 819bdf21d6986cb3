"""Checks budgets that are damaged or not set, and those for which tasks wait without room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.budgets.queries import read_budgets
from orchestrator.core.amounts import NOTHING
from orchestrator.core.errors import StoreError
from orchestrator.core.plural import counted
from orchestrator.core.reading import read_text, readable
from orchestrator.doctor.findings import DoctorFinding, ok, warning

if TYPE_CHECKING:
    from orchestrator.budgets.model import BudgetState
    from orchestrator.doctor.context import CheckContext

LOOK_AT: Final = 500
"""Budgets that are checked; those for which tasks wait come first."""


async def check_budgets(context: CheckContext) -> list[DoctorFinding]:
    """Report budgets that are damaged, and those that keep tasks from starting."""
    store, keys = context.store, context.store.keys
    sets: list[list[bytes]] = [
        readable(reply, [])
        for reply in await store.pipeline([("SMEMBERS", keys.budgets), ("SMEMBERS", keys.suspended_scopes)])
    ]
    listed, held = ([read_text(name) for name in names] for names in sets)
    waited = [scope.partition(":")[2] for scope in held if keys.is_budget_scope(scope)]
    names = list(dict.fromkeys([*sorted(waited), *sorted(listed)]))[:LOOK_AT]
    if not names:
        return [ok("budgets", "no budget is set")]
    states = await read_budgets(store, names)
    asked = [command for name in names for command in _counts(name, context)]
    replies = await store.pipeline(asked)
    findings: list[DoctorFinding] = []
    for place, name in enumerate(names):
        holds, waiting = replies[2 * place : 2 * place + 2]
        broken = isinstance(holds, StoreError)
        number = 0 if isinstance(waiting, StoreError) else waiting
        if (found := _judge(name, "damaged" if broken else states[name], number)) is not None:
            findings.append(found)
    return findings or [ok("budgets", f"{counted(len(names), 'budget')}, none keeps tasks from starting")]


def _counts(name: str, context: CheckContext) -> list[tuple[str, str]]:
    keys = context.store.keys
    return [("HLEN", keys.holds(name)), ("ZCARD", keys.held(keys.budget_scope(name)))]


def _judge(name: str, state: BudgetState | str, waiting: int) -> DoctorFinding | None:
    wait = f"{counted(waiting, 'task')} wait{'s' if waiting == 1 else ''} for it"
    if state == "damaged":
        text = f"keys of budget {name!r} are damaged, so that it admits nothing, and {wait}"
        return warning(
            "budgets", text, f"set them aside with `orc keys check --repair`, then `orc budgets set {name} --usd N`"
        )
    if not waiting:
        return None
    if isinstance(state, str):
        text = f"budget {name!r} is not set, and {wait}"
        return warning("budgets", text, f"set it with `orc budgets set {name} --usd N`, or cancel the tasks")
    lacking = state.lacking(NOTHING)
    left = state.describe(NOTHING)
    unit = (lacking or ["usd"])[0]
    text = f"budget {name!r} has too little room, and {wait}: {left}"
    return warning(
        "budgets", text, f"raise it with `orc budgets set {name} --{unit} N`; `orc tasks why ID` says what is needed"
    )
