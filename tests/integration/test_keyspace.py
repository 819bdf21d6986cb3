"""Which keys a working pool leaves in Redis: only those of the table, of the type that it says, each in one slot."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import Agent, Reject, TaskContext
from orchestrator.core.errors import InvalidInput, TaskFailed
from orchestrator.store.key_kinds import POOL_KEYS
from orchestrator.store.keys import PoolKeys
from orchestrator.tasks.submission import Submission
from tests.helpers.guards import keys_of
from tests.helpers.local_team import TIMEOUT_S

if TYPE_CHECKING:
    import redis

    from tests.helpers.local_team import LocalTeam

HOSTILE = "a {b} } : * ? [x] / % \n é 𝄞 ../.."


def _pattern(suffix: str) -> re.Pattern[str]:
    """A suffix of the table as a pattern: a name in capitals at its end, or before `:workers`, is any name."""
    parts = [".+" if part.isupper() and part != "TOTAL" else re.escape(part) for part in suffix.split(":")]
    return re.compile(":".join(parts))


async def _use_everything(team: LocalTeam) -> None:
    """Tasks that end in every way, wait in every place, under hostile foreign ids."""
    agent = Agent("busy", rate="1000/s")

    @agent.skill(backoff=30)
    async def work(ctx: TaskContext, how: str = "") -> str:
        if how == "reject":
            raise Reject("no")
        if how == "fail":
            raise ValueError("later")
        if how == "parent":
            await (await ctx.submit("work")).result()
        return how

    await team.work(agent)
    options: dict[str, Any] = {"session": HOSTILE, "key": HOSTILE, "tags": [HOSTILE]}
    for how in ("", "parent"):
        options["key"] = f"{HOSTILE} {how}"
        assert await (await team.orc.submit("work", {"how": how}, **options)).result(TIMEOUT_S) == how
    with pytest.raises(TaskFailed):
        await (await team.orc.submit("work", {"how": "reject"})).result(TIMEOUT_S)
    await team.orc.submit("work", {"how": "fail"})
    await team.orc.submit_many([Submission("nobody"), Submission("nobody", agent="absent"), Submission("x", delay=60)])
    parked = await team.orc.submit("unknown", agent="busy")
    assert (await parked.status()).why.startswith("parked: agent 'busy' does not have")
    await team.orc.submit("work")


async def test_every_key_is_in_the_table(team: LocalTeam, redis_client: redis.Redis) -> None:
    """Each key has a row, the type that the row says, and a time to live unless the row says permanent."""
    await _use_everything(team)
    root = team.services.keys.root
    met: set[str] = set()
    for key in keys_of(redis_client, team.settings.prefix):
        assert key.startswith(f"{root}:")
        rows = [kind for kind in POOL_KEYS if _pattern(kind.suffix).fullmatch(key.removeprefix(f"{root}:"))]
        assert rows, f"{key} is not in the table"
        kind = rows[-1] if key.endswith(":workers") else rows[0]
        met.add(kind.suffix)
        kinds = {row.type.partition(",")[0] for row in rows}
        assert redis_client.type(key).decode() in kinds, key  # type: ignore[union-attr]
        if not any(row.permanent for row in rows):
            assert redis_client.ttl(key) > 0, key
    assert {"task:ID", "inbox:A", "limit:NAME", "idem:KEY", "dead", "replies:C", "stats:MINUTE", "leader"} <= met


async def test_all_keys_of_a_pool_share_a_slot(team: LocalTeam, redis_client: redis.Redis) -> None:
    """Whatever users name their sessions and keys, the hash tag is the pool's."""
    await _use_everything(team)
    for key in keys_of(redis_client, team.settings.prefix):
        assert re.search(r"\{([^}]*)\}", key)[1] == "pool:default", key  # type: ignore[index]


@pytest.mark.parametrize("name", ["a{b}", "a b", "", "x" * 129, "é", "-a", "a\n"])
async def test_hostile_names_never_reach_a_key(team: LocalTeam, name: str) -> None:
    """Skills, agents and pools with such names are refused before anything is sent."""
    with pytest.raises(InvalidInput, match="not a valid name"):
        await team.orc.submit(name)
    with pytest.raises(InvalidInput, match="not a valid name"):
        await team.orc.submit("work", agent=name)
    with pytest.raises(InvalidInput, match="not a valid name"):
        Agent(name)
    with pytest.raises(InvalidInput, match="not a valid name"):
        PoolKeys("a:b:c", name)
