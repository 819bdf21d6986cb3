"""`ctx.effect` with real workers: outcomes that are known, unknown, and decided."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio import from_thread

from orchestrator import (
    Agent,
    EffectDone,
    EffectNotDone,
    InvalidInput,
    NotFound,
    TaskContext,
    TaskEvent,
    TaskFailed,
    TaskState,
    UpgradeUnfinished,
    sync,
)
from orchestrator.core.formats import Feature, Floor
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.terminal import Terminal
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator import TaskHandle
    from tests.helpers.local_team import LocalTeam


class Till:
    """Counts charges; raises instead what it is given."""

    def __init__(self, *failures: Exception) -> None:
        self.charges: list[int] = []
        self.failures = list(failures)

    async def charge(self, cents: int) -> dict[str, int]:
        """Charge, then fail if a failure is planned."""
        failure = self.failures.pop(0) if self.failures else None
        if not isinstance(failure, EffectNotDone):
            self.charges.append(cents)
        if failure is not None:
            raise failure
        return {"cents": cents}


async def asks(handle: TaskHandle[Any], number: int) -> None:
    """Wait until a task waits with this question."""

    async def waits() -> bool:
        return (await handle.status()).detail.number == number

    await wait_for(waits, f"question {number}", TIMEOUT_S)


async def test_results_are_kept(team: LocalTeam) -> None:
    """Later attempts and later calls return the stored result; `info` and the client list the effect."""
    till, agent = Till(), Agent("clerk")

    @agent.skill
    async def buy(ctx: TaskContext) -> list[Any]:
        first = await ctx.effect("charge", till.charge, 12)
        if ctx.attempt == 1:
            raise ConnectionError
        return [first, await ctx.effect("charge", till.charge, 12)]

    await team.work(agent)
    handle = await team.orc.submit("buy")
    assert await handle.result(TIMEOUT_S) == [{"cents": 12}, {"cents": 12}]
    assert till.charges == [12]
    assert (await handle.info()).effects == ("charge",)
    (effect,) = await team.orc.tasks.effects(handle.id)
    assert (effect.state, effect.decisions, effect.question) == ("done", (), None)
    assert effect.ended_at is not None
    assert effect.begun_at <= effect.ended_at
    with pytest.raises(NotFound, match="does not exist"):
        await team.orc.tasks.effects("0" * 8 + "-0000-7000-8000-" + "0" * 12)


async def test_the_log_of_the_session(team: LocalTeam) -> None:
    """The events of the session tell each step of an effect, and the question about it once."""
    till, agent = Till(TimeoutError("no answer"), EffectNotDone()), Agent("clerk")

    @agent.skill
    async def buy(ctx: TaskContext) -> Any:
        await ctx.emit("before")
        return await ctx.effect("charge", till.charge, 12)

    await team.work(agent)
    handle = await team.orc.submit("buy", session="shop", max_attempts=5)
    await asks(handle, 1)
    await handle.answer("not done", actor="ada")
    await handle.result(TIMEOUT_S)
    async with aclosing(team.orc.session("shop").events(block=0.3)) as events:
        told = [
            event.event.reason
            async for event in events
            if isinstance(event.event, TaskEvent) and event.kind == "effect"
        ]
    assert told == [
        "charge: begun",
        "charge: begun, not done by ada",
        "charge: not done",
        "charge: begun",
        "charge: done",
    ]


async def test_the_blocking_client(team: LocalTeam) -> None:
    """A plain `def` begins an effect from its thread, and the blocking client lists it."""
    till, agent = Till(), Agent("clerk")

    @agent.skill
    def buy(ctx: TaskContext) -> Any:
        return from_thread.run(partial(ctx.effect, "charge", till.charge, 3))

    await team.work(agent)
    handle = await team.orc.submit("buy")
    assert await handle.result(TIMEOUT_S) == {"cents": 3}

    def read() -> list[str]:
        with sync.Orchestrator(settings=team.settings) as orc:
            return [effect.name for effect in orc.tasks.effects(handle.id)]

    assert await anyio.to_thread.run_sync(read) == ["charge"]


async def test_an_exception_leaves_the_outcome_unknown(team: LocalTeam) -> None:
    """A person is asked after an exception, whatever else the handler asks before and behind the effect."""
    till, agent = Till(TimeoutError(), TimeoutError()), Agent("clerk", concurrency=1)

    @agent.skill
    async def buy(ctx: TaskContext) -> list[Any]:
        colour = await ctx.ask("Which colour?")
        bought = await ctx.effect("charge", till.charge, 12)
        return [colour, bought, await ctx.ask("Ship it?")]

    await team.work(agent)
    handle = await team.orc.submit("buy")
    await asks(handle, 1)
    await handle.answer("red")
    await asks(handle, 2)
    await handle.answer("not done", actor="ada")
    await asks(handle, 3)
    assert till.charges == [12, 12]
    await handle.answer({"done": {"cents": 11}}, actor="bob")
    await asks(handle, 4)
    await handle.answer(value=True)
    assert await handle.result(TIMEOUT_S) == ["red", {"cents": 11}, True]
    assert till.charges == [12, 12], "once, and once more after the decision of ada"
    info = await handle.info()
    assert [question.effect for question in info.questions] == ["", "charge", "charge", ""]
    (effect,) = await team.orc.tasks.effects(handle.id)
    assert effect.decisions == ("not done by ada", "done by bob")


async def test_several_unknown_outcomes(team: LocalTeam) -> None:
    """Effects that were begun side by side ask one after another, and each answer meets its own effect."""
    agent, failed = Agent("clerk", concurrency=1), set[str]()

    async def charge(name: str) -> str:
        if name not in failed:
            failed.add(name)
            raise TimeoutError
        return f"second {name}"

    @agent.skill
    async def buy(ctx: TaskContext) -> dict[str, Any]:
        found: dict[str, Any] = {}

        async def one(name: str) -> None:
            found[name] = await ctx.effect(name, charge, name)

        names = ["a", "b", "c"]
        async with anyio.create_task_group() as group:
            for name in names if len(failed) % 2 else reversed(names):
                group.start_soon(one, name)
        return found

    await team.work(agent)
    handle = await team.orc.submit("buy")
    for number in (1, 2, 3):
        await asks(handle, number)
        (question,) = [one for one in (await handle.info()).questions if one.open]
        await handle.answer({"done": question.effect.upper()})
    assert await handle.result(TIMEOUT_S) == {"a": "A", "b": "B", "c": "C"}


async def test_known_not_to_have_happened(team: LocalTeam) -> None:
    """After `EffectNotDone` of the function the next attempt begins the effect anew, without a decision."""
    till, agent = Till(EffectNotDone("refused")), Agent("clerk")

    @agent.skill
    async def buy(ctx: TaskContext) -> Any:
        return await ctx.effect("charge", till.charge, 12, unknown="fail")

    await team.work(agent)
    handle = await team.orc.submit("buy")
    assert await handle.result(TIMEOUT_S) == {"cents": 12}
    assert till.charges == [12]
    (effect,) = await team.orc.tasks.effects(handle.id)
    assert (effect.state, effect.decisions) == ("done", ())


@pytest.mark.parametrize(
    ("known", "charges", "decision"),
    [(EffectDone({"cents": 12}), 1, "done by check"), (EffectNotDone(), 2, "not done by check")],
)
async def test_a_check(team: LocalTeam, known: Any, charges: int, decision: str) -> None:
    """The check gets the arguments, and its finding is recorded."""
    till, agent, seen = Till(TimeoutError()), Agent("clerk"), list[int]()

    def was_charged(cents: int) -> EffectDone | None:
        seen.append(cents)
        if isinstance(known, Exception):
            raise known
        return known  # type: ignore[no-any-return]

    @agent.skill
    async def buy(ctx: TaskContext) -> Any:
        return await ctx.effect("charge", till.charge, 12, check=was_charged)

    await team.work(agent)
    handle = await team.orc.submit("buy")
    assert await handle.result(TIMEOUT_S) == {"cents": 12}
    assert (len(till.charges), seen) == (charges, [12])
    (effect,) = await team.orc.tasks.effects(handle.id)
    assert effect.decisions == (decision,)


async def test_a_check_that_cannot_tell(team: LocalTeam) -> None:
    """None leaves it to the policy; an operator's retry of the dead letter decides in the same way."""
    till, agent = Till(TimeoutError()), Agent("clerk")

    @agent.skill
    async def buy(ctx: TaskContext) -> Any:
        return await ctx.effect("charge", till.charge, 12, unknown="fail", check=lambda _: None)

    await team.work(agent)
    handle = await team.orc.submit("buy")
    for _ in range(2):
        with pytest.raises(TaskFailed, match=r"effect 'charge' was begun by worker .* and its outcome is unknown"):
            await team.orc.task(handle.id).result(TIMEOUT_S)
        await team.orc.retry(handle.id)
    assert till.charges == [12]


