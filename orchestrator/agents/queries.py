"""Read-only views of the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.store.store import Store


async def skills_by_agent(store: Store) -> dict[str, set[str]]:
    """Known agents with the skills that all their live workers have."""
    agents = [agent.decode() for agent in await store.execute("ZRANGE", store.keys.agents, 0, -1)]
    replies = await store.pipeline([("HGET", store.keys.agent(agent), "skills") for agent in agents])
    return {
        agent: set(reply.decode().split()) if isinstance(reply, bytes) else set()
        for agent, reply in zip(agents, replies, strict=True)
    }
