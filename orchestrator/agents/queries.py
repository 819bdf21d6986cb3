"""Reads the registry."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from orchestrator.agents.model import AgentInfo, KnownVersion, LoopBlock, UnevenAgent, WorkerInfo
from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import NotFound, StoreError
from orchestrator.core.queue_name import QueueName
from orchestrator.core.rates import Rate
from orchestrator.core.reading import msgpack_reader, read_readable, read_text, read_whole, readable
from orchestrator.store.paging import read_split

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from orchestrator.store.store import Store

CHUNK: Final = 500
"""Agents or workers that one round trip reads."""
NAMED: Final = 20
"""Agents that a message names."""
_MINUTES_AT_ONCE: Final = 60
_decode_cells: Final = msgpack_reader(list[int])


async def skills_by_agent(store: Store) -> dict[str, set[str]]:
    """Read the agents with the skills that all their live workers have."""
    agents = await agent_names(store)
    replies = await store.pipeline([("HGET", store.keys.agent(agent), "skills") for agent in agents])
    return {
        agent: set(read_text(reply).split()) if isinstance(reply, bytes) else set()
        for agent, reply in zip(agents, replies, strict=True)
    }


async def agent_names(store: Store) -> list[str]:
    """Read the names of all agents, longest silent first."""
    return [read_text(agent) for agent in await store.execute("ZRANGE", store.keys.agents, 0, -1)]


async def agents_of_skill(store: Store, skill: str) -> list[str]:
    """Read the names of the live agents with a skill."""
    return [read_text(agent) for agent in await store.execute("ZRANGE", store.keys.skill(skill), 0, -1)]


async def agents(store: Store, limit: int | None = None, *, since_ms: int = 0) -> list[AgentInfo]:
    """Read agents by name, including those without a live worker.

    Args:
        store: of the pool.
        limit: only those with the latest heartbeats; None for all.
        since_ms: only those with a heartbeat from this time on.
    """
    key, count = store.keys.agents, -1 if limit is None else limit
    flat = await store.execute("ZRANGE", key, "+inf", since_ms, "BYSCORE", "REV", "LIMIT", 0, count, "WITHSCORES")
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return await _agents(store, {read_text(name): read_whole(heartbeat) for name, heartbeat in pairs})


async def agents_named(store: Store, names: Collection[str]) -> list[AgentInfo]:
    """Read those of these agents that are registered, by name."""
    heartbeats = await read_split(store, ("ZMSCORE", store.keys.agents), list(names))
    pairs = zip(names, heartbeats, strict=True)
    return await _agents(store, {name: read_whole(heartbeat) for name, heartbeat in pairs if heartbeat is not None})


async def count_agents(store: Store, *, since_ms: int = 0) -> int:
    """Count the registered agents, or those with a heartbeat from this time on."""
    count: int = await store.execute("ZCOUNT", store.keys.agents, since_ms, "+inf")
    return count


async def agent(store: Store, name: str) -> AgentInfo:
    """Read one agent.

    Raises:
        NotFound: the pool has no agent of this name.
    """
    found = await agents_named(store, [name])
    if not found:
        names = ", ".join(await some_names(store)) or "none"
        raise NotFound(f"agent {name!r} is not known in pool {store.keys.pool!r}; known are: {names}")
    return found[0]


async def some_names(store: Store) -> list[str]:
    """Read the names of the agents with the latest heartbeats, at most `NAMED` and `...`, for a message."""
    names = [read_text(name) for name in await store.execute("ZRANGE", store.keys.agents, 0, NAMED, "REV")]
    return [*sorted(names[:NAMED]), *(["..."] if len(names) > NAMED else [])]


async def _agents(store: Store, last_ms: Mapping[str, int]) -> list[AgentInfo]:
    if not last_ms:
        return []
    names = sorted(last_ms)
    definitions = _definitions(await store.execute("HGETALL", store.keys.limits))
    found: list[AgentInfo] = []
    for at in range(0, len(names), CHUNK):
        chunk = names[at : at + CHUNK]
        replies = await store.pipeline(
            [("HMGET", store.keys.agent(name), "slots", "backlog", "skills", "limits") for name in chunk]
            + [("HKEYS", store.keys.agent_workers(name)) for name in chunk]
            + [("XLEN", store.keys.inbox(name)) for name in chunk]
        )
        count = len(chunk)
        records = [readable(reply, [None] * 4) for reply in replies[:count]]
        hosts = [readable(reply, []) for reply in replies[count : 2 * count]]
        rows = zip(chunk, records, hosts, [readable(reply, 0) for reply in replies[2 * count :]], strict=True)
        found += [
            _agent(
                name,
                record,
                last_ms=last_ms[name],
                workers=sorted(read_text(id_) for id_ in ids),
                inbox=inbox,
                definitions=definitions,
            )
            for name, record, ids, inbox in rows
        ]
    return found


async def uneven_agents(store: Store, limit: int) -> list[UnevenAgent]:
    """Read the agents whose live workers have different skills, of the `limit` agents with the latest heartbeats."""
    names = sorted(read_text(name) for name in await store.execute("ZRANGE", store.keys.agents, 0, limit - 1, "REV"))
    replies = await store.pipeline([("HVALS", store.keys.agent_workers(name)) for name in names])
    found = []
    for name, rows in zip(names, replies, strict=True):
        # A row has slots, backlog and skills; a worker that drains has 0 slots.
        parsed = [read_text(row).split() for row in readable(rows, [])]
        live = [row[2:] for row in parsed if row and row[0] != "0"]
        counts = Counter(skill for skills in live for skill in skills)
        if uneven := {skill: count for skill, count in counts.items() if count < len(live)}:
            found.append(UnevenAgent(name, len(live), uneven))
    return found


async def inbox_lengths(store: Store) -> list[int]:
    """Read the number of tasks in the inbox of each agent, running or unread."""
    names, lengths = await agent_names(store), list[int]()
    for at in range(0, len(names), CHUNK):
        replies = await store.pipeline([("XLEN", store.keys.inbox(name)) for name in names[at : at + CHUNK]])
        lengths += [reply for reply in replies if isinstance(reply, int)]
    return lengths


async def serving(store: Store) -> dict[str, list[str]]:
    """Read the live agents by the queue that they serve, each list by name."""
    found: dict[str, list[str]] = {}
    for name, (slots, skills) in (await _of_each_agent(store, "slots", "skills")).items():
        if read_whole(slots):
            for queue in (QueueName.of_agent(name), *map(QueueName.of_skill, skills.split())):
                found.setdefault(str(queue), []).append(name)
    return found


async def served(store: Store) -> set[str]:
    """Read the queues of the known agents, live or not, and of their skills."""
    found: set[str] = set()
    for name, (skills,) in (await _of_each_agent(store, "skills")).items():
        found.update(str(queue) for queue in (QueueName.of_agent(name), *map(QueueName.of_skill, skills.split())))
    return found


async def limited(store: Store) -> dict[str, list[str]]:
    """Read the agents by the limit that they have, each list by name; `@AGENT` is an agent's own limit."""
    found: dict[str, list[str]] = {}
    for name, (limits,) in (await _of_each_agent(store, "limits")).items():
        for limit in limits.split():
            found.setdefault(limit, []).append(name)
    return found


