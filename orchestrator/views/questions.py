"""Reads the questions that wait for a person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import StoreError
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.records import numbered_field, read_each
from orchestrator.tasks.selecting import TaskFilter, read_page
from orchestrator.views.redaction import redacted_skills

if TYPE_CHECKING:
    from orchestrator.services import Services
    from orchestrator.tasks.model import Question
    from orchestrator.tasks.queries import TaskRow

ASKING: Final = TaskFilter(states=(TaskState.AWAITING_INPUT,))


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A task that waits for an answer; `question` is None if it cannot be read, or was answered at this moment."""

    task: TaskRow
    question: Question | None
    redacted: bool


@dataclass(frozen=True, slots=True)
class QuestionPage:
    """Questions in the order in which they are listed; `cursor` goes on behind them, None at the end."""

    questions: tuple[OpenQuestion, ...]
    cursor: str | None
    looked: int


async def list_questions(services: Services, *, after: str | None = None, limit: int = 50) -> QuestionPage:
    """Read tasks that wait for an answer, at most `limit`.

    Raises:
        InvalidInput: `after` is no cursor of this list.
    """
    store = services.store
    page = await read_page(store, ASKING, after=after, limit=limit)
    counts = await read_each(store, [row.id for row in page.tasks], "asks")
    numbers = {id_: record.asks for id_, record in counts.items() if not isinstance(record, StoreError)}
    fields = {number: numbered_field("ask", number) for number in set(numbers.values()) if number}
    asked = await read_each(store, list(numbers), *fields.values()) if fields else {}
    hidden = await redacted_skills(services) if page.tasks else frozenset()
    found = []
    for row in page.tasks:
        record = asked.get(row.id)
        question = None if record is None or isinstance(record, StoreError) else record.question(numbers[row.id])
        found.append(OpenQuestion(row, question, row.skill in hidden))
    return QuestionPage(tuple(found), page.cursor, page.looked)
