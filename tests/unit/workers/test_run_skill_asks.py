"""Questions and calls of one attempt without a server, as a test scripts them."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from orchestrator import Agent, Asked, AskExpired, InvalidInput, TaskContext
from orchestrator.workers.testing import make_context, run_skill

agent = Agent("clerk")
paid: list[int] = []


@agent.skill
async def buy(ctx: TaskContext, amount: int = 7) -> dict[str, Any]:
    """Pay, then ask twice."""
    receipt = await ctx.once("pay", paid.append, amount)
    colour = await ctx.ask("Colour?", options=["red", "blue"])
    ship = await ctx.ask(f"Ship the {colour} one?", deadline=60, default=False)
    return {"receipt": receipt, "colour": colour, "ship": ship}


@agent.skill
async def must_know(ctx: TaskContext) -> Any:
    """Ask with a deadline and no default."""
    return await ctx.ask("Now?", deadline=60)


@pytest.mark.parametrize(
    "answers",
    [
        ["red", True],
        {"Colour?": "red", "Ship the red one?": True},
        lambda question: "red" if question == "Colour?" else True,
    ],
    ids=["list", "mapping", "function"],
)
async def test_answers(answers: Any) -> None:
    """With all answers at hand the attempt comes to its end."""
    outcome = await run_skill(buy, answers=answers)
    assert outcome.value == {"receipt": None, "colour": "red", "ship": True}
    assert outcome.asked is None


async def test_a_question_without_an_answer() -> None:
    """The attempt ends with the first question that nobody answers; the outcome has it, and what was done once."""
    paid.clear()
    outcome = await run_skill(buy, {"amount": 3}, answers=["blue"])
    assert (outcome.verdict, outcome.reason, outcome.delay) == ("ask", "it asks 'Ship the blue one?'", None)
    asked = outcome.asked
    assert asked is not None
    assert (asked.number, asked.question, asked.options, asked.default) == (2, "Ship the blue one?", (), False)
    assert asked.until is not None
    assert 59 < (asked.until - asked.asked_at).total_seconds() <= 60
    assert (outcome.once, paid) == ({"pay": None}, [3])
    with pytest.raises(AssertionError, match="its verdict is ask: it asks 'Ship the blue one"):
        _ = outcome.value
    first = (await run_skill(buy)).asked
    assert first is not None
    assert (first.options, first.until) == (("red", "blue"), None)


async def test_a_later_attempt() -> None:
    """What an earlier attempt has kept is not done again."""
    paid.clear()
    outcome = await run_skill(buy, answers=["red", True], once={"pay": {"id": 5}})
    assert (outcome.value["receipt"], paid) == ({"id": 5}, [])


async def test_nobody_answers_in_time() -> None:
    """A `TimeoutError` in place of an answer: the default is taken; without one the handler gets `AskExpired`."""
    outcome = await run_skill(buy, answers=["red", TimeoutError()])
    assert outcome.value["ship"] is False
    lost = await run_skill(must_know, answers=[TimeoutError()])
    assert lost.verdict == "dead"
    assert isinstance(lost.error, AskExpired)


async def test_answers_that_no_person_could_give() -> None:
    """An answer that JSON cannot hold is a mistake of the test, and so is a text in place of a list."""
    outcome = await run_skill(buy, answers=[{1, 2}])
    assert isinstance(outcome.error, InvalidInput)
    with pytest.raises(InvalidInput, match="answers= is a list"):
        await run_skill(buy, answers="yes")


async def test_a_context() -> None:
    """`make_context` answers too; a question without an answer raises the signal that ends an attempt."""
    ctx = make_context(answers=[1])
    assert await ctx.ask("One?") == 1
    with pytest.raises(Asked):
        await ctx.ask("Two?")
    assert ctx._resources.question is not None
    assert ctx._resources.question.number == 2


async def test_effects_of_an_earlier_attempt() -> None:
    """An effect that an attempt has begun without an end is asked for in the next one, and one that is done is kept."""
    agent, charges = Agent("till"), list[int]()

    async def charge(cents: int) -> int:
        charges.append(cents)
        if len(charges) == 1:
            raise TimeoutError
        return cents

    @agent.skill
    async def purchase(ctx: TaskContext, unknown: Literal["ask", "retry", "fail"]) -> int:
        return int(await ctx.effect("charge", charge, 12, unknown=unknown))

    first = await run_skill(purchase, {"unknown": "ask"})
    assert isinstance(first.error, TimeoutError)
    second = await run_skill(purchase, {"unknown": "ask"}, effects=first.effects)
    assert second.asked is not None
    assert (second.asked.effect, charges) == ("charge", [12])
    failed = await run_skill(purchase, {"unknown": "fail"}, effects=first.effects)
    assert (failed.verdict, charges) == ("dead", [12])
    retried = await run_skill(purchase, {"unknown": "retry"}, effects=second.effects)
    assert (retried.value, charges) == (12, [12, 12])
    assert (await run_skill(purchase, {"unknown": "fail"}, effects=retried.effects)).value == 12
    assert len(charges) == 2