async def _of_each_agent(store: Store, *fields: str) -> dict[str, list[str]]:
    """Read these fields of all agents, by name; a missing field is empty."""
    names = sorted(read_text(name) for name in await store.execute("ZRANGE", store.keys.agents, 0, -1))
    found: dict[str, list[str]] = {}
    for at in range(0, len(names), CHUNK):
        chunk = names[at : at + CHUNK]
        replies = await store.pipeline([("HMGET", store.keys.agent(name), *fields) for name in chunk])
        for name, reply in zip(chunk, replies, strict=True):
            found[name] = [read_text(value) for value in readable(reply, [None] * len(fields))]
    return found


async def limits(store: Store) -> dict[str, str]:
    """Read the rates of all limits; `=NAME` holds the rate that a reset of NAME restores."""
    return _definitions(await store.execute("HGETALL", store.keys.limits))


async def workers(store: Store, limit: int | None = None) -> list[WorkerInfo]:
    """Read the live workers, longest silent first; with a limit, those with the latest heartbeats."""
    last = -1 if limit is None else limit - 1
    heartbeats = await store.execute("ZRANGE", store.keys.workers, 0, last, "REV", "WITHSCORES")
    return await _workers(store, list(zip(heartbeats[-2::-2], heartbeats[::-2], strict=True)))


async def workers_named(store: Store, ids: Sequence[str]) -> list[WorkerInfo]:
    """Read those of these workers that live, in this order."""
    heartbeats = await read_split(store, ("ZMSCORE", store.keys.workers), ids)
    pairs = zip(ids, heartbeats, strict=True)
    return await _workers(store, [(id_.encode(), heartbeat) for id_, heartbeat in pairs if heartbeat is not None])


async def worker_ids(store: Store) -> list[str]:
    """Read the ids of the live workers."""
    return [read_text(id_) for id_ in await store.execute("ZRANGE", store.keys.workers, 0, -1)]


async def count_workers(store: Store) -> int:
    """Count the live workers."""
    count: int = await store.execute("ZCARD", store.keys.workers)
    return count


async def _workers(store: Store, heartbeats: Sequence[tuple[bytes, bytes]]) -> list[WorkerInfo]:
    found: list[WorkerInfo] = []
    for at in range(0, len(heartbeats), CHUNK):
        chunk = heartbeats[at : at + CHUNK]
        records = await store.pipeline([("HGETALL", store.keys.worker(read_text(id_))) for id_, _ in chunk])
        for (id_, heartbeat), record in zip(chunk, records, strict=True):
            # A worker with a damaged record lives, and its name is all that is known of it.
            worker = worker_of(read_text(id_), read_whole(heartbeat), readable(record, [b"host", b""]))
            if worker is not None:  # otherwise it was forgotten in between
                found.append(worker)
    return found


