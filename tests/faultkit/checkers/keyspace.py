"""I10: keys expire, queues and inboxes are empty, and nothing grows with finished work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.faultkit.checkers.check_result import CheckResult, check_result

if TYPE_CHECKING:
    from tests.faultkit.checkers.final_state import FinalState
    from tests.faultkit.checkers.rules import Rules

WAITING: Final = (
    "queue:",
    "parked:",
    "held",
    "suspects",
    "queues",
    "scheduled",
    "asking",
    "joining",
    "joins:",
    "after",
    "ends",
    "expiring",
    "lane:",
)
"""Keys of waiting tasks, which vanish when empty."""
CAPS: Final = {"doorbell": 1200, "replies:": 1200, "events": 21_000}
"""Limits of shared streams, by the beginning of their names: scripts cap them at about 1000 and 20,000 entries."""
FEW: Final = 200
"""Limit of other permanent keys: names of agents, counters, limits."""


def check_keys(final: FinalState, rules: Rules) -> CheckResult:
    """Check the keys of a drained pool."""
    wrong: list[str] = []
    for name, key in final.keys.items():
        if not key.has_ttl and not key.permanent:
            wrong.append(f"key without a lifetime: {name}")
        if name.startswith(WAITING) and (rules.counts_bytes or not name.startswith("queues:")):
            wrong.append(f"{key.length} tasks still wait in {name}")
        if any(name.startswith(stream) and key.length > most for stream, most in CAPS.items()):
            wrong.append(f"{name} has {key.length} entries, more than its cap")
        if key.permanent and key.type != "stream" and key.length > FEW:
            wrong.append(f"permanent key {name} has grown to {key.length}")
        owner = name.removeprefix("out:")
        if owner != name and owner not in final.tasks:
            wrong.append(f"{name} is of a task that is not there")
    for agent, inbox in final.inboxes.items():
        if inbox.entries or inbox.pending:
            wrong.append(f"inbox of {agent}: {inbox.entries} entries, {inbox.pending} pending")
        if agent in rules.live and len(inbox.consumers) > rules.live[agent]:
            wrong.append(
                f"inbox of {agent}: {len(inbox.consumers)} consumers of {rules.live[agent]} workers: "
                f"{', '.join(inbox.consumers)}"
            )
    dead = {task.id for task in final.tasks.values() if task.state == "dead"}
    wrong += [f"task {id_} is dead and not among the dead letters" for id_ in sorted(dead - final.dead)]
    wrong += [f"task {id_} is among the dead letters and not dead" for id_ in sorted(final.dead - dead)]
    return check_result("I10 the key space returns to its base", len(final.keys), wrong)


def check_growth(before: FinalState, after: FinalState) -> CheckResult:
    """Compare two drained states of one pool: no more permanent keys, and none above its limit."""
    first = {name for name, key in before.keys.items() if key.permanent}
    last = {name: key for name, key in after.keys.items() if key.permanent}
    wrong = [f"a new permanent key: {name}" for name in sorted(last.keys() - first)]
    for name in sorted(first & last.keys()):
        was, is_ = before.keys[name].length, last[name].length
        if last[name].type != "stream" and is_ > max(was, FEW):
            wrong.append(f"permanent key {name} grew from {was} to {is_}")
    return check_result("I10 permanent keys do not grow", len(last), wrong)
