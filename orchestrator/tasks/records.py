"""Decodes the record of a task: the hash `task:ID`, or those of its fields that were read."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec.structs import replace

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import DamagedData, InvalidInput, ServerUnavailable, StoreError
from orchestrator.core.ids import decode_foreign, task_ms
from orchestrator.core.queue_name import QueueName
from orchestrator.core.reading import read_json, read_text, read_whole, read_word, reads_stored
from orchestrator.tasks.history import TaskAttempt, parse_attempt, present_attempt
from orchestrator.tasks.model import WAITING, Envelope, Progress, TaskState, decode_envelope
from orchestrator.tasks.questions import StoredQuestion, read_question, unpack_stored
from orchestrator.tasks.values import field_of, is_apart

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from orchestrator.store.calls import Argument
    from orchestrator.store.keys import PoolKeys
    from orchestrator.store.store import Store
    from orchestrator.tasks.model import Question

Numbered = Literal["error", "death", "requeue", "ask", "answer", "answered", "ran", "join"]
"""Fields that a record has once for each failed attempt, death, retry by an operator, question, attempt or join."""
_EXPLAINED: Final = frozenset({
    TaskState.SCHEDULED, TaskState.AWAITING_INPUT, TaskState.DEAD, TaskState.CANCELLED, TaskState.EXPIRED,
})  # fmt: skip
"""States of which the stored reason tells the cause. In others it is that of an earlier attempt."""
LISTED: Final = ("state", "env", "queue", "at", "reason", "ended", "fails", "deaths", "lane", "cancel")
"""The fields that lists and filters need."""


def numbered_field(kind: Numbered, number: int) -> str:
    """Return the name of a numbered field; the first has number 1."""
    return f"{kind}:{number}"


def once_field(name: str) -> str:
    """Return the name of the field that stores a result of `ctx.once`."""
    return f"once:{name}"


def effect_field(name: str) -> str:
    """Return the name of the field that stores an effect."""
    return f"effect:{name}"


class TaskRecord:
    """One task as it was when its record was read. A property whose fields were not read is empty.

    Args:
        id_: the task.
        fields: the fields that were read and exist.
        known: state from elsewhere: `running` of a task that a worker has read, which its record does not tell.
    """

    def __init__(self, id_: str, fields: Mapping[str, bytes], *, known: TaskState | None = None) -> None:
        self.id, self._fields, self._known = id_, fields, known

    @classmethod
    def from_reply(
        cls, id_: str, fields: Sequence[str], reply: Sequence[Any], *, known: TaskState | None = None
    ) -> TaskRecord:
        """Return the record from the reply to a command of `read_command`."""
        if not fields:
            return cls(id_, record_fields(reply), known=known)
        values = zip(fields, reply, strict=True)
        return cls(id_, {name: value for name, value in values if value is not None}, known=known)

    def merged(self, more: TaskRecord) -> TaskRecord:
        """Return this record with the fields of another read of the same task."""
        return TaskRecord(self.id, {**self._fields, **more._fields}, known=self._known)

    def field(self, name: str) -> bytes | None:
        """Return the stored value of a field."""
        return self._fields.get(name)

    @property
    def exists(self) -> bool:
        """True if there is such a task."""
        return "state" in self._fields

    @cached_property
    def state(self) -> TaskState:
        """The state; only `known` turns it into `running` or `cancelling`."""
        stored = read_word(TaskState, self._text("state"))
        if stored is not TaskState.ASSIGNED or self._known is None:
            return stored
        return TaskState.CANCELLING if self._known is TaskState.RUNNING and self.cancel is not None else self._known

    @property
    def waits_for_turn(self) -> bool:
        """True if it is ready and in no queue, because another task has the turn of its lane."""
        return self.field("state") == WAITING.encode()

    def known_as(self, state: TaskState) -> TaskRecord:
        """Return this record with a state from elsewhere, as the argument `known`."""
        return TaskRecord(self.id, self._fields, known=state)

    @property
    def generation(self) -> int:
        """The generation of the current or last attempt."""
        return self._count("gen")

    @cached_property
    def envelope(self) -> Envelope:
        """The envelope; a damaged one has the skill `(unreadable)`, so that lists still show the other tasks."""
        try:
            envelope = decode_envelope(self._fields.get("env", b""))
        except DamagedData:
            return Envelope(skill="(unreadable)", args=b"")
        args = self._whole(envelope.args)
        return envelope if args is envelope.args else replace(envelope, args=args)

    def _whole(self, stored: bytes) -> bytes:
        """Return the value of a field if `stored` refers to one that was read, else `stored`."""
        return self._fields.get(field_of(stored), stored) if is_apart(stored) else stored

    @property
    def skill(self) -> str:
        """The skill."""
        return self.envelope.skill

    @property
    def session(self) -> str | None:
        """The session."""
        return self.envelope.session

    @property
    def priority(self) -> int:
        """The priority, 0 to 9."""
        return self.envelope.priority

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags."""
        return self.envelope.tags

    @property
    def queue(self) -> str:
        """The queue in which it waits: `skill:S` or `agent:A`."""
        return self._text("queue") or str(QueueName.of_skill(self.skill))

    @property
    def holder(self) -> str | None:
        """The agent that had it last."""
        return self._text("at").partition(" ")[0] or None

    @property
    def agent(self) -> str | None:
        """The agent that had it last, or that it is addressed to."""
        return self.holder or QueueName.parse(self.queue).agent

    @property
    def entry(self) -> str:
        """The id of its inbox entry."""
        return self._text("at").partition(" ")[2].partition(" ")[0]

    @property
    def entered_ms(self) -> int:
        """The time of its inbox entry in ms."""
        return read_whole(self.entry.partition("-")[0])

    @property
    def awaits(self) -> tuple[str, ...]:
        """The tasks that its attempt waits for."""
        generation, _, ids = self._text("awaits").partition(" ")
        if self.field("state") != b"assigned" or self.field("gen") != generation.encode():
            return ()
        return tuple(ids.split())

    @property
    def lane(self) -> str | None:
        """The lane, encoded as in its key."""
        return self._text("lane") if "lane" in self._fields else None

    @property
    def lane_name(self) -> str | None:
        """The lane, as it was given."""
        return None if self.lane is None else decode_lane(self.lane)

    @property
    def cancel(self) -> str | None:
        """The reason of a cancel request; None without one."""
        return self._text("cancel") if "cancel" in self._fields else None

    @property
    def stored_reason(self) -> str:
        """The reason for which it left its last attempt, or ended without a result, however long ago."""
        return self._text("reason")

    @property
    def reason(self) -> str:
        """The cause for which it is put off now, or ended without a result; empty once it has gone on or succeeded.

        `state` must have been read with it.
        """
        return self.stored_reason if self.state in _EXPLAINED else ""

    @property
    def last_retry(self) -> str:
        """The reason that an earlier attempt gave when it was put off, once the task has gone on."""
        return "" if self.state in _EXPLAINED else self.stored_reason

    @property
    def result(self) -> bytes | None:
        """The result, JSON or a reference."""
        stored = self._fields.get("result")
        return None if stored is None else self._whole(stored)

    @property
    def failures(self) -> int:
        """Number of failed attempts."""
        return self._count("fails")

    @property
    def snoozes(self) -> int:
        """Number of times that its handler raised `Snooze`."""
        return self._count("snoozes")

    @property
    def deaths(self) -> int:
        """Attempts whose worker died."""
        return self._count("deaths")

    @property
    def attempts(self) -> int:
        """Failed attempts and deaths."""
        return self.failures + self.deaths

    @property
    def submitted_at(self) -> datetime:
        """Submission time, from the id."""
        return from_instant_ms(task_ms(self.id))

    @property
    def ended_ms(self) -> int | None:
        """When it ended."""
        return self._count("ended") if "ended" in self._fields else None

    @property
    def ended_at(self) -> datetime | None:
        """When it ended."""
        return None if self.ended_ms is None else from_instant_ms(self.ended_ms)

    @property
    def at(self) -> datetime:
        """When it ended; when it was submitted, while it has not."""
        return self.ended_at or self.submitted_at

    def numbered(self, kind: Numbered) -> dict[int, str]:
        """Return the numbered fields of a kind by number, in order."""
        stem = numbered_field(kind, 0)[:-1]
        numbers = (name.removeprefix(stem) for name in self._fields if name.startswith(stem))
        return {
            number: self._text(numbered_field(kind, number))
            for number in sorted(read_whole(text) for text in numbers if text.isdecimal())
        }

    @property
    def errors(self) -> tuple[str, ...]:
        """Tracebacks of the failed attempts, oldest first."""
        return tuple(self.numbered("error").values())

    @property
    def restored(self) -> str:
        """Time in ms of the restore that made it ready again, its state in the backup, and the backup; else empty."""
        return self._text("restored")

    @property
    def children_dropped(self) -> int:
        """Number of children that its list of children no longer has."""
        return self._count("dropped")

    def history(self, state: TaskState, worker: str | None = None) -> tuple[TaskAttempt, ...]:
        """Return the attempts that the record keeps, oldest first, with the one that runs or that ended the task.

        Args:
            state: of the task; the record alone does not tell whether it runs.
            worker: that has the task now.
        """
        found = [parse_attempt(number, text) for number, text in self.numbered("ran").items()]
        kept = [one for one in found if one is not None]
        if state in {TaskState.RUNNING, TaskState.CANCELLING, TaskState.SUCCEEDED, TaskState.DEAD}:
            last = present_attempt(
                state,
                number=self._count("ran") + 1,
                attempt=self.attempts + (state is not TaskState.DEAD),
                generation=self.generation,
                agent=self.holder,
                worker=worker,
                ended_ms=self.ended_ms,
                reason=self.reason,
            )
            if last is not None and not any(one.assigned_at == last.assigned_at for one in kept):
                kept.append(last)
        return tuple(kept)

    @property
    def progress(self) -> Progress | None:
        """The last report of the current or last attempt; reports of earlier attempts are ignored."""
        made, _, data = self._fields.get("progress", b"").partition(b" ")
        return read_progress(data) if made and read_whole(made) == self.generation else None

    @property
    def asks(self) -> int:
        """The number of its questions."""
        return self._count("asks")

    def question(self, number: int) -> Question | None:
        """Return a question, or None if it was not asked or is corrupt."""
        stored = self._fields.get(numbered_field("ask", number))
        answer, answered = (self._fields.get(numbered_field(kind, number)) for kind in ("answer", "answered"))
        return None if stored is None else read_question(number, stored, answer, answered)

    def stored_question(self, number: int) -> StoredQuestion | None:
        """Return a question as its handler asked it, or None if it was not asked.

        Raises:
            InvalidInput: it is damaged.
        """
        stored = self._fields.get(numbered_field("ask", number))
        return None if stored is None else unpack_stored(stored)

    @property
    def questions(self) -> tuple[Question, ...]:
        """The questions that can be read, in order."""
        found = [self.question(number) for number in self.numbered("ask")]
        return tuple(question for question in found if question is not None)

    @property
    def once(self) -> tuple[str, ...]:
        """The names of the results that `ctx.once` keeps."""
        stem = once_field("")
        return tuple(name.removeprefix(stem) for name in self._fields if name.startswith(stem))

    def fields_of(self, stem: str) -> tuple[tuple[str, bytes], ...]:
        """Return the fields whose names begin with `stem`, with their values."""
        return tuple((name, value) for name, value in self._fields.items() if name.startswith(stem))

    @property
    def effects(self) -> tuple[str, ...]:
        """The names of the effects that `ctx.effect` has begun."""
        stem = effect_field("")
        return tuple(name.removeprefix(stem) for name, _ in self.fields_of(stem))

    @property
    def predecessors(self) -> tuple[str, ...]:
        """The tasks of its flow after which it runs; those whose failure does not cancel it have a `+` behind."""
        return tuple(self._text("after").split())

    @property
    def followers(self) -> tuple[str, ...]:
        """The tasks of its flow that run after it."""
        return tuple(self._text("followers").split())

    @property
    def budgets(self) -> tuple[str, ...]:
        """The budgets that it spends."""
        return tuple(self._text("budget").split())

    @property
    def spends(self) -> tuple[str, ...]:
        """The budgets that its attempt spends: its own, and those that its agent names."""
        return tuple(dict.fromkeys((*self.budgets, *self._text("funds").split())))

    def _text(self, name: str) -> str:
        return read_text(self._fields.get(name, b""))

    def _count(self, name: str) -> int:
        value = self._fields.get(name, b"")
        return read_whole(value) if value.isdigit() else 0


