"""The chaos run judges what it runs: each skill has its terms, and load of its own."""

from __future__ import annotations

import json
import random
from typing import Any

import anyio

from tests.chaos.agents import LIMIT_RULES, LIMITS, SKILL_RULES, agents
from tests.chaos.load import KINDS, Load
from tests.faultkit.checkers.history import Recorder


def test_skills_have_the_terms_that_they_are_judged_by() -> None:
    """Attempts and deaths that a skill is allowed are those of its rule."""
    skills = {name: skill.options for agent in agents for name, skill in agent.skills.items()}
    assert {name: (one.max_attempts, one.max_deaths) for name, one in skills.items()} == {
        name: (rule.max_attempts, rule.max_deaths) for name, rule in SKILL_RULES.items()
    }
    assert {limit for limits in LIMITS.values() for limit in limits} == set(LIMIT_RULES)


async def test_every_skill_has_load() -> None:
    """Each kind of load is a task of some skill with arguments that fit, and no skill is left out."""
    skills = {name: skill for agent in agents for name, skill in agent.skills.items()}
    async with anyio.create_task_group() as tasks:
        orc: Any = None
        load = Load(orc, Recorder("unused", "test"), seed=random.getrandbits(9), tasks=tasks, prefix="t", longest_s=3.0)
        seen = set()
        for kind in KINDS:
            for skill, args, _ in load._tasks_of(kind):
                seen.add(skill)
                skills[skill].check_args(json.dumps(args).encode())
    # What runs while one thing alone goes wrong is no kind of the mix.
    assert seen == set(skills) - {"steady"}
