"""Checks parents that wait for children which no worker can take."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from orchestrator.agents import queries as registry
from orchestrator.core.errors import NotFound
from orchestrator.core.reading import read_text
from orchestrator.doctor.findings import DoctorFinding, ok, warning
from orchestrator.why import lookup
from orchestrator.why.model import STUCK, Cause

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.doctor.context import CheckContext
    from orchestrator.store.store import Store
    from orchestrator.why.model import Why

LOOK_AT: Final = 100
"""Entries of an inbox that are read, and parents that are checked."""


async def check_parents(context: CheckContext) -> list[DoctorFinding]:
    """Report parents that hold a place in an agent and wait for a child that no worker can take."""
    store = context.store
    names = [agent.name for agent in await registry.agents(store)]
    lend = await store.pipeline([("EXISTS", store.keys.lent(name)) for name in names])
    findings: list[DoctorFinding] = []
    seen = 0
    for name in [name for name, lends in zip(names, lend, strict=True) if lends == 1]:
        async for parent, found in _parents(store, name):
            seen += 1
            if seen > LOOK_AT:
                break
            for child in found.children or ():
                if (why := await _why(store, child)) is not None and why.cause in STUCK:
                    text = f"task {parent} of agent {name!r} waits for its child {child}: {why.text}"
                    fix = f"remove what keeps the child, see `orc tasks why {child}`, or cancel one of them"
                    findings.append(warning("parents", text, fix))
                    break
    return findings or [ok("parents", f"{seen} wait for children, none in vain" if seen else "no parent waits")]


async def _parents(store: Store, agent: str) -> AsyncIterator[tuple[str, Why]]:
    entries = await store.execute("XRANGE", store.keys.inbox(agent), "-", "+", "COUNT", LOOK_AT)
    for _, fields in entries:
        # The first field of an entry is `t`, the task.
        id_ = read_text(next(islice(fields, 1, None)))
        why = await _why(store, id_)
        if why is not None and why.cause is Cause.CHILDREN:
            yield id_, why


async def _why(store: Store, task: str) -> Why | None:
    try:
        return (await lookup.status(store, task, children=False)).detail
    except NotFound:
        return None
