"""Tells whether a live agent takes the tasks of a skill, and which name was probably meant if none does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from orchestrator.core.caller_warning import NoAgentWarning, warn_caller
from orchestrator.core.errors import NoAgent
from orchestrator.core.reading import read_text

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from orchestrator.store.store import Store

NEWEST: Final = 200
"""Agents with the latest heartbeats, among whose names and skills the nearest one is looked for."""
NAMED: Final = 5
"""Names that a text lists when none is near."""


async def find_absence(store: Store, skill: str, agent: str | None = None) -> str | None:
    """Return why no live agent takes tasks of a skill now, with the nearest name; None if one does.

    Args:
        store: of the pool.
        skill: name of the skill.
        agent: the agent that the tasks are addressed to, if any.

    Raises:
        StoreError: Redis does not answer, or refuses.
    """
    if agent is None:
        if await store.execute("EXISTS", store.keys.skill(skill)):
            return None
        live = await _live_agents(store)
        for name, one in live.items():
            if skill in one.some:
                return f"not all live workers of agent {name!r} have the skill {skill!r}"
        return (
            f"no live agent has the skill {skill!r} ({_meant(skill, {one for of in live.values() for one in of.all})})"
        )
    offer = await _read_offer(store, agent)
    if offer is None:
        return f"agent {agent!r} has no live worker ({_meant(agent, await _live_agents(store))})"
    if skill in offer.all:
        return None
    if skill in offer.some:
        return f"not all live workers of agent {agent!r} have the skill {skill!r}"
    return f"agent {agent!r} does not have the skill {skill!r} ({_meant(skill, offer.all)})"


async def require_presence(store: Store, skill: str, agent: str | None = None) -> None:
    """Read whether a live agent takes tasks of a skill.

    Raises:
        NoAgent: none does.
        StoreError: Redis does not answer, or refuses.
    """
    absence = await find_absence(store, skill, agent)
    if absence is not None:
        raise NoAgent(skill, agent, absence)


def warn_of_absence(absence: str) -> None:
    """Warn the code that submits for a skill or an agent that is absent."""
    warn_caller(
        f"{absence}; tasks wait until `orc worker run MODULE:AGENT` starts an agent that takes them", NoAgentWarning
    )


class _Offer(NamedTuple):
    """Skills of a live agent: those of all its live workers, and of any."""

    all: set[str]
    some: set[str]


async def _live_agents(store: Store) -> dict[str, _Offer]:
    """Read the live ones of the agents with the latest heartbeats."""
    names = [read_text(name) for name in await store.execute("ZRANGE", store.keys.agents, 0, NEWEST - 1, "REV")]
    replies = await store.pipeline([("HVALS", store.keys.agent_workers(name)) for name in names])
    offers = {name: _parse(reply) for name, reply in zip(names, replies, strict=True) if isinstance(reply, list)}
    return {name: offer for name, offer in offers.items() if offer is not None}


async def _read_offer(store: Store, agent: str) -> _Offer | None:
    return _parse(await store.execute("HVALS", store.keys.agent_workers(agent)))


def _parse(rows: Sequence[bytes]) -> _Offer | None:
    """Return the skills in the rows of an agent's workers: slots, backlog, skills. A worker that drains has 0 slots."""
    parsed = [read_text(row).split() for row in rows]
    live = [set(row[2:]) for row in parsed if row and row[0] != "0"]
    return _Offer(set.intersection(*live), set.union(*live)) if live else None


def _meant(name: str, known: Collection[str]) -> str:
    from difflib import get_close_matches  # plain submits do without it

    listed = sorted(known)
    if near := get_close_matches(name, listed, n=1):
        return f"did you mean {near[0]!r}?"
    if listed:
        return f"live ones: {', '.join(listed[:NAMED])}{', ...' if len(listed) > NAMED else ''}"
    return "no worker is live"
