"""A form that submits a task, with a field for each argument that the schema of the skill describes."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.payload import decode_json
from orchestrator.dashboard.page import page
from orchestrator.dashboard.pages.task import WITHOUT_RESULTS
from orchestrator.dashboard.rendering import plain_json, visible
from orchestrator.dashboard.schema_form import FormField, fields_of, texts_of
from orchestrator.tasks.options import PRIORITIES
from orchestrator.views.hidden_keys import mask_keys
from orchestrator.views.skills import find_skill, list_latest
from orchestrator.views.task_values import load_whole, read_details

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest
    from orchestrator.services import Services

AGENTS: Final = 80
"""Agents, those with the latest heartbeats, whose skills are listed."""
SHOWN: Final = 200
"""Skills that are listed."""
OPTIONS: Final = ("agent", "session", "lane", "priority", "budget", "tags")
MOST_AGAIN: Final = 128 * 1024
"""Bytes of arguments that are filled in to be submitted again."""


@page("/submit", "submit.html")
async def submit(asked: PageRequest) -> Mapping[str, Any]:
    """Read the schema of the skill that the query names, and the task that is submitted again."""
    typed = {name: visible(asked.text(name) or "") for name in ("skill", "args", *OPTIONS)}
    notes: list[str] = []
    again: Any = None
    if (earlier := asked.text("from")) is not None:
        typed, again, notes = await _earlier(asked.services, earlier)
    as_json = asked.text("as") == "json"
    found = await form_of(asked.services, typed["skill"], as_json=as_json)
    if again is not None:
        found["fields"] = _filled(found["fields"], again, typed)
    return {**found, "typed": typed, "errors": {}, "problem": "", "notes": notes, "from": earlier or ""}


async def form_of(services: Services, skill: str, *, as_json: bool) -> dict[str, Any]:
    """Return what the form of a skill needs; without a schema, or with `as_json`, its arguments are one JSON text."""
    listed, more = ((), False) if skill else await list_latest(services, agents=AGENTS, limit=SHOWN)
    about, described, known = "", None, False
    if skill:
        found = await find_skill(services, skill)
        known = found is not None
        described = None if found is None else found.description
        if found is None:
            about = "No worker of the last week has this skill; the task waits until one does."
    fields = None if described is None or as_json else fields_of(described.arguments)
    return {
        "skills": listed,
        "more_skills": more,
        "fields": fields,
        "as_json": as_json,
        "has_fields": described is not None and fields_of(described.arguments) is not None,
        "about": about or ("" if described is None else described.doc),
        "known": known,
        "priorities": tuple(PRIORITIES),
        "commands": [f"orc tasks submit {shlex.quote(skill) if skill.isprintable() and skill else 'SKILL'} '{{…}}'"],
        "live": "",
    }


async def _earlier(services: Services, id_: str) -> tuple[dict[str, str], Any, list[str]]:
    """Return what a form shows of an earlier task: its options, its arguments, and what it leaves out."""
    details = await read_details(services, id_)
    info, notes = details.info, list[str]()
    names = {level: name for name, level in PRIORITIES.items()}
    typed = {
        "skill": info.skill,
        "args": "",
        "agent": "",
        "session": info.session or "",
        "lane": info.lane or "",
        "priority": names.get(info.priority, str(info.priority)),
        "budget": " ".join(info.budgets),
        "tags": "\n".join(info.tags),
    }
    for name in ("session", "lane", "tags"):
        if visible(typed[name]) != typed[name]:
            typed[name] = ""
            notes.append(f"The {name} is not filled in, because it has invisible characters.")
    value = details.args
    if details.redacted or value is None or value.size > MOST_AGAIN:
        notes.append("The arguments are not filled in, because they are redacted, were not kept, or are too large.")
        return typed, None, notes
    if details.takes_results:
        notes.append(WITHOUT_RESULTS)
    try:
        text = (await load_whole(services, value)).decode(errors="replace")
        masked = mask_keys(text)
        if masked != text:
            notes.append("Values of secret keys are masked; type them again.")
        typed["args"] = plain_json(masked)
        return typed, decode_json(masked.encode()), notes
    except (OrchestratorError, ValueError, RecursionError) as failure:
        notes.append(f"The arguments are not filled in: {failure}")
        return typed, None, notes


def _filled(fields: tuple[FormField, ...] | None, args: Any, typed: dict[str, str]) -> tuple[FormField, ...] | None:
    """Fill the fields; None if they cannot show the arguments, which are then one JSON text."""
    if fields is None or not isinstance(args, dict) or not set(args) <= {field.name for field in fields}:
        return None
    try:
        typed |= texts_of(fields, args)
    except ValueError:
        return None
    return fields
