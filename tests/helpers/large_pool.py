"""A pool as large as a dashboard may meet: agents, workers, waiting tasks, sessions and dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orchestrator import Agent, Record, Reject, Submission, TaskContext
from orchestrator.agents import scripts
from orchestrator.agents.model import AgentSpec
from orchestrator.core.ids import new_task_id
from orchestrator.limits import scripts as limit_scripts
from orchestrator.limits.providers import ProviderLimit, pack_told
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam

AT_ONCE: Final = 5_000
"""Tasks of one submit."""
ALIVE_S: Final = 86_400
"""The workers are records without processes, so that none sends a heartbeat."""


@dataclass(frozen=True, slots=True)
class PoolSize:
    """Numbers of everything."""

    agents: int = 1_000
    workers: int = 200
    tasks: int = 1_000_000
    sessions: int = 10_000
    dead: int = 10_000
    budgets: int = 10_000

    def times(self, share: float) -> PoolSize:
        """Return a share of all numbers."""
        return PoolSize(*(max(2, int(number * share)) for number in _numbers(self)))


def _numbers(size: PoolSize) -> tuple[int, ...]:
    return (size.agents, size.workers, size.tasks, size.sessions, size.dead, size.budgets)


def _agent() -> Agent:
    agent = Agent("editor", concurrency=64)

    @agent.skill(max_attempts=1)
    async def fail(number: int) -> None:
        raise Reject(f"row {number} has no column {'abcdefgh'[number % 8]}")

    @agent.skill
    async def write(ctx: TaskContext, topic: str) -> str:
        await ctx.emit(f"writes about {topic}")
        return topic

    @agent.skill
    async def publish(ctx: TaskContext, text: str) -> str:
        return str(await ctx.ask(f"Publish {text}?", options=["yes", "no"]))

    return agent


async def fill(team: LocalTeam, size: PoolSize) -> dict[str, str]:
    """Fill the pool of a team that has a supervisor; return names of what pages show, by kind.

    The dead letters come from a real worker. Then the supervisor ends, so that the tasks wait.
    """
    supervisor = await team.start_supervisor()
    worker = await team.work(_agent())
    names = await _work(team)
    await _submit(team, size.dead, lambda number: Submission("fail", {"number": number}))

    async def dead() -> bool:
        return bool(await team.services.store.execute("ZCARD", team.services.keys.dead) >= size.dead)

    await wait_for(dead, "the dead letters", 600)
    supervisor.cancel()
    await team.stop(worker)
    await _register(team, size)
    await _set_budgets(team, size.budgets)
    await _submit(
        team,
        size.tasks,
        lambda number: Submission(
            f"skill-{number % size.agents}", {"topic": f"number {number}"}, session=f"session-{number % size.sessions}"
        ),
    )
    return names


async def _work(team: LocalTeam) -> dict[str, str]:
    """Make one of each thing that has a page."""
    orc = team.orc
    done = await orc.submit("write", {"topic": "all"}, session="session-0", tags=["blog"])
    question = await orc.submit("publish", {"text": "the news"}, session="session-0")
    await done.result(timeout=20)

    async def asks() -> bool:
        return str((await question.status()).state) == "awaiting_input"

    await wait_for(asks, "the question", 20)
    for number in range(300):
        async with orc.workspace("session-0").edit(agent="editor") as workspace:
            await workspace.set(f"part/{number % 100}", {"number": number, "text": "x" * 200})
            await workspace.append("notes", f"note {number}")
    await orc.chat("session-0", "main").append([{"role": "user", "content": f"message {n}"} for n in range(300)])
    for number in range(100):
        await orc.memory("editor").store(
            Record(id=f"r{number}", step=number, kind="note", content="x" * 200, importance=0.5)
        )
        await orc.admin.schedules.add(f"nightly-{number}", "write", {"topic": "news"}, cron="0 3 * * *")
    command = await orc.admin.pause_agent("agent-1", reason="the price list is wrong")
    return {
        "task": done.id,
        "question": question.id,
        "command": command.id,
        "worker": "host-0:1:w",
        "session": "session-0",
        "budget": "budget-0",
        "limit": "provider-0",
    }


async def _register(team: LocalTeam, size: PoolSize) -> None:
    services = team.services
    for number in range(size.agents):
        worker = number % size.workers
        spec = AgentSpec(f"agent-{number}", frozenset({f"skill-{number}"}))
        await services.store.call(
            scripts.register(
                services.keys, worker=f"host-{worker}:1:w", spec=spec, slots=4, backlog=0,
                about={"host": f"host-{worker}", "pid": 1}, alive_s=ALIVE_S,
            )
        )  # fmt: skip


async def _set_budgets(team: LocalTeam, number: int) -> None:
    """Set budgets, the first of which are held by many attempts and keep tasks back; and call providers."""
    store, keys = team.services.store, team.services.keys
    for first in range(0, number, AT_ONCE):
        names = [f"budget-{n}" for n in range(first, min(first + AT_ONCE, number))]
        fields = ("limit", "2000000 - 5000000 -", "spent", "1000000 7 3 0", "held", "1000000 0 0 0", "per", "day")
        await store.pipeline(
            [*(("HSET", keys.budget(name), *fields) for name in names), ("SADD", keys.budgets, *names)]
        )
    for name in ("budget-0", "budget-1"):
        ids = [new_task_id() for _ in range(100)]
        scores = [part for at, id_ in enumerate(ids) for part in (at, id_)]
        held = [part for id_ in ids for part in (f"{id_}:17", "0;1 10000 0 1 0")]
        await store.execute("ZADD", keys.held(keys.budget_scope(name)), *scores)
        await store.execute("HSET", keys.holds(name), *held)
    definition = ProviderLimit(500, 60_000_000, 200_000, 60_000_000, 100)
    for n in range(100):
        for call in range(100 if n == 0 else 1):
            by = f"agent editor, task {new_task_id()}, worker w"
            taken = limit_scripts.take(
                keys, name=f"provider-{n}", call=str(call), tokens=100, definition=definition, lease_ms=30_000, by=by
            )
            await store.call(taken)
        told = pack_told("agent editor", "too many requests")
        await store.call(limit_scripts.block(keys, name=f"provider-{n}", state="throttled", told=told, for_ms=600_000))


async def _submit(team: LocalTeam, number: int, task: Any) -> None:
    for first in range(0, number, AT_ONCE):
        await team.orc.submit_many([task(n) for n in range(first, min(first + AT_ONCE, number))])
