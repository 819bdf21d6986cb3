"""Checks inboxes: missing groups, entries of dead workers, expired leases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orchestrator.agents import queries as registry
from orchestrator.core.errors import StoreError
from orchestrator.core.reading import read_text, read_whole
from orchestrator.doctor.findings import ok, problem, warning
from orchestrator.tasks.inbox import GROUP

if TYPE_CHECKING:
    from orchestrator.agents.model import AgentInfo
    from orchestrator.doctor.context import CheckContext
    from orchestrator.doctor.findings import DoctorFinding
    from orchestrator.store.store import Store

OVERDUE_LEASES: Final = 2
"""Report an entry that no worker renewed or adopted for so many leases."""
_SHOWN: Final = 10
_START: Final = "start a worker of {!r}: `orc worker run MODULE:AGENT`"


async def check_inboxes(context: CheckContext) -> list[DoctorFinding]:
    """Report inboxes without a consumer group, and inboxes without a worker."""
    findings = []
    agents = await registry.agents(context.store)
    for agent, groups in zip(agents, await _ask(context.store, agents, "GROUPS"), strict=True):
        if groups is None and agent.slots:
            found = f"agent {agent.name!r} has live workers and no inbox"
            findings.append(problem("inboxes", found, f"restart the workers of {agent.name!r}"))
        elif groups is not None and GROUP.encode() not in [_fields(group)["name"] for group in groups]:
            found = f"the inbox of {agent.name!r} has no group {GROUP!r}: no worker can read its {agent.inbox} tasks"
            findings.append(problem("inboxes", found, f"restart a worker of {agent.name!r}: it creates the group"))
        elif agent.inbox and not agent.slots:
            found = f"{agent.inbox} task(s) are in the inbox of {agent.name!r}, which no live worker serves"
            findings.append(warning("inboxes", found, _START.format(agent.name)))
    if not findings:
        findings.append(ok("inboxes", "all have a consumer group" if agents else "no agent is known"))
    return findings


async def check_lost_workers(context: CheckContext) -> list[DoctorFinding]:
    """Report tasks of workers that are no longer registered."""
    store = context.store
    agents = await registry.agents(store)
    live = {worker.id for worker in await registry.workers(store)}
    findings = []
    for agent, consumers in zip(agents, await _ask(store, agents, "CONSUMERS", GROUP), strict=True):
        for consumer in map(_fields, consumers or ()):
            name = read_text(consumer["name"])
            if name in live or not consumer["pending"]:
                continue
            found = f"{name} is dead and still holds {consumer['pending']} task(s) of {agent.name!r}"
            if agent.slots:
                fix = f"wait: live workers of {agent.name!r} adopt them when their lease runs out"
                findings.append(warning("lost-workers", found, fix))
            else:
                findings.append(problem("lost-workers", found, _START.format(agent.name)))
    return findings or [ok("lost-workers", "no dead worker holds a task")]


async def check_leases(context: CheckContext) -> list[DoctorFinding]:
    """Report tasks whose lease ran out long ago."""
    store = context.store
    agents = await registry.agents(store)
    leases = await store.pipeline([("HGET", store.keys.agent(agent.name), "lease_ms") for agent in agents])
    known = zip(agents, leases, strict=True)
    leased = [_Leased(agent.name, read_whole(ms)) for agent, ms in known if isinstance(ms, bytes)]
    replies = await store.pipeline(
        [
            ("XPENDING", store.keys.inbox(a.agent), GROUP, "IDLE", a.lease_ms * OVERDUE_LEASES, "-", "+", _SHOWN)
            for a in leased
        ]
    )
    findings = []
    for at, entries in zip(leased, replies, strict=True):
        if isinstance(entries, StoreError) or not entries:
            continue
        holders = ", ".join(sorted({read_text(entry[1]) for entry in entries}))
        oldest_s = max(entry[2] for entry in entries) / 1000
        many = f"{len(entries)}{' or more' * (len(entries) == _SHOWN)}"
        found = (
            f"{many} task(s) of {at.agent!r} have been held for up to {oldest_s:.0f} s without renewal "
            f"(lease {at.lease_ms / 1000:g} s), by {holders}"
        )
        fix = f"end {holders} if it is stuck, and start another worker of {at.agent!r}: it adopts them"
        findings.append(problem("leases", found, fix))
    return findings or [ok("leases", "every running task has a fresh lease")]


@dataclass(frozen=True, slots=True)
class _Leased:
    agent: str
    lease_ms: int


async def _ask(store: Store, agents: list[AgentInfo], what: str, *group: str) -> list[list[Any] | None]:
    """Return the XINFO reply for each agent's inbox, or None for an agent without one."""
    replies = await store.pipeline([("XINFO", what, store.keys.inbox(agent.name), *group) for agent in agents])
    return [None if isinstance(reply, StoreError) else reply for reply in replies]


def _fields(row: list[Any]) -> dict[str, Any]:
    return {read_text(name): value for name, value in zip(row[::2], row[1::2], strict=True)}
