"""Answers a task that waits for a person, and leaves a record of it among the control commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.budgets.model import granted
from orchestrator.control.commands import RecordAnswer
from orchestrator.control.sending import send, this_actor
from orchestrator.core.command_record import check_said
from orchestrator.core.errors import AnswerRefused, CommandRefused, InvalidInput, NotFound, StoreError
from orchestrator.core.ids import check_task_id
from orchestrator.core.log import get_logger
from orchestrator.core.reading import read_text
from orchestrator.core.redaction import HIDDEN
from orchestrator.tasks import scripts
from orchestrator.tasks.model import AnswerStatus, TaskState
from orchestrator.tasks.questions import match_option
from orchestrator.tasks.records import numbered_field, read_record

if TYPE_CHECKING:
    from orchestrator.services import Services
    from orchestrator.tasks.scripts import Answered

_log = get_logger(__name__)


class Given(NamedTuple):
    """An answer that stands: whether it is new, to which question, as JSON."""

    status: AnswerStatus
    number: int
    value: str


async def answer(
    services: Services, id_: str, value: Any, *, number: int | None = None, actor: str | None = None
) -> Given:
    """Answer a question; see `TaskHandle.answer`. `number` None: the latest one."""
    check_task_id(id_)
    if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
        raise InvalidInput(f"question {number!r} is none; the questions of a task are counted from 1")
    check_said(actor, "")
    actor = _one_line(actor or this_actor())
    store, retry_for_s = services.store, services.settings.redis.command_timeout_s
    if number is None:
        record = await store.read_with_retry(lambda: read_record(store, id_, "asks"), retry_for_s=retry_for_s)
        number = record.asks or 1
    field = numbered_field("ask", number)
    asked = (
        await store.read_with_retry(lambda: read_record(store, id_, field), retry_for_s=retry_for_s)
    ).stored_question(number)
    text = match_option(value, asked.options if asked else ())
    max_wait_s = round(services.settings.queue.max_wait_s)
    grant = granted(asked.effect, value) if asked else ""
    call = scripts.answer(
        store.keys, id_=id_, number=number, value=text, actor=actor, max_wait_s=max_wait_s, grant=grant
    )
    found = await store.call(call, retry_for_s=retry_for_s)
    if found.status is AnswerStatus.ANSWERED:
        await _record(services, id_, number, actor)
    elif found.status is not AnswerStatus.ALREADY:
        if found.status is AnswerStatus.OTHER and await _is_redacted(services, id_):
            found = found._replace(value=HIDDEN.encode())
        raise _refusal(id_, number, text, found)
    return Given(found.status, number, text)


async def _is_redacted(services: Services, id_: str) -> bool:
    record = await read_record(services.store, id_, "env")
    return bool(await services.store.execute("SISMEMBER", services.keys.redacted, record.skill))


async def _record(services: Services, id_: str, number: int, actor: str) -> None:
    try:
        await send(services.store, services.settings, RecordAnswer(task=id_, question=number), actor=actor)
    except (CommandRefused, StoreError) as failure:
        # Who answered is stored with the task, too.
        _log.warning("answer_not_recorded", task=id_, question=number, error=str(failure))


def _refusal(id_: str, number: int, text: str, found: Answered) -> Exception:
    match found.status:
        case AnswerStatus.OTHER:
            _, _, who = found.who.partition(" ")
            return AnswerRefused(f"question {number} of task {id_} was answered by {who}: {read_text(found.value)}")
        case AnswerStatus.LATE:
            return AnswerRefused(f"question {number} of task {id_} was not answered in time; it goes on without")
        case AnswerStatus.INVALID:
            return InvalidInput(f"the answer {text} is none of the options of question {number}")
        case AnswerStatus.UNKNOWN:
            return NotFound(f"task {id_} does not exist, or its retention has passed")
    if found.state is not TaskState.AWAITING_INPUT:
        asked = f"it has asked {found.asks} question{'' if found.asks == 1 else 's'} so far and is {found.state}"
        return AnswerRefused(f"task {id_} does not wait for the answer to question {number}: {asked}")
    return AnswerRefused(f"task {id_} has not asked question {number}; it waits with question {found.asks}")


def _one_line(actor: str) -> str:
    line = " ".join(actor.encode(errors="replace").decode().split())
    if not line:
        raise InvalidInput("actor must say who answers")
    return line
