"""A team of programs with its dashboard, for tests that look at it with a browser."""

from __future__ import annotations

import re
import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from orchestrator import Orchestrator, Record
from orchestrator.core.settings import Settings
from orchestrator.limits import scripts
from orchestrator.limits.providers import ProviderLimit, pack_told
from orchestrator.testing.waiting import wait_until
from orchestrator.views.workers import list_workers
from tests.helpers.pty_screen import HOSTILE
from tests.helpers.server_matrix import NEWEST
from tests.helpers.terminal import Terminal
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.faultkit.processes import ActorProcess
    from tests.faultkit.servers import RedisServer

AGENTS: Final = '''
"""Agents of the tests in a browser."""

from typing import Literal

import anyio

from orchestrator import Agent, Reject, TaskContext

agent = Agent("editor", concurrency=8)


@agent.skill
async def write(topic: str, words: int = 3, tone: Literal["plain", "warm"] = "plain") -> str:
    """Write a text about a topic."""
    return f"{words} {tone} words about {topic}"


@agent.skill
async def count(ctx: TaskContext, to: int, seconds: float = 0.2) -> int:
    """Count aloud."""
    for number in range(1, to + 1):
        await ctx.progress(number, to, "counting")
        await ctx.emit(f"number {number}")
        await anyio.sleep(seconds)
    return to


@agent.skill
async def publish(ctx: TaskContext, text: str = "a text") -> str:
    """Ask before a text is published."""
    answer = await ctx.ask(f"Publish {text}?", options=["yes", "no"])
    return f"said {answer}"


@agent.skill
async def gather(ctx: TaskContext) -> int:
    """Join a task that no agent runs."""
    return len(await ctx.join([await ctx.submit("translate", {"text": "x"})]))


@agent.skill(reserve={"usd": 0.5})
async def read(ctx: TaskContext, page: str) -> str:
    """Spend 0.5 usd for a long time."""
    async with ctx.spend(usd=0.5, tokens=8_000):
        await anyio.sleep(3600)
    return page


@agent.skill(max_attempts=1)
async def fail(reason: str) -> None:
    """Fail, once and for all."""
    raise Reject(reason)


@agent.skill(max_attempts=1)
async def stumble(reason: str) -> None:
    """Fail with a traceback, unless the file beside this one says that all is well."""
    from pathlib import Path

    if not (Path(__file__).parent / "repaired").exists():
        raise ValueError(reason)
'''
MARKUP: Final = (
    "<script>document.title='run'</script><img src=x onerror=alert(1)></main>" + "{{ 7 * 7 }}" + "long" * 2500
)
LINK: Final = re.compile(r"dashboard +(http://\S+)")


@dataclass(frozen=True, slots=True)
class Site:
    """A running team.

    Attributes:
        terminal: types commands to the same pool.
        url: of the dashboard, without a slash at its end.
        names: of the tasks, sessions and so on that were made, for the parts of paths.
    """

    terminal: Terminal
    url: str
    link: str
    web: ActorProcess
    names: dict[str, str]

    def new_link(self) -> str:
        """Make another one-time link."""
        secret = self.terminal.orc("web", "login").out.strip().partition("?")[2]
        return f"{self.url}/login?{secret}"

    @property
    def settings(self) -> Settings:
        """Settings of a client of the pool."""
        environ = self.terminal.environ
        return Settings(prefix=environ["ORC_PREFIX"], redis={"url": environ["ORC_REDIS__URL"]})  # type: ignore[arg-type]


@contextmanager
def running_site(
    folder: Path, running_server: Callable[[str], RedisServer], *options: str, hostile: bool = True
) -> Iterator[Site]:
    """Start agents, a supervisor and `orc web`, and make tasks in all states.

    Args:
        folder: of the terminal.
        running_server: as the fixture.
        options: of `orc web`.
        hostile: texts of agents have markup, marks of direction and control characters.
    """
    terminal = Terminal(folder, ORC_REDIS__URL=running_server(NEWEST).url, ORC_PREFIX=f"t{secrets.token_hex(5)}:test:t")
    (folder / "my_agents.py").write_text(AGENTS)
    with (
        terminal.start("supervisor", "run") as supervisor,
        terminal.start("worker", "run", "my_agents:agent") as worker,
        terminal.start("web", "--port", "0", *options) as web,
    ):
        supervisor.wait_output("leadership_acquired", timeout_s=30)
        worker.wait_output("worker_started", timeout_s=30)
        link = LINK.search(wait_until(lambda: LINK.search(web.output) and web.output, "the link", 30) or "")
        assert link is not None
        site = Site(terminal, link[1].partition("/login?")[0], link[1], web, {})
        site.names.update(
            anyio.run(partial(_fill, site.settings, HOSTILE + MARKUP if hostile else "the ferries to the islands"))
        )
        yield site


async def _call_provider(orc: Orchestrator, said: str) -> None:
    """Let a provider have a call that runs, and a pause."""
    store, keys = orc.services.store, orc.services.keys
    limit = ProviderLimit(500, 60_000_000, 200_000, 60_000_000, 50)
    await store.call(
        scripts.take(keys, name="model:gpt", call="1", tokens=800, definition=limit, lease_ms=3_600_000, by=said)
    )
    await store.call(
        scripts.block(keys, name="model:gpt", state="throttled", told=pack_told(said, said), for_ms=3_600_000)
    )


async def _fill(settings: Settings, said: str) -> dict[str, str]:
    """Make something of everything."""
    async with Orchestrator(settings=settings) as orc:
        await orc.admin.set_budget("team", usd=2, tokens="2M", per="day")
        tasks: dict[str, Any] = {
            "succeeded": await orc.submit("write", {"topic": said}, session="draft-1", tags=["blog"]),
            "counted": await orc.submit("count", {"to": 3, "seconds": 0.0}, session="draft-1"),
            "question": await orc.submit("publish", {"text": said}, session="draft-1"),
            "dead": await orc.submit("fail", {"reason": said}),
            "raised": await orc.submit("stumble", {"reason": said}),
            "ready": await orc.submit("translate", {"text": said}),
            "scheduled": await orc.submit("write", {"topic": "later"}, delay=3600),
            "joining": await orc.submit("gather", budget="team"),
        }
        await _call_provider(orc, said[:300])
        async with orc.workspace("draft-1").edit(agent="editor") as workspace:
            await workspace.set("title", said)
            await workspace.append("notes", said)
            await workspace.direct("editor", "FREEZE", said[:500])
        await orc.chat("draft-1", "main").append([{"role": "user", "content": said}])
        await orc.memory("editor").store(Record(id="r1", step=1, kind="note", content=said, importance=0.5))
        await orc.admin.schedules.add("nightly", "write", {"topic": "news"}, cron="0 3 * * *")
        command = await orc.admin.pause_agent("nobody", reason=said[:500])

        async def settled() -> bool:
            states = {name: str((await task.status()).state) for name, task in tasks.items()}
            wanted = {
                "succeeded": "succeeded",
                "counted": "succeeded",
                "question": "awaiting_input",
                "dead": "dead",
                "joining": "joining",
            }
            return all(states[name] == state for name, state in {**wanted, "raised": "dead"}.items())

        await wait_for(settled, "the tasks to end, ask or fail", 30)
        (worker,) = (await list_workers(orc.services)).workers
        made = {"command": command.id, "session": "draft-1", "worker": worker.worker.id}
        return {**{name: task.id for name, task in tasks.items()}, **made}