@reads_stored
def read_progress(data: bytes) -> Progress:
    """Decode a progress report.

    Raises:
        DamagedData: no worker wrote it.
    """
    progress = Progress(*read_json(data))
    if not isinstance(progress.done, int | float) or not isinstance(progress.total, int | float | None):
        raise TypeError("progress is no number")
    return progress


def read_command(keys: PoolKeys, id_: str, *fields: str) -> tuple[Argument, ...]:
    """Return the command that reads these fields of a task, or all fields if none is named."""
    return ("HMGET", keys.task(id_), *fields) if fields else ("HGETALL", keys.task(id_))


async def read_record(store: Store, id_: str, *fields: str) -> TaskRecord:
    """Read these fields of a task; all of them when none is named.

    Raises:
        StoreError: Redis does not answer, or refuses.
    """
    return TaskRecord.from_reply(id_, fields, await store.execute(*read_command(store.keys, id_, *fields)))


async def read_each(store: Store, ids: Iterable[str], *fields: str) -> dict[str, TaskRecord | StoreError]:
    """Read these fields of tasks; a task that Redis refuses to read maps to the error.

    Raises:
        ServerUnavailable: Redis does not answer.
    """
    listed = list(ids)
    found: dict[str, TaskRecord | StoreError] = {}
    replies = await store.pipeline([read_command(store.keys, id_, *fields) for id_ in listed])
    for id_, reply in zip(listed, replies, strict=True):
        if isinstance(reply, ServerUnavailable):
            raise reply
        found[id_] = reply if isinstance(reply, StoreError) else TaskRecord.from_reply(id_, fields, reply)
    return found


