"""`ctx.ask`: numbers the questions of an attempt, finds the answers to earlier ones, else notes what is to be asked."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from orchestrator.core.durations import instant_ms, to_ms
from orchestrator.core.errors import AskExpired, InvalidInput
from orchestrator.core.payload import decode_json
from orchestrator.tasks.questions import StoredQuestion, encode_value, pack_question
from orchestrator.workers.signals import Asked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.core.durations import Duration
    from orchestrator.tasks.model import Question

NO_DEFAULT: Final[Any] = object()
"""Stands for a default that was not given; None is one."""


class AnswerSource(Protocol):
    """What is known of the questions of a task."""

    async def look_up(self, number: int, question: str) -> Question | None:
        """The question that was asked at this place before; None: none was.

        Raises:
            QuestionChanged: another one was, and it is over.
        """


class PendingQuestion(msgspec.Struct, frozen=True):
    """What the attempt ends with: a question as it is stored, and its deadline after so long or at that time."""

    number: int
    packed: bytes
    delay_ms: int = 0
    at_ms: int = 0


class Asking:
    """The questions of one attempt.

    Attributes:
        pending: the one that has no answer yet; with it the attempt ends, whatever its handler does from then on.
    """

    __slots__ = ("_answers", "_asks", "pending")

    def __init__(self, answers: AnswerSource) -> None:
        self.pending: PendingQuestion | None = None
        self._answers, self._asks = answers, 0

    async def ask(
        self, question: str, *, options: Sequence[Any] | None, deadline: Duration | datetime | None, default: Any
    ) -> Any:
        """See `TaskContext.ask`."""
        self.check_goes_on()
        self._asks += 1
        number = self._asks
        pending = _checked(number, question, options, deadline, default)
        found = await self._answers.look_up(number, question)
        self.check_goes_on()
        if found is not None and found.answered:
            return found.answer
        if found is not None and not found.open:
            if default is NO_DEFAULT:
                raise AskExpired(question)
            # As JSON gives it back, like an answer.
            return decode_json(encode_value("the default", default).encode())
        self.pending = pending
        raise Asked(question)

    def check_goes_on(self) -> None:
        """Refuse to go on behind a question.

        Raises:
            Asked: the attempt has asked already.
        """
        if self.pending is not None:
            raise Asked("the attempt has asked already, and ends with it")


def _checked(
    number: int, question: str, options: Sequence[Any] | None, deadline: Duration | datetime | None, default: Any
) -> PendingQuestion:
    if not isinstance(question, str) or not question.strip():
        raise InvalidInput(f"a question must be a text that is not empty, not {question!r}")
    if isinstance(options, str) or (options is not None and not options):
        raise InvalidInput(f"options must be a list of the answers that are allowed, not {options!r}")
    if default is not NO_DEFAULT and deadline is None:
        raise InvalidInput("default= is what ask() returns when nobody has answered in time; give deadline= too")
    delay_ms = at_ms = 0
    if isinstance(deadline, datetime):
        at_ms = instant_ms("deadline", deadline)
    elif deadline is not None:
        delay_ms = max(1, to_ms("deadline", deadline))
    wording = StoredQuestion(
        question,
        tuple(encode_value("an option", option) for option in options or ()),
        "" if default is NO_DEFAULT else encode_value("the default", default),
    )
    return PendingQuestion(number, pack_question(wording), delay_ms, at_ms)
