"""Keys share the slots of real workers: caps, families, lists, commands, and pools with older programs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from orchestrator import Agent, Cause, Retry, TaskContext
from orchestrator.core.errors import UpgradeUnfinished
from orchestrator.core.formats import Feature, Floor
from orchestrator.tasks import queries
from orchestrator.tasks.submission import Submission
from orchestrator.views.shares import list_shares
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.terminal import Terminal
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.local_team import LocalTeam


class Shop:
    """An agent whose tasks wait until they are let go, and note how many run at a time."""

    def __init__(self, concurrency: int = 8) -> None:
        self.agent = Agent("shop", concurrency=concurrency)
        self.running = self.most = 0
        self.let_go = anyio.Event()

        @self.agent.skill
        async def serve() -> None:
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await self.let_go.wait()
            finally:
                self.running -= 1


async def test_at_most(team: LocalTeam) -> None:
    """Two of a key run at a time; `why`, the queue and the list of shares say so, and all run in the end."""
    shop = Shop()
    await team.orc.admin.set_share("acme", at_most=2)
    handles = await team.orc.submit_many([Submission("serve", fair="acme") for _ in range(6)])
    await team.work(shop.agent)
    await wait_for(lambda: shop.running == 2, lambda: f"{shop.running} run")
    why = (await handles[-1].status()).detail
    assert (why.cause, why.key, why.ahead) == (Cause.SHARE, "acme", 3)
    assert why.text.startswith("waits for its share: key 'acme' has 2 of 2 running")
    (view,) = (await list_shares(team.services)).shares
    assert (view.key, view.waiting, view.running, view.at_most) == ("acme", 4, 2, 2)
    assert (await queries.queue_lengths(team.services.store))["skill:serve"] == 4
    shop.let_go.set()
    for handle in handles:
        await handle.result(TIMEOUT_S)
    assert shop.most == 2
    assert (await list_shares(team.services)).shares[0].running == 0


async def test_a_larger_share_lets_more_run(team: LocalTeam) -> None:
    """Nothing has to end for the new cap to count."""
    shop = Shop()
    await team.orc.admin.set_share("acme", at_most=1)
    await team.orc.submit_many([Submission("serve", fair="acme") for _ in range(6)])
    await team.work(shop.agent)
    await wait_for(lambda: shop.running == 1, lambda: f"{shop.running} run")
    await team.orc.admin.set_share("acme", at_most=3)
    await wait_for(lambda: shop.running == 3, lambda: f"{shop.running} run")
    await team.orc.admin.delete_share("acme")
    await wait_for(lambda: shop.running == 6, lambda: f"{shop.running} run")


async def test_a_family_of_one_key_with_one_place(team: LocalTeam) -> None:
    """Children have the key of their parent, and run in its place while it awaits them, also through failures."""
    agent, failed = Agent("tree", concurrency=2), list[int]()

    @agent.skill(backoff=0.01)
    async def grow(ctx: TaskContext, depth: int) -> int:
        if not depth:
            if len(failed) < 2:
                failed.append(depth)
                raise Retry(0.01)
            return 1
        children = [await ctx.submit("grow", {"depth": depth - 1}) for _ in range(2)]
        return sum([await child.result() for child in children])

    await team.orc.admin.set_share("acme", at_most=1)
    await team.work(agent)
    roots = [await team.orc.submit("grow", {"depth": 3}, fair="acme") for _ in range(3)]
    assert [await root.result(20) for root in roots] == [8, 8, 8]
    assert await team.services.store.execute("EXISTS", team.services.keys.share_keys) == 0


async def test_purge_and_cancel(team: LocalTeam) -> None:
    """All waiting tasks of a queue are found, also those that wait behind others of their key."""
    handles = await team.orc.submit_many([Submission("serve", fair=key) for key in "aab" for _ in range(30)])
    sent = await team.orc.admin.purge("skill:serve", reason="test data")
    await wait_for(partial(_all_cancelled, team, [handle.id for handle in handles]), "all are cancelled")
    assert sent.command.words.startswith("purge-queue")
    assert await team.services.store.execute("EXISTS", team.services.keys.share_flows) == 0


async def _all_cancelled(team: LocalTeam, ids: list[str]) -> bool:
    states = await team.services.store.pipeline([("HGET", team.services.keys.task(id_), "state") for id_ in ids])
    return set(states) == {b"cancelled"}


async def test_commands(team: LocalTeam, tmp_path: Path) -> None:
    """`orc shares` sets, lists and deletes; `orc tasks submit` has `--fair`."""
    url = team.settings.redis.url
    assert url is not None
    terminal = Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)

    async def orc(*typed: str) -> str:
        done = await anyio.to_thread.run_sync(partial(terminal.orc, *typed))
        assert done.code == 0, done.err
        return done.out

    await orc("tasks", "submit", "serve", "--fair", "acme corp")
    await orc("shares", "set", "acme corp", "--weight", "3", "--at-most", "50", "--reason", "contract")
    listed = await orc("shares", "list")
    assert "acme corp" in listed
    assert "share set to weight 3.0, at most 50 by" in listed
    await orc("shares", "delete", "acme corp")
    (view,) = (await list_shares(team.services)).shares
    assert (view.key, view.weight, view.at_most, view.waiting) == ("acme corp", 1.0, None, 1)


async def test_refused_beside_older_programs(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older programs would let a flow stand still, so nothing with a key is stored."""
    store = team.orc.services.store
    monkeypatch.setattr(Floor, "admits", lambda _, feature: feature is not Feature.FAIR_SHARES)
    with pytest.raises(UpgradeUnfinished, match="the share of a key"):
        await team.orc.submit("serve", fair="acme")
    with pytest.raises(UpgradeUnfinished, match="the share of a key"):
        await team.orc.admin.set_share("acme", weight=2)
    with pytest.raises(UpgradeUnfinished, match="the share of a key"):
        await team.orc.admin.schedules.add("daily", "serve", every=60, fair="acme")
    assert not await store.execute("EXISTS", store.keys.desired, store.keys.share_flows)
