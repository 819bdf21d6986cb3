"""What one attempt reads from the record of its task, and keeps there: answers of people, what it did once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.core.errors import Fenced, QuestionChanged
from orchestrator.tasks import scripts
from orchestrator.tasks.questions import read_question

if TYPE_CHECKING:
    from orchestrator.services import Services
    from orchestrator.tasks.model import Delivery, Question


class AttemptRecord:
    """The record of the task, as long as this attempt owns it."""

    __slots__ = ("_delivery", "_services")

    def __init__(self, services: Services, delivery: Delivery) -> None:
        self._services, self._delivery = services, delivery

    async def look_up(self, number: int, question: str) -> Question | None:
        """What is known of a question; see `AnswerSource`."""
        stored, answer, answered = await self._read(f"ask:{number}", f"answer:{number}", f"answered:{number}")
        found = None if stored is None else read_question(number, stored, answer, answered)
        if found is not None and not found.open and found.question != question:
            raise QuestionChanged(number, question, found.question)
        return found

    async def load_result(self, name: str) -> bytes | None:
        """A result that is kept; see `OnceResults`."""
        (found,) = await self._read(f"once:{name}")
        return found

    async def store_result(self, name: str, result: bytes) -> bytes:
        """Keep a result; see `OnceResults`."""
        delivery = self._delivery
        call = scripts.once(
            self._services.keys, id_=delivery.task_id, generation=delivery.generation, name=name, value=result
        )
        done = await self._services.store.call(call, retry_for_s=self._services.settings.redis.command_timeout_s)
        match done.status:
            case "stale":
                raise Fenced(delivery.task_id)
            case "already":
                return done.value
        return result

    async def _read(self, *fields: str) -> list[bytes | None]:
        delivery, store = self._delivery, self._services.store
        key, retry_for_s = store.keys.task(delivery.task_id), self._services.settings.redis.command_timeout_s
        reply: list[bytes | None] = await store.ask(
            lambda: store.execute("HMGET", key, "state", "gen", *fields), retry_for_s=retry_for_s
        )
        state, generation, *found = reply
        if state != b"assigned" or generation != delivery.generation.encode():
            raise Fenced(delivery.task_id)
        return found
