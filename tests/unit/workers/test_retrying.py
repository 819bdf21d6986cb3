"""Retry policies: which failures are retried, and after which delay."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from orchestrator import Agent, Backoff, InvalidInput, PayloadStoreUnavailable, Reject, Retry
from orchestrator.core import backoff as core
from orchestrator.workers.retrying import make_policy, name_of_class
from orchestrator.workers.runtime.verdicts import HandlerRaised, class_names, kinds_of
from orchestrator.workers.testing import run_skill
from tests.helpers.cases import each_case

DEFAULTS = core.ExponentialBackoff(base_s=1, cap_s=300)


class RateLimited(ConnectionError):
    """A model is asked too often."""


agent = Agent("caller")
FAILURES: dict[str, BaseException] = {
    "value": ValueError("bad"),
    "limited": RateLimited("slow down"),
    "connection": ConnectionResetError("gone"),
    "retry": Retry(reason="busy"),
    "reject": Reject("no"),
    "both": ExceptionGroup("two", [RateLimited("slow"), ValueError("bad")]),
    "limited twice": ExceptionGroup("two", [RateLimited("slow"), RateLimited("slower")]),
    "payloads": PayloadStoreUnavailable("away"),
}


@agent.skill(retry_on=ConnectionError, give_up_on=ConnectionResetError)
async def named(how: str) -> None:
    """Retry what is named."""
    raise FAILURES[how]


@agent.skill(give_up_on=[ValueError])
async def all_but(how: str) -> None:
    """Retry all but what is named."""
    raise FAILURES[how]


@agent.skill(retry_on={RateLimited: 60, ConnectionError: 5, Exception: "exponential"}, max_attempts=2)
async def each(how: str) -> None:
    """Retry all, each after its own delay."""
    raise FAILURES[how]


@pytest.mark.parametrize(
    ("how", "verdict", "reason"),
    [
        ("value", "dead", "ValueError: bad; not retried: retry_on has none of its types"),
        ("limited", "retry", "RateLimited: slow down"),
        ("connection", "dead", "ConnectionResetError: gone; not retried: give_up_on has ConnectionResetError"),
        ("retry", "retry", "Retry: busy"),
        ("reject", "dead", "no"),
        ("both", "dead", "retry_on has none of its types"),
        ("limited twice", "retry", "slower"),
        ("payloads", "retry", "away"),
    ],
)
async def test_only_what_retry_on_names_is_retried(how: str, verdict: str, reason: str) -> None:
    """With its subclasses; a nearer class in `give_up_on` decides, and in a group each exception must be named."""
    outcome = await run_skill(named, {"how": how})
    assert outcome.verdict == verdict
    assert reason in outcome.reason


@pytest.mark.parametrize(
    ("how", "verdict"), [("value", "dead"), ("limited", "retry"), ("both", "dead"), ("limited twice", "retry")]
)
async def test_all_but_what_give_up_on_names_is_retried(how: str, verdict: str) -> None:
    """One exception of a group is enough to give up."""
    assert (await run_skill(all_but, {"how": how})).verdict == verdict


async def test_each_type_has_its_delay() -> None:
    """The nearest class decides, in a group the longest delay; the attempts are counted as ever."""
    delays = {how: (await run_skill(each, {"how": how})).delay for how in ("limited", "connection", "limited twice")}
    assert delays == {
        "limited": timedelta(seconds=60),
        "connection": timedelta(seconds=5),
        "limited twice": timedelta(seconds=60),
    }
    longest = (await run_skill(each, {"how": "value"})).delay
    assert longest is not None
    assert timedelta() <= longest <= timedelta(seconds=1)
    assert (await run_skill(each, {"how": "limited"}, attempt=2)).verdict == "dead"


def test_delays_grow_from_base_to_cap() -> None:
    """With full jitter; what is missing comes from the settings, which never make the other value invalid."""
    policy = make_policy(Backoff(base=2, cap=timedelta(seconds=5)), None, None)
    for failures, ceiling_ms in ((1, 2000), (2, 4000), (3, 5000), (50, 5000)):
        drawn = [policy.delay_ms(failures, (), DEFAULTS) for _ in range(200)]
        assert max(drawn) <= ceiling_ms
        assert min(drawn) < ceiling_ms / 4 < 3 * ceiling_ms / 4 < max(drawn)
    assert Backoff(cap=0.5).with_defaults(DEFAULTS) == core.ExponentialBackoff(base_s=0.5, cap_s=0.5)
    assert Backoff(base=400).with_defaults(DEFAULTS) == core.ExponentialBackoff(base_s=400, cap_s=400)
    assert Backoff().with_defaults(DEFAULTS) == DEFAULTS
    assert make_policy(0.25, None, None).delay_ms(9, (), DEFAULTS) == 250


def test_classes_of_another_process_are_known_by_their_names() -> None:
    """Also one of the main script, which another process imports under another name."""
    failure = HandlerRaised("RateLimited: slow", b"", class_names(RateLimited("slow")))
    policy = make_policy(1, {RateLimited: 7}, ValueError)
    (kinds,) = kinds_of(failure)
    assert kinds[0] == name_of_class(RateLimited)
    assert (policy.refuses(kinds), policy.delay_ms(1, kinds, DEFAULTS)) == ("", 7000)
    assert policy.refuses(class_names(UnicodeError("bad"))[0]) == "give_up_on has ValueError"
    assert name_of_class(type("Local", (), {"__module__": "__mp_main__"})) == "__main__.Local"


@each_case(
    ("options", "message"),
    [
        ({"retry_on": "ValueError"}, "must name exceptions"),
        ({"retry_on": 3}, "an exception or a list"),
        ({"retry_on": [int]}, "must name exceptions"),
        ({"retry_on": []}, "has no exception"),
        ({"retry_on": Retry}, "cannot name Retry"),
        ({"retry_on": {ValueError: "soon"}}, "exponential"),
        ({"retry_on": {ValueError: -1}}, "retry_on"),
        ({"give_up_on": {ValueError: 1}}, "no delays"),
        ({"give_up_on": [ValueError], "retry_on": [ValueError]}, "both have ValueError"),
        ({"backoff": "linear"}, "exponential"),
        ({"max_snoozes": 0}, "max_snoozes"),
        ({"max_snoozes": True}, "max_snoozes"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any], message: str) -> None:
    """When the skill is declared, with the name of the option."""
    with pytest.raises(InvalidInput, match=message):
        Agent("editor").skill(**options)


@each_case("values", [{"base": -1}, {"cap": "x"}, {"base": 3, "cap": 2}])
def test_a_backoff_that_cannot_be_meant_is_refused(values: dict[str, Any]) -> None:
    """When it is made."""
    with pytest.raises(InvalidInput, match="Backoff"):
        Backoff(**values)
