"""`orc skills`: list, show."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.active_commands import active_commands, show_affected_record
from orchestrator.cli.terminal.inputs import check_limit
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.output import say_rest
from orchestrator.cli.terminal.parsing import Commands, option, positional
from orchestrator.cli.terminal.source import viewed

if TYPE_CHECKING:
    from orchestrator.agents.descriptions import SkillDescription
    from orchestrator.agents.skills import SkillVersionInfo

commands = Commands("skills", "orc skills list", "orc skills show write")


@commands.command("list", "orc skills list", "orc skills list -o json")
async def list_(*, limit: Annotated[int, option("--limit", metavar="N")] = 1000, common: Globals = DEFAULTS) -> None:
    """List the skills of the live agents, with the first line of their docstrings.

    Args:
        limit: How many, by name [1000].
    """
    from orchestrator.views.skills import list_skills

    check_limit(limit)
    async with viewed(common) as services:
        found = await list_skills(services, limit=limit)
    rows = [asdict(skill) for skill in found.skills]
    empty = "no skills; start an agent with `orc up MODULE:AGENT`"
    output.show_list(common.output, rows, ("name", "agents", "summary"), key="name", empty=empty)
    say_rest(len(rows), found.total)


@commands.command("show", "orc skills show write", "orc skills show write -o json | jq .description.arguments")
async def show(
    name: Annotated[str, positional("SKILL", help="Name of the skill.")], /, *, common: Globals = DEFAULTS
) -> None:
    """Show one skill: docstring, agents, versions, and the JSON schemas of its arguments and its result."""
    from orchestrator.views.skills import read_skill

    async with common.services() as services:
        view = await read_skill(services, name)
    skill, now = view.skill, active_commands(view.active_commands)
    description = None if skill.description is None else _described(skill.description)
    if common.output != "table":
        versions = [_version(version) for version in skill.versions]
        facts: dict[str, Any] = {"name": name, "agents": skill.agents, "description": description}
        show_affected_record(common.output, {**facts, "versions": versions, "active_commands": now}, key="name")
        return
    record: dict[str, Any] = {
        "name": name,
        "agents": skill.agents,
        "versions": [version.digest + ("" if version.live else " (left)") for version in skill.versions],
        "active_commands": now,
    }
    if description is not None and "note" in description:
        record["note"] = description["note"]
    show_affected_record(common.output, record, key="name")
    if skill.description is not None:
        if skill.description.doc:
            # Indented, so that no line of it looks like one of this program.
            doc = output.clean_lines(skill.description.doc).replace("\n", "\n  ")
            output.write(f"\n  {doc}\n")
        for title, schema in (("arguments", skill.description.arguments), ("result", skill.description.result)):
            if schema is not None:
                output.write(f"\n{title}\n{output.json_text(schema, indent=True)}")


def _described(description: SkillDescription) -> dict[str, Any]:
    found: dict[str, Any] = {"doc": description.doc, "arguments": description.arguments, "result": description.result}
    if description.omitted_bytes:
        found["note"] = f"the schemas have {description.omitted_bytes} bytes, too many to be stored"
    return found


def _version(version: SkillVersionInfo) -> dict[str, Any]:
    described = None if version.description is None else _described(version.description)
    return {
        "digest": version.digest,
        "agents": version.agents,
        "live": version.live,
        "first_seen_at": version.first_seen_at,
        "required": version.required,
        "optional": version.optional,
        "description": described,
    }