async def test_a_person_ends_the_task(team: LocalTeam) -> None:
    """`fail` ends the task as a dead letter; when it is retried, it asks again."""
    till, agent = Till(TimeoutError()), Agent("clerk")

    @agent.skill
    async def buy(ctx: TaskContext) -> Any:
        return await ctx.effect("charge", till.charge, 12)

    await team.work(agent)
    handle = await team.orc.submit("buy")
    await asks(handle, 1)
    await handle.answer("fail", actor="ada")
    with pytest.raises(TaskFailed, match="ada decided to end the task"):
        await handle.result(TIMEOUT_S)
    await team.orc.retry(handle.id)
    await asks(handle, 2)
    await handle.answer("done")
    assert await team.orc.task(handle.id).result(TIMEOUT_S) is None
    assert till.charges == [12]


async def test_other_arguments(team: LocalTeam) -> None:
    """Other arguments under the same name are refused for good, also once the effect is done."""
    till, agent = Till(), Agent("clerk")

    @agent.skill
    async def buy(ctx: TaskContext) -> Any:
        await ctx.effect("charge", till.charge, 12)
        return await ctx.effect("charge", till.charge, 13)

    await team.work(agent)
    handle = await team.orc.submit("buy")
    with pytest.raises(TaskFailed, match="effect 'charge' was begun with other arguments"):
        await handle.result(TIMEOUT_S)
    assert (till.charges, (await handle.info()).attempts) == ([12], 1)


