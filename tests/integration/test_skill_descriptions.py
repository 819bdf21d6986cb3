"""Descriptions of skills: from the handler to `orc.skill`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import BaseModel, Field

from orchestrator import Agent, NotFound, TaskContext
from orchestrator.agents.descriptions import MAX_BYTES, MAX_DOC_CHARS, SkillDescription, encode_description
from orchestrator.testing.waiting import wait_for
from orchestrator.views.skills import list_skills, read_skill
from orchestrator.workers.skill import Skill

if TYPE_CHECKING:
    from orchestrator import SkillInfo
    from tests.helpers.local_team import LocalTeam


class Text(BaseModel):
    """A text that is written."""

    words: list[str]


def writer() -> Agent:
    """An agent whose skill has a docstring and types."""
    agent = Agent("ed")

    @agent.skill
    async def write(ctx: TaskContext, topic: str, size: Annotated[int, Field(ge=1, description="words")] = 3) -> Text:
        """Write a text.

        It has as many words as you like.
        """
        return Text(words=[topic] * size)

    return agent


async def described(team: LocalTeam, name: str) -> SkillInfo:
    """The skill, when a worker has described it."""

    async def known() -> bool:
        with suppress(NotFound):
            return (await team.orc.skill(name)).description is not None
        return False

    await wait_for(known, "the description")
    return await team.orc.skill(name)


async def test_from_the_handler_to_the_reader(team: LocalTeam) -> None:
    """A worker stores docstring and schemas of each skill; the context is no argument."""
    await team.work(writer())
    skill = await described(team, "write")
    assert (skill.agents, len(skill.versions)) == (("ed",), 1)
    (version,) = skill.versions
    assert (version.live, version.required, version.optional) == (True, ("topic",), ("size",))
    assert skill.description is not None
    assert skill.description.doc == "Write a text.\n\nIt has as many words as you like."
    arguments, result = skill.description.arguments, skill.description.result
    assert arguments is not None
    assert arguments["required"] == ["topic"]
    assert arguments["properties"]["size"] == {
        "default": 3, "description": "words", "minimum": 1, "title": "Size", "type": "integer"
    }  # fmt: skip
    assert result is not None
    assert result["properties"]["words"]["type"] == "array"
    assert [(one.name, one.agents, one.summary) for one in await team.orc.skills()] == [("write", 1, "Write a text.")]
    assert (await list_skills(team.services, limit=0)).total == 1
    assert (await read_skill(team.services, "write")).skill == skill
    with pytest.raises(NotFound, match="known are: write"):
        await team.orc.skill("reed")


async def test_lost_descriptions_return(team: LocalTeam) -> None:
    """A worker that Redis has forgotten describes its skills again."""
    worker = await team.work(writer(), worker__heartbeat_s=0.05)
    await described(team, "write")
    keys = team.services.keys
    await team.services.store.execute("DEL", keys.descriptions("write"), keys.worker(worker.id))
    await described(team, "write")


class Opaque:
    """A type without a JSON schema."""


@pytest.mark.parametrize("size", [10, MAX_BYTES])
def test_size(size: int) -> None:
    """Schemas that are too large are left out, with their size; a docstring is cut."""
    schema: dict[str, Any] = {"description": "x" * size}
    found = encode_description(SkillDescription("d" * 10 * MAX_DOC_CHARS, schema, schema))
    assert len(found) <= MAX_BYTES
    assert (b'omitted_bytes":0' in found) == (size == 10)
    assert b"d" * MAX_DOC_CHARS in found


def test_handlers_without_texts() -> None:
    """A handler without a docstring or types has an open schema."""
    agent = Agent("ed")

    @agent.skill
    def plain(value) -> Any:  # type: ignore[no-untyped-def]  # noqa: ANN001
        return value

    assert isinstance(plain, Skill)
    description = plain.description
    assert (description.doc, description.summary, description.result) == ("", "", {})
    assert description.arguments is not None
    assert description.arguments["properties"] == {"value": {"title": "Value"}}
