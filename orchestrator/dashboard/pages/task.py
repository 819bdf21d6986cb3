"""One task: its state in words, what to do, its life as a picture and a table, output, values and errors."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.redaction import hidden_value
from orchestrator.dashboard.page import page
from orchestrator.dashboard.pages.budgets import STATES
from orchestrator.dashboard.task_buttons import BUTTONS
from orchestrator.dashboard.task_output import line_of
from orchestrator.dashboard.timeline import draw, lasted, spans_of
from orchestrator.tasks.selecting import RETRYABLE
from orchestrator.views.hidden_keys import mask_keys
from orchestrator.views.task_output import read_newest_output
from orchestrator.views.task_relations import read_relations
from orchestrator.views.task_values import load_whole, read_details, read_head

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest
    from orchestrator.views.task_values import StoredPart, TaskDetails
    from orchestrator.why.model import TaskInfo

PREVIEW_CHARS: Final = 4096
ERRORS: Final = 5
ERROR_CHARS: Final = 8 * 1024
CHILDREN: Final = 20
EFFECTS: Final = 20
WITHOUT_RESULTS: Final = "Results of other tasks are not filled in: the arguments have null in their places."
SAID: Final[Mapping[str, str]] = {
    "cancel:ended": "The task was cancelled.",
    "cancel:signalled": "Its worker was told to stop it.",
    "cancel:already": "It has ended already, so nothing more was cancelled.",
    "retry:requeued": "The task waits to run again.",
    "retry:already": "It has not ended, so there was nothing to retry.",
    "retry:refused": "It succeeded, so it is not retried.",
    "retry:damaged": "Its record is damaged, so it cannot run again.",
    "delete:refused": "It has not ended, so it is not deleted; cancel it first.",
    "answer:answered": "The answer was given; the task goes on.",
    "answer:already": "The question has this answer already.",
}
"""What a page says after an action, by action and status."""


@dataclass(frozen=True, slots=True)
class Preview:
    """Arguments or a result on the page of a task.

    Attributes:
        text: the beginning; None if it is not shown.
        cut: there is more.
        problem: why it is not shown.
    """

    part: str
    size: int
    text: str | None
    cut: bool = False
    problem: str = ""


@page("/tasks/{id}", "task.html")
async def task(asked: PageRequest) -> Mapping[str, Any]:
    """Read everything about one task; of large values, the beginning."""
    services, id_, scope = asked.services, asked.path["id"], asked.identity.scope
    details = await read_details(services, id_, scope)
    output = await read_newest_output(services, id_)
    budgets, missing = await read_relations(services, details, scope)
    info, now, spans = details.info, datetime.now(UTC), spans_of(details)
    shown_errors = info.errors[::-1][:ERRORS]
    return {
        "task": info,
        "buttons": {name: BUTTONS[name].danger for name in buttons_of(info)},
        "question": next((one for one in info.questions if one.open), None),
        "said": SAID.get(asked.text("said") or ""),
        "without_results": WITHOUT_RESULTS if details.takes_results else "",
        "values": [await preview(asked, details, value) for value in (details.args, details.result) if value],
        "redacted": details.redacted,
        "spans": [(span, lasted(span, now)) for span in spans],
        "timeline": draw(spans, now),
        "errors": [(len(info.errors) - n, error[:ERROR_CHARS]) for n, error in enumerate(shown_errors)],
        "budgets": budgets,
        "join": details.join,
        "missing": missing,
        "missing_total": details.why.missing or 0,
        "joined_by": details.joined_by,
        "blocked_by": details.why,
        "states": STATES,
        "effects": details.effects[-EFFECTS:],
        "effects_total": len(details.effects),
        "children": info.children[-CHILDREN:],
        "children_total": len(info.children) + info.children_dropped,
        "lines": [line_of(one, hidden=details.redacted) for one in output.events],
        "output": output,
        "commands": commands_of(info),
    }


def buttons_of(info: TaskInfo) -> tuple[str, ...]:
    """Return the names of the actions that a task allows now."""
    if not info.state.final:
        return ("cancel",)
    return ("retry", "delete") if info.state in RETRYABLE else ("delete",)


def commands_of(info: TaskInfo) -> list[str]:
    """Return the commands that show and do the same on the command line."""
    commands = [f"orc tasks show {info.id}"]
    if not info.state.final:
        commands += [f"orc tasks why {info.id}", f"orc tasks watch {info.id}"]
    commands += [f"orc tasks {name} {info.id}" for name in buttons_of(info)]
    question = next((one for one in info.questions if one.open), None)
    if question is not None:
        commands.append(f"orc tasks answer {info.id} ANSWER --question {question.number}")
    if info.effects:
        commands.append(f"orc tasks effects {info.id}")
    commands += [f"orc budgets show {shlex.quote(name)}" for name in info.budgets if name.isprintable()][:3]
    if info.children:
        commands.append(f"orc tasks show {info.id} --tree")
    if info.session is not None and info.session.isprintable():
        commands.append(f"orc tasks list --session {shlex.quote(info.session)}")
    return commands


async def preview(asked: PageRequest, details: TaskDetails, value: StoredPart) -> Preview:
    """Return the beginning of a value, with masked secrets; of redacted skills what their agent displays."""
    if details.redacted:
        text, problem = await displayed(asked, details, value)
        return Preview(value.part, value.size, text[:PREVIEW_CHARS], cut=len(text) > PREVIEW_CHARS, problem=problem)
    try:
        head = await read_head(asked.services, value)
    except OrchestratorError as failure:
        return Preview(value.part, value.size, None, problem=str(failure))
    if head is None:
        return Preview(value.part, value.size, None, problem="It is too large for a preview.")
    text = mask_keys(head.decode(errors="ignore"))
    return Preview(
        value.part, value.size, text[:PREVIEW_CHARS], cut=len(head) < value.size or len(text) > PREVIEW_CHARS
    )


async def displayed(asked: PageRequest, details: TaskDetails, value: StoredPart) -> tuple[str, str]:
    """Return what operators see of a value of a redacted skill, and why it is no more."""
    hidden = hidden_value(value.size)
    if asked.displays is None:
        return hidden, ""
    try:
        shown = await asked.displays.show(details.info.skill, value, partial(load_whole, asked.services, value))
    except OrchestratorError as failure:
        return hidden, str(failure)
    if shown is None or shown.text is None:
        return hidden, "" if shown is None else shown.problem
    return mask_keys(shown.text), ""
