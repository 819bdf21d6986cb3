"""The states of providers on the pages of limits, the action that clears them, and the same over the HTTP API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio
import pytest

from orchestrator import Agent, TaskContext, Throttled
from orchestrator.accounts.model import AccountScope, Role
from orchestrator.core.ids import new_task_id
from orchestrator.limits import scripts
from orchestrator.limits.providers import ProviderLimit, pack_told
from orchestrator.views.control import list_commands
from orchestrator.views.limit_detail import read_limit_page
from orchestrator.views.limit_pages import LIMITS, page_limits
from tests.helpers.api_client import api_client
from tests.helpers.counted_reads import counted_reads
from tests.helpers.local_team import TIMEOUT_S, run_local_team
from tests.helpers.waiting import wait_for
from tests.helpers.web_client import WebClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.core.settings import Settings
    from tests.helpers.local_team import LocalTeam

GPT: Final = "model:gpt"
LIMIT: Final = ProviderLimit(500, 60_000_000, 200_000, 60_000_000, 50)
HOSTILE: Final = "<script>alert(1)</script> 100% größe\u202e"


@pytest.fixture
async def team(settings: Settings) -> AsyncIterator[LocalTeam]:
    """A team whose settings have a provider."""
    async with run_local_team(settings) as running:
        yield running


pytestmark = pytest.mark.parametrize(
    "settings",
    [{"limits": {GPT: {"requests": "500/min", "tokens": "200k/min", "at_once": 50}}}],
    ids=[""],
    indirect=True,
)


class Caller:
    """An agent that calls the provider, which answers when the gate opens, or tells it to wait."""

    def __init__(self, *, throttled_s: float | None = None) -> None:
        self.gate, self.throttled_s = anyio.Event(), throttled_s
        self.agent = Agent("writer", limits=[GPT], concurrency=4)

        @self.agent.skill(max_attempts=1)
        async def write(ctx: TaskContext) -> str:
            async with ctx.provider(GPT, tokens=800) as call:
                if self.throttled_s is not None:
                    seconds, self.throttled_s = self.throttled_s, None
                    raise Throttled(seconds)
                await self.gate.wait()
                call.settle(tokens=40)
            return "text"


async def block(team: LocalTeam, state: str, *, name: str = GPT, said: str = HOSTILE, for_ms: int = 0) -> None:
    """Let a provider have a state, and be listed."""
    store, keys = team.services.store, team.services.keys
    await store.execute("HSET", keys.providers, name, LIMIT.text)
    await store.call(scripts.block(keys, name=name, state=state, told=pack_told(said, said), for_ms=for_ms))


async def test_calls_that_run(team: LocalTeam) -> None:
    """The page of a provider names who calls it, its windows, and the queues of its agents in which tasks wait."""
    caller = Caller()
    await team.work(caller.agent)
    handles = [await team.orc.submit("write") for _ in range(6)]

    async def runs() -> bool:
        return (await read_limit_page(team.services, GPT)).running == 4

    async def called() -> bool:
        return bool(await team.services.store.execute("HEXISTS", team.services.keys.providers, GPT))

    await wait_for(called, "a call", TIMEOUT_S)
    await wait_for(runs, "four calls", TIMEOUT_S)
    found = await read_limit_page(team.services, GPT)
    assert found.limit.provider is not None
    assert {(use.unit, use.used, use.left) for use in found.limit.provider.usage} == {
        ("requests", 4, 496), ("tokens", 3200, 196_800), ("at_once", 4, 46),
    }  # fmt: skip
    ids = {handle.id for handle in handles}
    assert {one.task for one in found.calls} <= ids
    assert len(found.calls) == 4
    assert {one.tokens for one in found.calls} == {800}
    assert all(one.by.startswith("agent writer, task ") for one in found.calls)
    assert all(one.lease_until > one.since for one in found.calls)
    assert (found.agents, found.looked, found.known) == (("writer",), 1, 1)
    web = WebClient(team.orc)
    await web.log_in()
    page = (await web.get(f"/limits/{GPT}")).text
    for one in found.calls:
        assert f'href="/tasks/{one.task}"' in page
    assert 'href="/limits/model%3Agpt"' in (await web.get("/limits")).text
    caller.gate.set()
    for handle in handles:
        assert await handle.result(TIMEOUT_S) == "text"
    assert (await read_limit_page(team.services, GPT)).calls == ()


async def test_a_told_pause_is_cleared(team: LocalTeam) -> None:
    """The list tells the state, until when and who told it; its button clears it, and the task that waits goes on."""
    caller = Caller(throttled_s=600)
    caller.gate.set()
    await team.work(caller.agent)
    handle = await team.orc.submit("write")

    async def throttled() -> bool:
        (row,) = (await page_limits(team.services, starts=GPT)).limits
        return row.provider is not None and row.provider.state == "throttled"

    await wait_for(throttled, "the pause", TIMEOUT_S)
    web = WebClient(team.orc)
    await web.log_in()
    for path in ("/limits", f"/limits/{GPT}"):
        page = (await web.get(path)).text
        assert "throttled</span>, ends <time" in page
        assert "told by agent writer, task " in page

    async def waits() -> bool:
        return bool((await read_limit_page(team.services, GPT)).queues)

    await wait_for(waits, "the task in its queue", TIMEOUT_S)
    assert [(one.queue, one.tasks) for one in (await read_limit_page(team.services, GPT)).queues] == [
        ("skill:write", 1)
    ]
    obstacle = (await web.get(f"/tasks/{handle.id}")).text.partition('id="obstacle"')[2].partition("</section>")[0]
    assert 'href="/limits/model%3Agpt"' in obstacle
    form = await web.form("/limits", "/commands/clear-limit")
    answer = await web.post("/commands/clear-limit", form)
    assert answer.status_code == 303, answer.text
    (record, *_) = await list_commands(team.services)
    assert (record.kind, record.actor) == ("clear-limit", "web:local")
    assert await handle.result(TIMEOUT_S) == "text"
    page = (await web.get(f"/limits/{GPT}")).text
    assert "/commands/clear-limit" not in page
    assert "open</span>" in page


@pytest.mark.parametrize(
    ("state", "for_ms", "words"),
    [
        ("throttled", 600_000, "throttled"),
        ("quota", 0, "out of quota"),
        ("broken", 600_000, "broken"),
        ("broken", 1, "being tried"),
    ],
)
async def test_states(team: LocalTeam, state: str, for_ms: int, words: str) -> None:
    """Each state has its words, what workers told is text, and only who may clear has the button."""
    await block(team, state, for_ms=for_ms)
    web = WebClient(team.orc)
    await web.log_in()

    async def shown() -> bool:
        web.dashboard.forget_reads()
        return f"{words}</span>" in (await web.get("/limits")).text

    await wait_for(shown, words, TIMEOUT_S)
    for path in ("/limits", f"/limits/{GPT}"):
        page = (await web.get(path)).text
        assert f"{words}</span>" in page
        assert "&lt;script&gt;alert(1)&lt;/script&gt; 100% größe\\u202e" in page
        assert "<script>alert" not in page
        assert "/commands/clear-limit" in page
    api = await api_client(team.orc, Role.VIEWER)
    (row,) = (await api.read("/limits"))["limits"]
    assert row["provider"]["state"] == ("trial" if for_ms == 1 else state)
    assert row["provider"]["told_by"] == HOSTILE
    assert (row["provider"]["until"] is None) == (for_ms in {0, 1})
    assert (await api.read(f"/limits/{GPT}"))["limit"] == row
    assert (await api.post("/commands/clear-limit", {"limit": GPT})).status_code == 403
    still = WebClient(team.orc, read_only=True)
    await still.log_in()
    assert "/commands/clear-limit" not in (await still.get(f"/limits/{GPT}")).text
    narrowed = await api_client(team.orc, Role.OPERATOR, scope=AccountScope(frozenset({"writer"})))
    assert (await narrowed.get(f"/limits/{GPT}")).status_code == 403
    assert (await narrowed.post("/commands/clear-limit", {"limit": GPT})).status_code == 403
    operator = await api_client(team.orc, Role.OPERATOR)
    assert (await operator.post("/commands/clear-limit", {"limit": GPT, "reason": "paid"})).json()["new"] is True
    (row,) = (await api.read("/limits"))["limits"]
    assert row["provider"]["state"] == "open"


async def test_live(team: LocalTeam) -> None:
    """An open page shows a state that ends soon each second, until it has ended."""
    await block(team, "throttled", for_ms=2500)
    web = WebClient(team.orc)
    await web.log_in()
    done, texts = anyio.Event(), list[str]()

    async def write(part: str) -> None:
        texts.append(part)
        if len(texts) > 1 and "open</span>" in part:
            done.set()

    async with anyio.create_task_group() as group:
        group.start_soon(web.dashboard.feed.run)
        await web.stream(f"/live/limits/{GPT}", write, done)
        group.cancel_scope.cancel()
    assert any("throttled</span>" in text for text in texts)


async def test_bad_names(team: LocalTeam) -> None:
    """Unknown limits are not found, others are refused; names that no program stores are shown as text."""
    await team.services.store.execute("HSET", team.services.keys.providers, "<script>x", LIMIT.text)
    web = WebClient(team.orc)
    await web.log_in()
    assert (await web.get("/limits/nothing")).status_code == 404
    assert (await web.get("/limits/%3Cscript%3Ex")).status_code == 400
    assert (await web.get("/limits/@nobody")).status_code == 404
    page = (await web.get("/limits")).text
    assert "&lt;script&gt;x" in page
    assert "<script>x" not in page


@pytest.mark.parametrize("key", ["providers", "blocked", "usage", "leases", "calls", "limits"])
async def test_a_key_of_another_type(team: LocalTeam, key: str) -> None:
    """Pages and API answer without what the key should have."""
    store, keys = team.services.store, team.services.keys
    taken = scripts.take(keys, name=GPT, call="1", tokens=8, definition=LIMIT, lease_ms=30_000, by="agent a")
    await store.call(taken)
    await store.execute("HSET", keys.limits, GPT, "5 1000000")
    wrong = {
        "providers": keys.providers,
        "blocked": keys.blocked(GPT),
        "usage": keys.provider_usage(GPT),
        "leases": keys.provider_leases(GPT),
        "calls": keys.provider_calls(GPT),
        "limits": keys.limits,
    }[key]
    await store.pipeline([("DEL", wrong), ("SET", wrong, "x"), ("EXPIRE", wrong, 60)])
    web = WebClient(team.orc)
    await web.log_in()
    for path in ("/limits", f"/limits/{GPT}", "/api/v1/limits", f"/api/v1/limits/{GPT}"):
        answer = await web.get(path)
        assert answer.status_code == 200, (path, answer.text)
    await store.execute("DEL", keys.limits)


async def test_many_providers(team: LocalTeam) -> None:
    """A page of providers with long texts has at most 200 kB, and needs at most five round trips."""
    said = '<"&' * 300
    for n in range(LIMITS + 10):
        await block(team, "throttled", name=f"{'p' * 100}-{n:03}", said=said, for_ms=600_000)
    store, keys = team.services.store, team.services.keys
    name, by = f"{'p' * 100}-000", f"agent {said}, task {new_task_id()}, worker w"
    for n in range(60):
        await store.call(
            scripts.take(keys, name=name, call=str(n), tokens=8, definition=ProviderLimit(), lease_ms=30_000, by=by)
        )
        await store.execute("ZADD", keys.provider_leases(name), 9 * 10**15 + n, str(n))
        await store.execute("HSET", keys.provider_calls(name), str(n), f"8 1700000000000000 {by}")
    for key in (keys.provider_leases(name), keys.provider_calls(name)):
        await store.execute("EXPIRE", key, 60)
    web = WebClient(team.orc)
    await web.log_in()
    texts = list[str]()
    for path in ("/limits", f"/limits/{name}"):
        await web.get(path)
        web.dashboard.forget_reads()
        with pytest.MonkeyPatch.context() as patch, counted_reads(store, patch) as counted:
            texts.append((await web.get(path)).text)
        assert counted.trips <= 5
        assert len(texts[-1].encode()) < 200_000
    assert "of 60" in texts[-1]
    page = await page_limits(team.services)
    assert len(page.limits) == LIMITS
    rest = await page_limits(team.services, after=page.cursor)
    assert len(rest.limits) == 10
    assert rest.cursor is None