async def test_cancelled_in_the_middle(team: LocalTeam) -> None:
    """A cancel that ends the function leaves the effect begun, and the task ends."""
    agent, begun = Agent("clerk"), anyio.Event()

    async def charge() -> None:
        begun.set()
        await anyio.sleep_forever()

    @agent.skill
    async def buy(ctx: TaskContext) -> Any:
        return await ctx.effect("charge", charge)

    await team.work(agent)
    handle = await team.orc.submit("buy")
    await begun.wait()
    await handle.cancel()

    async def cancelled() -> bool:
        return (await handle.status()).state is TaskState.CANCELLED

    await wait_for(cancelled, "the end of the task", TIMEOUT_S)
    (effect,) = await team.orc.tasks.effects(handle.id)
    assert (effect.state, effect.ended_at) == ("begun", None)


async def test_invalid_calls(team: LocalTeam) -> None:
    """What cannot be stored is refused before anything begins."""
    till, agent, refused = Till(), Agent("clerk"), list[str]()

    @agent.skill
    async def buy(ctx: TaskContext) -> None:
        never: Any = "never"
        calls: list[Any] = [
            partial(ctx.effect, "", till.charge, 1),
            partial(ctx.effect, "x" * 257, till.charge, 1),
            partial(ctx.effect, "charge", till.charge, object()),
            partial(ctx.effect, "charge", till.charge, 1, unknown=never),
        ]
        for call in calls:
            with pytest.raises(InvalidInput) as error:
                await call()
            refused.append(str(error.value))

    await team.work(agent)
    handle = await team.orc.submit("buy")
    await handle.result(TIMEOUT_S)
    assert "non-empty string" in refused[0]
    assert "257 bytes" in refused[1]
    assert "arguments of effect 'charge'" in refused[2]
    assert "must be one of ask, retry, fail" in refused[3]
    assert (till.charges, await team.orc.tasks.effects(handle.id)) == ([], ())


async def test_refused_beside_older_programs(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older programs would not know the numbers of its questions, so nothing is begun."""
    till, agent, refused = Till(), Agent("clerk"), list[str]()
    monkeypatch.setattr(Floor, "admits", lambda _, feature: feature is not Feature.EFFECTS)

    @agent.skill
    async def buy(ctx: TaskContext) -> None:
        with pytest.raises(UpgradeUnfinished) as error:
            await ctx.effect("charge", till.charge, 12)
        refused.append(str(error.value))

    await team.work(agent)
    handle = await team.orc.submit("buy")
    await handle.result(TIMEOUT_S)
    assert "an effect of a task" in refused[0]
    assert (till.charges, await team.orc.tasks.effects(handle.id)) == ([], ())


async def test_the_command_line(team: LocalTeam, tmp_path: Path) -> None:
    """`orc tasks effects` lists the effects, `orc tasks show` names them."""
    agent = Agent("clerk")

    @agent.skill
    async def buy(ctx: TaskContext) -> Any:
        return await ctx.effect("charge", lambda secret: secret, "4711")

    await team.work(agent)
    handle = await team.orc.submit("buy")
    await handle.result(TIMEOUT_S)
    url = team.settings.redis.url
    assert url is not None
    terminal = Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)
    listed = await anyio.to_thread.run_sync(terminal.orc, "tasks", "effects", handle.id)
    assert "charge" in listed.out
    assert "done" in listed.out
    assert "4711" not in listed.out
    shown = await anyio.to_thread.run_sync(terminal.orc, "tasks", "show", handle.id)
    assert "effects" in shown.out
