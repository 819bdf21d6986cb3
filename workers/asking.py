"""Implements `ctx.ask`: numbers the questions of an attempt and finds answers to earlier ones."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

import msgspec

from orchestrator.core.durations import instant_ms, to_ms
from orchestrator.core.errors import AskExpired, InvalidInput
from orchestrator.core.payload import decode_json
from orchestrator.tasks.questions import StoredQuestion, encode_value, pack_question
from orchestrator.workers.signals import Asked, Joining

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.core.durations import Duration
    from orchestrator.tasks.model import Question

NO_DEFAULT: Final[Any] = object()
"""Marks that no default was given, because None is a valid default."""


class AnswerSource(Protocol):
    """Looks up stored questions, with their answers, by number."""

    async def look_up(self, number: int, question: str) -> Question | None:
        """Return the question that has this number, or None.

        Raises:
            QuestionChanged: an earlier attempt asked another question, and it is closed.
        """


class PendingQuestion(msgspec.Struct, frozen=True):
    """The stored form of the question that ends the attempt; its deadline is a delay or a time."""

    number: int
    packed: bytes
    delay_ms: int = 0
    at_ms: int = 0


class Asking:
    """The questions of one attempt.

    Attributes:
        pending: the question without an answer; once set, the attempt ends with it.
        joins: whether the attempt ends with a join.
    """

    __slots__ = ("_answers", "_asks", "joins", "pending")

    def __init__(self, answers: AnswerSource) -> None:
        self.pending: PendingQuestion | None = None
        self.joins = False
        self._answers, self._asks = answers, 0

    async def ask(
        self, question: str, *, options: Sequence[Any] | None, deadline: Duration | datetime | None, default: Any
    ) -> Any:
        """Return the answer, or raise `Asked`; see `TaskContext.ask`."""
        self.check_not_asked()
        self._asks += 1
        pending = _checked(self._asks, question, options, deadline, default)
        found = await self._answers.look_up(pending.number, question)
        while found is not None and found.effect:
            # Effects ask in some attempts only, so that their questions have numbers of their own.
            self._asks += 1
            pending = msgspec.structs.replace(pending, number=self._asks)
            found = await self._answers.look_up(pending.number, question)
        self.check_not_asked()
        if found is not None and found.answered:
            return found.answer
        if found is not None and not found.open:
            if default is NO_DEFAULT:
                raise AskExpired(question)
            # A JSON round trip, as for an answer.
            return decode_json(encode_value("the default", default).encode())
        self.pending = pending
        raise Asked(question)

    def ask_about(self, effect: str, number: int, question: str) -> NoReturn:
        """End the attempt with the question what the outcome of an effect was.

        Raises:
            Asked: always.
        """
        self.check_not_asked()
        self.pending = PendingQuestion(number, pack_question(StoredQuestion(question, effect=effect)))
        raise Asked(question)

    def check_not_asked(self) -> None:
        """Check that the attempt does not end with a question or a join.

        Raises:
            Asked: the attempt has asked, and ends with its question.
            Joining: the attempt joins tasks that have not ended, and ends with the join.
        """
        if self.joins:
            raise Joining("the attempt joins tasks that have not ended, and must end")
        if self.pending is not None:
            raise Asked("the attempt has asked a question and must end")


def _checked(
    number: int, question: str, options: Sequence[Any] | None, deadline: Duration | datetime | None, default: Any
) -> PendingQuestion:
    if not isinstance(question, str) or not question.strip():
        raise InvalidInput(f"a question must be a non-empty string, not {question!r}")
    if isinstance(options, str) or (options is not None and not options):
        raise InvalidInput(f"options must be a non-empty list of allowed answers, not {options!r}")
    if default is not NO_DEFAULT and deadline is None:
        raise InvalidInput(
            "default= needs deadline=, because ask() returns it when the deadline passes without an answer"
        )
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