async def versions(store: Store, skill: str) -> list[KnownVersion]:
    """Read the versions of a skill that live workers have, and those of the last week."""
    flat = await store.execute("HGETALL", store.keys.versions(skill))
    stored = [
        (owner, read_text(value).split(" "))
        for field, value in zip(flat[::2], flat[1::2], strict=True)
        if len(owner := read_text(field).split(" ")) == 2 and value[:1].isdigit()
    ]
    if not stored:
        return []
    members = [f"{agent} {skill}={digest}" for (agent, digest), _ in stored]
    left = await read_split(store, ("ZMSCORE", store.keys.left_versions), members)
    found = []
    for ((agent, digest), (born_ms, *arguments)), left_ms in zip(stored, left, strict=True):
        given = [name for name in arguments if name]
        required = frozenset(name for name in given if not name.endswith("?"))
        names = frozenset(name.removesuffix("?") for name in given)
        found.append(KnownVersion(agent, digest, read_whole(born_ms), left_ms is None, required, names))
    return found


async def timings(store: Store, minutes: range) -> dict[tuple[str, str], list[list[int]]]:
    """Read the counts of attempts in these minutes by agent and skill, as `timings.sum_cells` takes them."""
    found: dict[tuple[str, str], list[list[int]]] = {}
    for first in range(minutes.start, minutes.stop, _MINUTES_AT_ONCE):
        several = range(first, min(first + _MINUTES_AT_ONCE, minutes.stop))
        for reply in await store.pipeline([("HGETALL", store.keys.timings(minute)) for minute in several]):
            if isinstance(reply, StoreError):
                raise reply
            for name, packed in zip(reply[::2], reply[1::2], strict=True):
                agent, _, skill = read_text(name).partition(" ")
                found.setdefault((agent, skill), []).append(_decode_cells(packed))
    return found


async def leader(store: Store) -> str | None:
    """Read the id of the leading supervisor, if any."""
    holder: bytes | None = await store.execute("GET", store.keys.leader)
    return None if holder is None else read_text(holder)


def _agent(
    name: str,
    record: list[bytes | None],
    *,
    last_ms: int,
    workers: list[str],
    inbox: int,
    definitions: dict[str, str],
) -> AgentInfo:
    slots, backlog, skills, limits = (read_text(value or b"") for value in record)
    return AgentInfo(
        name=name,
        skills=tuple(skills.split()),
        slots=read_whole(slots),
        backlog=read_whole(backlog),
        workers=tuple(workers),
        inbox=inbox,
        # The limit of an agent itself is its name behind an @; users see it as its rate.
        limits={"rate" if limit.startswith("@") else limit: definitions.get(limit, "?") for limit in limits.split()},
        last_seen_at=from_instant_ms(last_ms),
    )


def worker_of(id_: str, last_ms: int, record: Sequence[bytes]) -> WorkerInfo | None:
    """Return a worker from the reply to HGETALL of its record; None if it was forgotten."""
    fields = {read_text(name): read_text(value) for name, value in zip(record[::2], record[1::2], strict=True)}
    return _worker(id_, last_ms, fields) if fields else None


def _worker(id_: str, last_ms: int, fields: dict[str, str]) -> WorkerInfo:
    started = fields.get("started_ms")
    return WorkerInfo(
        id=id_,
        host=fields.get("host", ""),
        pid=read_whole(fields.get("pid", 0)),
        version=fields.get("version", ""),
        agents={
            agent: read_whole(slots) for name, slots in sorted(fields.items()) if (agent := QueueName.parse(name).agent)
        },
        started_at=from_instant_ms(read_whole(started)) if started else None,
        last_seen_at=from_instant_ms(last_ms),
        settings=fields.get("settings", ""),
        blocked=_loop_block(fields.get("blocked", "")),
    )


def _loop_block(text: str) -> LoopBlock | None:
    at_ms, _, rest = text.partition(" ")
    seconds, _, rest = rest.partition(" ")
    count, _, where = rest.partition(" ")
    try:
        return LoopBlock(from_instant_ms(int(at_ms)), float(seconds), int(count), where)
    except ValueError:
        return None


def _definitions(reply: list[bytes]) -> dict[str, str]:
    return dict(read_readable(_definition, zip(reply[::2], reply[1::2], strict=True)))


def rate_text(stored: bytes | None) -> str | None:
    """Return the rate of a limit from its stored definition; None for a missing or damaged one."""
    found = read_readable(_definition, [] if stored is None else [(b"", stored)])
    return found[0][1] if found else None


def cells_of(agent: str, minutes: Sequence[Sequence[bytes] | None]) -> dict[str, list[list[int]]]:
    """Return the counts of attempts of one agent by skill, from the replies to HGETALL of some minutes."""
    found: dict[str, list[list[int]]] = {}
    for reply in minutes:
        for name, packed in zip((reply or ())[::2], (reply or ())[1::2], strict=True):
            owner, _, skill = read_text(name).partition(" ")
            if owner == agent:
                found.setdefault(skill, []).extend(read_readable(_decode_cells, [packed]))
    return found


def _definition(stored: tuple[bytes, bytes]) -> tuple[str, str]:
    name, (count, window_us) = read_text(stored[0]), stored[1].split()
    return name, str(Rate(read_whole(count), read_whole(window_us)))
