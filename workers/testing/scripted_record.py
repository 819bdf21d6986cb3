"""Answers questions and stores results of `ctx.once` without a server, as the test scripts them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from orchestrator.budgets.scripts import BookedCall, Reserved
from orchestrator.core.errors import InvalidInput
from orchestrator.core.payload import decode_json, encode_json
from orchestrator.tasks.model import Question
from orchestrator.tasks.questions import encode_value
from orchestrator.workers.joining import StoredJoin
from orchestrator.workers.once import RESULT_BYTES, RESULT_DEPTH

if TYPE_CHECKING:
    from orchestrator.budgets.model import BudgetState
    from orchestrator.client.handle import TaskHandle
    from orchestrator.core.amounts import Amounts
    from orchestrator.tasks.queries import TaskOutcome
    from orchestrator.tasks.scripts import JoinTerms
    from orchestrator.workers.joining import Join, MetJoin

ScriptedAnswers: TypeAlias = Mapping[str, Any] | Sequence[Any] | Callable[[str], Any]
"""Answers to questions: a mapping by text, a list in order, or a function of the text. A `TimeoutError` in place of an
answer means that the deadline passed. A question without an answer ends the attempt."""

UNANSWERED: Final = object()


def check_answers(answers: ScriptedAnswers) -> None:
    """Check that answers are no text, which would count as a list of its letters.

    Raises:
        InvalidInput: they are a text.
    """
    if isinstance(answers, str):
        raise InvalidInput(f"answers= is a list, a mapping by question, or a function, not {answers!r}")


def answer_to(answers: ScriptedAnswers, number: int, question: str) -> Any:
    """Return the answer to a question, counted from 1, or `UNANSWERED`."""
    if isinstance(answers, Mapping):
        return answers.get(question, UNANSWERED)
    if isinstance(answers, Sequence):
        return answers[number - 1] if number <= len(answers) else UNANSWERED
    return answers(question)


class ScriptedRecord:
    """Record of the task of one attempt.

    Attributes:
        results: results of `ctx.once`, JSON by name.
        effects: stored effects by name.
    """

    def __init__(self, answers: ScriptedAnswers, once: Mapping[str, Any], effects: Mapping[str, bytes]) -> None:
        check_answers(answers)
        self._answers = answers
        self.effects: dict[str, bytes] = dict(effects)
        self.results: dict[str, bytes] = {name: _result(name, value) for name, value in once.items()}

    @property
    def once(self) -> dict[str, Any]:
        """Results of `ctx.once`, decoded from JSON."""
        return {name: decode_json(result) for name, result in self.results.items()}

    async def look_up(self, number: int, question: str) -> Question | None:
        """Return the question with its answer, or None without an answer."""
        answer = answer_to(self._answers, number, question)
        if answer is UNANSWERED:
            return None
        now = datetime.now(UTC)
        if isinstance(answer, TimeoutError):
            return Question(number, question, now, answered_at=now)
        value = decode_json(encode_value(f"the answer to {question!r}", answer).encode())
        return Question(number, question, now, answered=True, answer=value, answered_by="a test", answered_at=now)

    @property
    def begins_as(self) -> tuple[str, str, str]:
        """Id of the task, worker and generation of the attempt."""
        return "no-task", "no-worker", "1"

    async def load_effect(self, name: str) -> bytes | None:
        """Return the stored effect of this name, or None."""
        return self.effects.get(name)

    async def store_effect(self, name: str, before: bytes | None, effect: bytes) -> bytes | None:
        """Store an effect if `before` is stored, and return the stored value."""
        if self.effects.get(name) != before:
            return None
        self.effects[name] = b"%d %s" % (datetime.now(UTC).timestamp() * 1000, effect)
        return self.effects[name]

    async def load_question(self, number: int) -> Question | None:  # noqa: ARG002 - no earlier attempt has asked
        """Return None: effects whose outcome is unknown ask anew."""
        return None

    async def count_questions(self) -> int:
        """Return 0: no earlier attempt has asked."""
        return 0

    async def load_join(self, join: Join) -> StoredJoin:
        """Return a join whose deadline has passed if the test lets one of the children be late that it needs."""
        late = any(getattr(handle, "late", False) for handle in join.handles)
        has_deadline = join.delay_ms > 0 or join.at_ms > 0
        return StoredJoin(over=late and has_deadline and not join.is_met(await self.read_ends(join.handles)))

    async def store_met(self, number: int, met: MetJoin) -> None:
        """Do nothing: no later attempt reads it."""

    async def read_ends(self, handles: Sequence[TaskHandle[Any]]) -> dict[str, TaskOutcome]:
        """Return the scripted ends; a child without one has not ended."""
        return {handle.id: handle.outcome for handle in handles if handle.outcome is not None}

    async def register_join(
        self, ids: Sequence[str], terms: JoinTerms, *, wait_ms: int, earlier: Sequence[str] = ()
    ) -> None:
        """Do nothing: the attempt ends."""

    async def cancel_tasks(self, ids: Sequence[str], reason: str) -> None:
        """Do nothing: the children are not there."""

    async def reserve(self, number: int, amounts: Amounts, *, last: bool) -> Reserved:  # noqa: ARG002
        """Grant every call: the task has no budget."""
        return Reserved("none")

    async def settle_call(self, number: int, amounts: Amounts | None) -> BookedCall:  # noqa: ARG002
        """Book nothing: the task has no budget."""
        return BookedCall("none", ())

    async def load_budgets(self) -> list[BudgetState]:
        """Return no budget."""
        return []

    async def load_result(self, name: str) -> bytes | None:
        """Return the result of this name, or None."""
        return self.results.get(name)

    async def store_result(self, name: str, result: bytes) -> bytes:
        """Store a result unless the name has one, and return the stored one."""
        return self.results.setdefault(name, result)


def _result(name: str, value: Any) -> bytes:
    return encode_json(f"what {name!r} returned", value, max_bytes=RESULT_BYTES, max_depth=RESULT_DEPTH)
