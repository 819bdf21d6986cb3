"""Tells whether a live agent takes the tasks of a skill, and which name was probably meant if none does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.core.caller_warning import warn_caller
from orchestrator.core.errors import NoAgent, NoAgentWarning

if TYPE_CHECKING:
    from collections.abc import Collection

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
        known = {name for skills in (await _offers(store)).values() for name in skills}
        return f"no live agent has the skill {skill!r} ({_meant(skill, known)})"
    slots, skills = await store.execute("HMGET", store.keys.agent(agent), "slots", "skills")
    if not int(slots or 0):
        return f"agent {agent!r} has no live worker ({_meant(agent, await _offers(store))})"
    offered = (skills or b"").decode().split()
    if skill in offered:
        return None
    return f"agent {agent!r} does not have the skill {skill!r} ({_meant(skill, offered)})"


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


async def _offers(store: Store) -> dict[str, list[str]]:
    """Read the skills of live agents by agent: of those with the latest heartbeats."""
    names = [name.decode() for name in await store.execute("ZRANGE", store.keys.agents, 0, NEWEST - 1, "REV")]
    replies = await store.pipeline([("HMGET", store.keys.agent(name), "slots", "skills") for name in names])
    return {
        name: (reply[1] or b"").decode().split()
        for name, reply in zip(names, replies, strict=True)
        if isinstance(reply, list) and int(reply[0] or 0)
    }


def _meant(name: str, known: Collection[str]) -> str:
    from difflib import get_close_matches  # plain submits do without it

    listed = sorted(known)
    if near := get_close_matches(name, listed, n=1):
        return f"did you mean {near[0]!r}?"
    if listed:
        return f"live ones: {', '.join(listed[:NAMED])}{', ...' if len(listed) > NAMED else ''}"
    return "no worker is live"
