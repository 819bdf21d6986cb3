"""Reads the skills of a pool: who has them, in which versions, and their descriptions."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.agents import queries
from orchestrator.agents.descriptions import SkillDescription, decode_description
from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import DamagedData, NotFound, StoreError
from orchestrator.core.queue_name import QueueName
from orchestrator.core.reading import read_text, read_whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from orchestrator.agents.model import KnownVersion
    from orchestrator.store.store import Store

NAMED: Final = 20
"""Skills that an error names."""
CHUNK: Final = 200
"""Skills that one round trip reads."""


@dataclass(frozen=True, slots=True)
class SkillVersionInfo:
    """One version of a skill: handlers with the same names, types and constraints of arguments.

    Attributes:
        digest: identifies the version.
        agents: agents of which a worker has or had it in the last week.
        live: whether a live worker has it.
        first_seen_at: first registration.
        required: names of the arguments without a default.
        optional: names of the arguments with a default.
        description: None if no worker has described it.
    """

    digest: str
    agents: tuple[str, ...]
    live: bool
    first_seen_at: datetime
    required: tuple[str, ...]
    optional: tuple[str, ...]
    description: SkillDescription | None


@dataclass(frozen=True, slots=True)
class SkillInfo:
    """A skill.

    Attributes:
        name: of the skill.
        agents: live agents that have it.
        versions: newest first.
    """

    name: str
    agents: tuple[str, ...]
    versions: tuple[SkillVersionInfo, ...]

    @property
    def description(self) -> SkillDescription | None:
        """Description of the newest live version, else of the newest one."""
        described = [version for version in self.versions if version.description is not None]
        newest = next((version for version in described if version.live), described[0] if described else None)
        return None if newest is None else newest.description


@dataclass(frozen=True, slots=True)
class SkillSummary:
    """A skill in a list.

    Attributes:
        name: of the skill.
        agents: number of live agents that have it.
        summary: first line of the docstring that was stored last; empty if there is none.
    """

    name: str
    agents: int
    summary: str


async def list_skills(store: Store) -> list[SkillSummary]:
    """Read the skills of the live agents by name."""
    agents = {
        name: len(found)
        for queue, found in (await queries.serving(store)).items()
        if (name := QueueName.parse(queue).skill) is not None
    }
    return await _summaries(store, agents)


async def list_latest_skills(store: Store, *, agents: int, limit: int) -> tuple[list[SkillSummary], bool]:
    """Read the skills of the agents with the latest heartbeats, by name, and whether there may be more.

    Args:
        store: of the pool.
        agents: maximum number of agents.
        limit: maximum number of skills.
    """
    found = [read_text(name) for name in await store.execute("ZRANGE", store.keys.agents, 0, agents, "REV")]
    replies = await store.pipeline([("HGET", store.keys.agent(name), "skills") for name in found[:agents]])
    counts = Counter(name for reply in replies if isinstance(reply, bytes) for name in set(read_text(reply).split()))
    shown = sorted(counts)[:limit]
    summaries = await _summaries(store, {name: counts[name] for name in shown})
    return summaries, len(found) > agents or len(counts) > limit


async def _summaries(store: Store, agents: Mapping[str, int]) -> list[SkillSummary]:
    """Read what skills say of themselves; `agents` has the number of agents of each."""
    names, listed = sorted(agents), []
    for first in range(0, len(names), CHUNK):
        several = names[first : first + CHUNK]
        replies = await store.pipeline([("HGETALL", store.keys.descriptions(name)) for name in several])
        for name, reply in zip(several, replies, strict=True):
            if isinstance(reply, StoreError):
                raise reply
            newest = max(_parse(reply).values(), key=lambda each: each[0], default=(0, SkillDescription()))
            listed.append(SkillSummary(name, agents[name], newest[1].summary))
    return listed


async def read_skill(store: Store, name: str) -> SkillInfo:
    """Read one skill.

    Raises:
        NotFound: no worker of the last week has it.
    """
    found = await find_skill(store, name)
    if found is None:
        names = [skill.name for skill in await list_skills(store)]
        shown = ", ".join(names[:NAMED]) + (" ..." if len(names) > NAMED else "")
        raise NotFound(f"skill {name!r} is not known in pool {store.keys.pool!r}; known are: {shown or 'none'}")
    return found


async def find_skill(store: Store, name: str) -> SkillInfo | None:
    """Read one skill; None if no worker of the last week has it."""
    known = await queries.versions(store, name)
    if not known:
        return None
    described = _parse(await store.execute("HGETALL", store.keys.descriptions(name)))
    by_digest: dict[str, list[KnownVersion]] = {}
    for version in known:
        by_digest.setdefault(version.digest, []).append(version)
    versions = [
        SkillVersionInfo(
            digest,
            tuple(sorted(version.agent for version in same)),
            any(version.live for version in same),
            from_instant_ms(min(version.born_ms for version in same)),
            tuple(sorted(same[0].required)),
            tuple(sorted(same[0].names - same[0].required)),
            described[digest][1] if digest in described else None,
        )
        for digest, same in by_digest.items()
    ]
    live = sorted({version.agent for version in known if version.live})
    return SkillInfo(name, tuple(live), tuple(sorted(versions, key=lambda one: one.first_seen_at, reverse=True)))


def _parse(flat: list[bytes]) -> dict[str, tuple[int, SkillDescription]]:
    """Return the ms and the description of each version; an unreadable one is left out."""
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    found = {}
    for digest, text in fields.items():
        described_ms = fields.get(b"ms:" + digest)
        if described_ms is not None and described_ms.isdigit():
            with suppress(DamagedData):
                found[read_text(digest)] = read_whole(described_ms), decode_description(text)
    return found
