"""Reads the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.agents.model import AgentInfo, KnownVersion, WorkerInfo
from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import NotFound, StoreError
from orchestrator.core.queue_name import QueueName
from orchestrator.core.rates import Rate

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.store.store import Store


async def skills_by_agent(store: Store) -> dict[str, set[str]]:
    """Read the agents with the skills that all their live workers have."""
    agents = [agent.decode() for agent in await store.execute("ZRANGE", store.keys.agents, 0, -1)]
    replies = await store.pipeline([("HGET", store.keys.agent(agent), "skills") for agent in agents])
    return {
        agent: set(reply.decode().split()) if isinstance(reply, bytes) else set()
        for agent, reply in zip(agents, replies, strict=True)
    }


async def inbox_lengths(store: Store) -> dict[str, int]:
    """Read the agents with the lengths of their inboxes."""
    agents = [agent.decode() for agent in await store.execute("ZRANGE", store.keys.agents, 0, -1)]
    replies = await store.pipeline([("XLEN", store.keys.inbox(agent)) for agent in agents])
    return {agent: reply if isinstance(reply, int) else 0 for agent, reply in zip(agents, replies, strict=True)}


async def agents(store: Store) -> list[AgentInfo]:
    """Read all agents by name, including those without a live worker."""
    heartbeats = await store.execute("ZRANGE", store.keys.agents, 0, -1, "WITHSCORES")
    last_ms = {
        name.decode(): int(float(heartbeat)) for name, heartbeat in zip(heartbeats[::2], heartbeats[1::2], strict=True)
    }
    names = sorted(last_ms)
    if not names:
        return []
    definitions = _definitions(await store.execute("HGETALL", store.keys.limits))
    replies = await store.pipeline(
        [("HMGET", store.keys.agent(name), "slots", "backlog", "skills", "limits") for name in names]
        + [("HKEYS", store.keys.agent_workers(name)) for name in names]
        + [("XLEN", store.keys.inbox(name)) for name in names]
    )
    for reply in replies:
        if isinstance(reply, StoreError):
            raise reply
    count = len(names)
    rows = zip(names, replies[:count], replies[count : 2 * count], replies[2 * count :], strict=True)
    return [
        _agent(
            name,
            record,
            last_ms=last_ms[name],
            workers=sorted(id_.decode() for id_ in ids),
            inbox=inbox,
            definitions=definitions,
        )
        for name, record, ids, inbox in rows
    ]


async def agent(store: Store, name: str) -> AgentInfo:
    """Read one agent.

    Raises:
        NotFound: the pool has no agent of this name.
    """
    known = {found.name: found for found in await agents(store)}
    if name not in known:
        names = ", ".join(sorted(known)) or "none"
        raise NotFound(f"agent {name!r} is not known in pool {store.keys.pool!r}; known are: {names}")
    return known[name]


def takers(queue: str, agents: Iterable[AgentInfo]) -> list[str]:
    """Return the live agents that take tasks from a queue, by name."""
    kind, name = QueueName.parse(queue)
    return sorted(
        agent.name
        for agent in agents
        if agent.slots and (name in agent.skills if kind == "skill" else name == agent.name)
    )


async def limits(store: Store) -> dict[str, str]:
    """Read the rates of all limits; `=NAME` holds the rate that a reset of NAME restores."""
    return _definitions(await store.execute("HGETALL", store.keys.limits))


async def workers(store: Store) -> list[WorkerInfo]:
    """Read the live workers, longest silent first."""
    heartbeats = await store.execute("ZRANGE", store.keys.workers, 0, -1, "WITHSCORES")
    ids = [id_.decode() for id_ in heartbeats[::2]]
    records = await store.pipeline([("HGETALL", store.keys.worker(id_)) for id_ in ids])
    found = []
    for id_, heartbeat, record in zip(ids, heartbeats[1::2], records, strict=True):
        if isinstance(record, StoreError):
            raise record
        fields = {
            name.decode(): value.decode(errors="replace") for name, value in zip(record[::2], record[1::2], strict=True)
        }
        if fields:  # otherwise it was forgotten in between
            found.append(_worker(id_, int(float(heartbeat)), fields))
    return found


async def versions(store: Store, skill: str) -> list[KnownVersion]:
    """Read the versions of a skill that live workers have, and those of the last week."""
    flat = await store.execute("HGETALL", store.keys.versions(skill))
    owners = [field.decode().split(" ") for field in flat[::2]]
    if not owners:
        return []
    members = [f"{agent} {skill}={digest}" for agent, digest in owners]
    left = await store.execute("ZMSCORE", store.keys.left_versions, *members)
    found = []
    for (agent, _), value, left_ms in zip(owners, flat[1::2], left, strict=True):
        born_ms, *arguments = value.decode().split(" ")
        given = [name for name in arguments if name]
        required = frozenset(name for name in given if not name.endswith("?"))
        names = frozenset(name.removesuffix("?") for name in given)
        found.append(KnownVersion(agent, int(born_ms), left_ms is None, required, names))
    return found


async def leader(store: Store) -> str | None:
    """Read the id of the leading supervisor, if any."""
    holder: bytes | None = await store.execute("GET", store.keys.leader)
    return None if holder is None else holder.decode(errors="replace")


def _agent(
    name: str,
    record: list[bytes | None],
    *,
    last_ms: int,
    workers: list[str],
    inbox: int,
    definitions: dict[str, str],
) -> AgentInfo:
    slots, backlog, skills, limits = ((value or b"").decode() for value in record)
    return AgentInfo(
        name=name,
        skills=tuple(skills.split()),
        slots=int(slots or 0),
        backlog=int(backlog or 0),
        workers=tuple(workers),
        inbox=inbox,
        # The limit of an agent itself is its name behind an @; users see it as its rate.
        limits={"rate" if limit.startswith("@") else limit: definitions.get(limit, "?") for limit in limits.split()},
        last_seen_at=from_instant_ms(last_ms),
    )


def _worker(id_: str, last_ms: int, fields: dict[str, str]) -> WorkerInfo:
    started = fields.get("started_ms")
    return WorkerInfo(
        id=id_,
        host=fields.get("host", ""),
        pid=int(fields.get("pid", 0)),
        version=fields.get("version", ""),
        agents={agent: int(slots) for name, slots in sorted(fields.items()) if (agent := QueueName.parse(name).agent)},
        started_at=from_instant_ms(int(started)) if started else None,
        last_seen_at=from_instant_ms(last_ms),
    )


def _definitions(reply: list[bytes]) -> dict[str, str]:
    found = {}
    for name, definition in zip(reply[::2], reply[1::2], strict=True):
        count, window_us = definition.decode().split()
        found[name.decode()] = str(Rate(int(count), int(window_us)))
    return found
