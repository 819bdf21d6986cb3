"""`orc tasks answer`, and the questions in `orc tasks show`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from orchestrator.cli.terminal import inputs, output
from orchestrator.cli.terminal.options import DEFAULTS, Globals, TaskId
from orchestrator.cli.terminal.parsing import option, positional
from orchestrator.core.errors import InvalidInput

if TYPE_CHECKING:
    from orchestrator.cli.terminal.parsing import Commands
    from orchestrator.client.answering import Given
    from orchestrator.services import Services
    from orchestrator.tasks.model import Question


def add_to(commands: Commands) -> None:
    """Add the command to `orc tasks`."""
    commands.command(
        "answer",
        "orc tasks list --state awaiting_input",
        "orc tasks answer 0192f0c1-… yes",
        "orc tasks answer 0192f0c1-… '{\"row\": 7}' --question 2",
    )(answer)


async def answer(
    task: TaskId,
    value: Annotated[str, positional("VALUE", help="JSON when it parses, otherwise text.")],
    /,
    *,
    question: Annotated[int | None, option("--question", metavar="N")] = None,
    common: Globals = DEFAULTS,
) -> None:
    """Answer the question of a task, so that it continues. Only the first answer counts.

    Exit code: 0 answered (also with the same answer before), 2 not one of the options, 3 unknown, 4 refused (not asked,
    or answered differently).

    Args:
        question: Number of the question, from 1 [the latest].
    """
    from orchestrator.core.ids import check_task_prefix
    from orchestrator.views.tasks import find_task

    check_task_prefix(task)
    async with common.services() as services:
        task = await find_task(services, task)
        given = await _answer(services, task, value, question)
    if common.output == "table":
        before = "already had this answer" if given.status == "already" else "was answered"
        output.write(f"question {given.number} of task {task} {before}: {output.clean(given.value)}\n")
        return
    value_shown = output.raw_json(given.value.encode())
    record = {"id": task, "status": given.status, "question": given.number, "answer": value_shown}
    output.show_record(common.output, record, key="id")


async def _answer(services: Services, task: str, typed: str, number: int | None) -> Given:
    from orchestrator.client.answering import answer as give

    value = inputs.json_or_text(typed)
    try:
        return await give(services, task, value, number=number)
    except InvalidInput:
        if isinstance(value, str):
            raise
        # An option may be a string that parses as JSON.
        return await give(services, task, typed, number=number)


def question_rows(questions: tuple[Question, ...], *, table: bool) -> list[Any]:
    """Return the questions of a task for `orc tasks show`: two lines each for a table, else all fields."""
    if table:
        return [_two_lines(question) for question in questions]
    return [
        asdict(question)
        | {
            "options": [output.user_json(option) for option in question.options],
            "default": output.user_json(question.default),
            "answer": output.user_json(question.answer),
        }
        for question in questions
    ]


def _two_lines(question: Question) -> str:
    options = ", ".join(_json(option) for option in question.options)
    asked = f"{output.clean(question.question)}{f' ({options})' if options else ''}"
    if question.answered:
        return f"{asked}\n{_json(question.answer)}, by {question.answered_by} {output.ago(question.answered_at)}"
    if not question.open:
        return f"{asked}\nnot answered in time"
    until = f", until {output.ago(question.until)}" if question.until else ""
    return f"{asked}\nnot answered yet, asked {output.ago(question.asked_at)}{until}"


def _json(value: Any) -> str:
    return output.json_text(output.user_json(value)).rstrip()