KEPT_ERRORS: Final = 20
"""Attempts whose tracebacks a record keeps (`lua/includes/history.lua`)."""


async def list_records(
    store: Store, found: Mapping[str, TaskState | None], *, errors: bool = False
) -> list[TaskRecord]:
    """Read the fields `LISTED` of tasks, in their order, without those that are gone, deleted or unreadable.

    Args:
        store: where.
        found: ids, with a state where more is known than is stored (`running`).
        errors: also read the tracebacks.
    """
    commands = [read_command(store.keys, id_, *LISTED) for id_ in found]
    records = [
        TaskRecord.from_reply(id_, LISTED, reply, known=known)
        for (id_, known), reply in zip(found.items(), await store.pipeline(commands), strict=True)
        if not isinstance(reply, StoreError) and reply[0] is not None
    ]
    return await _with_errors(store, records) if errors else records


async def _with_errors(store: Store, records: Sequence[TaskRecord]) -> list[TaskRecord]:
    names = {
        record.id: [
            numbered_field("error", number)
            for number in range(max(1, record.attempts - KEPT_ERRORS + 1), record.attempts + 1)
        ]
        for record in records
        if record.attempts
    }
    replies = await store.pipeline([read_command(store.keys, id_, *fields) for id_, fields in names.items()])
    more = {
        id_: TaskRecord.from_reply(id_, fields, reply)
        for (id_, fields), reply in zip(names.items(), replies, strict=True)
        if not isinstance(reply, StoreError)
    }
    return [record.merged(more[record.id]) if record.id in more else record for record in records]


def record_fields(reply: Sequence[Any]) -> dict[str, bytes]:
    """Return the fields of a hash by name, from the reply to HGETALL."""
    return {read_text(name): value for name, value in zip(reply[::2], reply[1::2], strict=True)}


def decode_lane(encoded: str) -> str:
    """Return the decoded name of a lane."""
    try:
        return decode_foreign(encoded)
    except InvalidInput:
        return encoded
