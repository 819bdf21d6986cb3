"""What a handler asks and does once without a server: answered as the test says, kept for the attempt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from orchestrator.core.errors import InvalidInput
from orchestrator.core.payload import decode_json, encode_json
from orchestrator.tasks.model import Question
from orchestrator.tasks.questions import encode_value
from orchestrator.workers.once import RESULT_BYTES, RESULT_DEPTH

ScriptedAnswers: TypeAlias = Mapping[str, Any] | Sequence[Any] | Callable[[str], Any]
"""Answers to questions: by their text, in their order, or by a function of the text. A `TimeoutError` in place of one:
nobody has answered in time. A question without an answer ends the attempt."""

UNANSWERED: Final = object()


def check_answers(answers: ScriptedAnswers) -> None:
    """See that these are answers.

    Raises:
        InvalidInput: they are one text, which would be a list of its letters.
    """
    if isinstance(answers, str):
        raise InvalidInput(f"answers= is a list, a mapping by question, or a function, not {answers!r}")


def answer_to(answers: ScriptedAnswers, number: int, question: str) -> Any:
    """The answer to a question, counted from 1; `UNANSWERED`: there is none."""
    if isinstance(answers, Mapping):
        return answers.get(question, UNANSWERED)
    if isinstance(answers, Sequence):
        return answers[number - 1] if number <= len(answers) else UNANSWERED
    return answers(question)


class ScriptedRecord:
    """The record of the task of one attempt.

    Attributes:
        results: what `ctx.once` has kept, JSON by name.
    """

    def __init__(self, answers: ScriptedAnswers, once: Mapping[str, Any]) -> None:
        check_answers(answers)
        self._answers = answers
        self.results: dict[str, bytes] = {name: _result(name, value) for name, value in once.items()}

    @property
    def once(self) -> dict[str, Any]:
        """What was done once, as JSON gives it back."""
        return {name: decode_json(result) for name, result in self.results.items()}

    async def look_up(self, number: int, question: str) -> Question | None:
        """The question with its answer; None: it has none."""
        answer = answer_to(self._answers, number, question)
        if answer is UNANSWERED:
            return None
        now = datetime.now(UTC)
        if isinstance(answer, TimeoutError):
            return Question(number, question, now, answered_at=now)
        value = decode_json(encode_value(f"the answer to {question!r}", answer).encode())
        return Question(number, question, now, answered=True, answer=value, answered_by="a test", answered_at=now)

    async def load_result(self, name: str) -> bytes | None:
        """What is kept under this name."""
        return self.results.get(name)

    async def store_result(self, name: str, result: bytes) -> bytes:
        """Keep it, unless something is kept."""
        return self.results.setdefault(name, result)


def _result(name: str, value: Any) -> bytes:
    return encode_json(f"what {name!r} returned", value, max_bytes=RESULT_BYTES, max_depth=RESULT_DEPTH)
