"""Agents: what may be declared, and what the registry is told."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from orchestrator import Agent
from orchestrator.core.errors import InvalidInput
from orchestrator.core.rates import Rate, parse_rate
from tests.helpers.cases import each_case


def test_an_agent_has_sensible_defaults() -> None:
    """A name is enough."""
    agent = Agent("editor")
    assert (agent.name, agent.concurrency, agent.rate, agent.limits, agent.lease_ms) == ("editor", 10, None, (), 15_000)
    assert repr(agent) == "Agent('editor')"


@pytest.mark.parametrize("rate", ["10/min", (10, timedelta(minutes=1)), Rate(10, 60_000_000)])
def test_rates_have_three_spellings(rate: Any) -> None:
    """Text, count with window, or a rate."""
    assert Agent("editor", rate=rate).rate == Rate(10, 60_000_000)


@each_case(
    "options",
    [
        {"name": ""}, {"name": "two words"}, {"name": "@own"}, {"name": "a{b}"}, {"concurrency": 0},
        {"concurrency": 501}, {"concurrency": True}, {"concurrency": 1.5}, {"rate": "10"}, {"rate": "0/s"}, {"rate": 5},
        {"limits": "model"},
        {"limits": ["@x"]}, {"limits": ["a b"]}, {"lease": 0.5}, {"lease": -1}, {"lease": "15"},
    ])  # fmt: skip
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    """Each is refused when the agent is declared."""
    with pytest.raises(InvalidInput):
        Agent(**({"name": "editor"} | options))


def test_the_registry_is_told_names_and_limits() -> None:
    """An agent's own rate is the limit `@name`; of the settings' limits only those that it uses are told."""
    agent = Agent("editor", rate="2/s", limits=["gpt", "elsewhere"], lease=timedelta(seconds=3))

    @agent.skill
    async def work() -> None: ...

    spec = agent.spec({"gpt": parse_rate("60/min"), "unused": parse_rate("1/s")})
    assert spec.skills == {"work"}
    assert spec.limit_names == ("@editor", "gpt", "elsewhere")
    assert spec.definitions == {"@editor": Rate(2, 1_000_000), "gpt": Rate(60, 60_000_000)}
    assert spec.lease_ms == 3000
