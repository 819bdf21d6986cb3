"""Looks at the active commands of operators, and whether all who obey can check that it is truly theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.control.records import desired
from orchestrator.control.signing import signer_of
from orchestrator.core.durations import from_instant_ms
from orchestrator.core.slots import parse_slot
from orchestrator.doctor.findings import ok, problem, warning

if TYPE_CHECKING:
    from orchestrator.control.desired import ActiveCommand
    from orchestrator.doctor.context import CheckContext
    from orchestrator.doctor.findings import DoctorFinding
    from orchestrator.store.store import Store

SHOWN = 5
_HOLDING = {"stop", "pause", "drain"}


async def check_active_commands(context: CheckContext) -> list[DoctorFinding]:
    """What is stopped, paused or drained; what is not truly signed, or with a secret that is about to go."""
    if damaged := await _damaged(context.store):
        text = f"{damaged}: nobody gets a task, and no command is accepted, until it is one again"
        fix = "look at it, delete or rename it; then give again what is to hold: `orc control list` has it"
        return [problem("active-commands", text, fix)]
    signer = signer_of(context.settings, place=context.store.keys.root)
    found = await desired(context.store, signer)
    holding = [one for one in found.active.values() if parse_slot(one.slot).verb in _HOLDING]
    if found.doubtful:
        slots = ", ".join(sorted(found.doubtful)[:SHOWN])
        text = f"{len(found.doubtful)} not truly signed ({slots}): somebody writes into the pool, or has another secret"
        fix = "`orc control list --refused`; give all the same control.secret, and see who may write to Redis"
        return [warning("active-commands", text, fix)]
    if signer.wanted and (aged := [one for one in found.active.values() if one.issued.key != signer.key]):
        return [
            warning(
                "active-commands",
                f"{_listed(aged)}: signed with the secret before; not active any more when that is forgotten",
                "give these commands again before you remove control.previous_secret",
            )
        ]
    if holding:
        return [
            warning(
                "active-commands",
                _listed(holding),
                "`orc start` ends a stop, `orc agents|queues|workers resume` the rest",
            )
        ]
    return [ok("active-commands", "nothing is stopped, paused or drained")]


async def _damaged(store: Store) -> str:
    """What is wrong with the key that holds the commands; empty: nothing."""
    found = (await store.execute("TYPE", store.keys.desired)).decode()
    return "" if found in {"none", "hash"} else f"{store.keys.desired} is a {found}, not a hash"


def _listed(active: list[ActiveCommand]) -> str:
    """Active commands with who asked for them and since when."""
    said = [
        f"{one.slot} by {one.issued.words} since {from_instant_ms(one.issued.issued_ms):%Y-%m-%d %H:%M} UTC"
        for one in active[:SHOWN]
    ]
    more = f", and {len(active) - SHOWN} more" if len(active) > SHOWN else ""
    return ", ".join(said) + more
