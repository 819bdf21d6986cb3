"""Checks the active commands of operators and their signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.agents.key_names import read_key_names
from orchestrator.agents.registrations import read_forged
from orchestrator.control.records import desired
from orchestrator.control.signing import signer_of
from orchestrator.core.durations import from_instant_ms
from orchestrator.core.reading import read_text
from orchestrator.core.slots import parse_slot
from orchestrator.doctor.findings import ok, problem, warning
from orchestrator.tasks.queries import server_ms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.control.desired import ActiveCommand
    from orchestrator.doctor.context import CheckContext
    from orchestrator.doctor.findings import DoctorFinding
    from orchestrator.store.store import Store

SHOWN = 5
_HOLDING = {"stop", "pause", "hold", "drain"}


async def check_active_commands(context: CheckContext) -> list[DoctorFinding]:
    """Report what is stopped, paused or drained, and commands with a missing or an old signature."""
    if damaged := await _damaged(context.store):
        text = f"{damaged}: no task is assigned and no command is accepted until it is one again"
        fix = "delete or rename it, then repeat the commands that `orc control list` shows"
        return [problem("active-commands", text, fix)]
    signer = signer_of(context.settings, place=context.store.keys.root)
    found = await desired(context.store, signer)
    now_ms = await server_ms(context.store)
    holding = [
        one
        for one in found.active.values()
        if parse_slot(one.slot).verb in _HOLDING and (one.until_ms is None or one.until_ms > now_ms)
    ]
    if found.doubtful:
        slots = ", ".join(sorted(found.doubtful)[:SHOWN])
        text = f"{len(found.doubtful)} without a valid signature ({slots}): another writer, or another secret"
        fix = "`orc control list --refused`; set the same control.secret everywhere, and check who may write to Redis"
        return [warning("active-commands", text, fix)]
    if signer.wanted and (aged := [one for one in found.active.values() if one.issued.key != signer.key]):
        return [
            warning(
                "active-commands",
                f"{_listed(aged)}: signed with the previous secret; it ends when that is removed",
                "repeat these commands before you remove control.previous_secret",
            )
        ]
    if holding:
        return [
            warning(
                "active-commands",
                _listed(holding),
                "`orc start` ends a stop and a pause with an end, `orc agents|queues|workers resume` the rest",
            )
        ]
    return [ok("active-commands", "nothing is stopped, paused or drained")]


async def check_key_names(context: CheckContext) -> list[DoctorFinding]:
    """Report processes that sign with another secret than this program, or with none."""
    signer = signer_of(context.settings, place=context.store.keys.root)
    names = await read_key_names(context.store)
    with_keys = {who: name for who, name in names.items() if name}
    if not signer.wanted:
        if not with_keys:
            return [ok("control-keys", "no process signs")]
        text = f"this program has no control secret and can give no command; with one: {_several(with_keys)}"
        return [warning("control-keys", text, "set control.secret for this program too")]
    unsigned = [who for who, name in names.items() if not name]
    other = {who: name for who, name in with_keys.items() if name not in signer.keys}
    old = [who for who, name in with_keys.items() if name in signer.keys and name != signer.key]
    findings = []
    named = {*unsigned, *other}
    forged = await read_forged(context.store, signer.accepts_registration)
    if forgers := [f"worker {id_}" for id_ in forged if f"worker {id_}" not in named]:
        text = f"registered without a valid signature, so that the supervisor refuses them: {_several(forgers)}"
        fix = "find out who started them and who may write to Redis; end them"
        findings.append(problem("control-keys", text, fix))
    if unsigned:
        text = f"without a control secret, so that they obey unsigned commands, or older: {_several(unsigned)}"
        findings.append(
            problem("control-keys", text, f"set control.secret there to the one with the name {signer.key}")
        )
    if other:
        keys = ", ".join(sorted(set(other.values()))[:SHOWN])
        text = f"with another control secret ({keys}) than this program ({signer.key}): {_several(other)}"
        fix = "set the same control.secret everywhere; while you change it, the other one as control.previous_secret"
        findings.append(problem("control-keys", text, fix))
    if old and not findings:
        text = f"the change of the control secret has not reached all; with the previous one: {_several(old)}"
        findings.append(warning("control-keys", text, "reload or restart these before you remove the previous secret"))
    return findings or [ok("control-keys", f"all processes sign with the secret {signer.key}")]


def _several(who: Iterable[str]) -> str:
    named = sorted(who)
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    return ", ".join(named[:SHOWN]) + more


async def _damaged(store: Store) -> str:
    """Describe a damaged key of the commands; empty if it is sound."""
    found = read_text(await store.execute("TYPE", store.keys.desired))
    return "" if found in {"none", "hash"} else f"{store.keys.desired} is a {found}, not a hash"


def _end(one: ActiveCommand) -> str:
    return "" if one.until_ms is None else f" until {from_instant_ms(one.until_ms):%H:%M:%S} UTC"


def _listed(active: list[ActiveCommand]) -> str:
    """Format active commands with operator and time."""
    said = [
        f"{one.slot} by {one.issued.words} since {from_instant_ms(one.issued.issued_ms):%Y-%m-%d %H:%M} UTC{_end(one)}"
        for one in active[:SHOWN]
    ]
    more = f", and {len(active) - SHOWN} more" if len(active) > SHOWN else ""
    return ", ".join(said) + more
