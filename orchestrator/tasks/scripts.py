"""Wraps the scripts in `lua/tasks/`, one function per script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from orchestrator.core.reading import read_text, read_whole, read_word
from orchestrator.store.calls import Arguments, Call, opaque, pack_rows
from orchestrator.tasks.inbox import parse_entries
from orchestrator.tasks.model import (
    AnswerStatus,
    Assigned,
    CancelStatus,
    DeleteStatus,
    Delivery,
    Dispatched,
    EmitStatus,
    FinishStatus,
    LeaseStatus,
    Promoted,
    RequeueStatus,
    TaskState,
    Verdict,
    WatchStatus,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from orchestrator.store.keys import PoolKeys


class ScheduledFire(msgspec.Struct, frozen=True, array_like=True):
    """The schedule that submits a task; the script refuses it unless the schedule waits for `due`, then moves it on.

    Times are ms as text. `due` is empty when an operator fires the schedule; `fired` is later than `due` if times were
    missed.
    """

    schedule: str
    due: str
    fired: str
    next: str
    missed: int


class SubmitRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One task, in the column order of `lua/tasks/submit.lua`; a usual task has no more columns.

    `envelope` is opaque. The id tells which client gets the reply (`core.ids.TaskIds`).
    """

    id: str
    envelope: msgspec.Raw


class UnusualRow(SubmitRow, frozen=True, array_like=True):
    """A task with another queue, time, rank or lifetime than usual. None means the usual value.

    `rank` is priority level x aging in ms. `skill` is set only for a task that is addressed to an agent, because the
    name of a skill queue contains it.
    """

    rank: int | None = None
    ttl_s: int | None = None
    queue: str | None = None
    skill: str | None = None
    delay_ms: int | None = None
    at_ms: int | None = None
    start_by_ms: int | None = None
    idem: str | None = None
    digest: str | None = None
    parent: str | None = None
    parent_generation: str | None = None
    lane: str | None = None
    on_busy: str | None = None
    fire: ScheduledFire | None = None
    session: str | None = None
    apart: int | None = None
    """1 if the arguments were written into a field of their own (`tasks/values.py`)."""
    tags: tuple[str, ...] | None = None
    """As in keys."""
    fair: str | None = None
    """As in keys."""
    budget: str | None = None
    """Blank-separated names."""
    after: tuple[int, ...] | None = None
    """Of a flow: numbers of the rows after whose tasks it runs, from 1; below 0 also after a failure."""


class SubmitAnswer(NamedTuple):
    """Reply to a row; `lua/tasks/submit.lua` documents each `status` and its `detail`."""

    status: str
    detail: str


CREATED: Final = SubmitAnswer("created", "")


class SubmitCaps(NamedTuple):
    """Caps of the tasks that wait: bytes of a queue and of the pool, and the number of queues."""

    queue_bytes: int = 2**49
    pool_bytes: int = 2**49
    queues: int = 2**31


NO_CAPS: Final = SubmitCaps()


def submit(
    keys: PoolKeys,
    *,
    rows: Sequence[SubmitRow],
    max_tasks: int,
    max_wait_s: int,
    caps: SubmitCaps = NO_CAPS,
    now_us: str = "",
) -> Call[list[SubmitAnswer]]:
    """Accept up to 500 tasks and return one reply per row, in order."""

    def parse(reply: list[Any]) -> list[SubmitAnswer]:
        answers = [CREATED] * len(rows)
        for number, status, detail in zip(*[iter(reply)] * 3, strict=True):
            answers[number - 1] = SubmitAnswer(read_text(status), read_text(detail))
        return answers

    args: Arguments = {
        "pool": keys.root,
        "rows": pack_rows(rows),
        "max_tasks": max_tasks,
        "max_wait_s": max_wait_s,
        "caps": f"{caps.queue_bytes} {caps.pool_bytes} {caps.queues}",
        "now_arg": now_us,
    }
    return Call("tasks/submit", args, parse)


def count_durable(keys: PoolKeys, *, counts: Mapping[str, int]) -> Call[int]:
    """Add to the counters of durable submits, such as `fsync:asked`."""
    return Call("tasks/count_durable", {"pool": keys.root, "rows": pack_rows(list(counts.items()))}, int)


def find_lost(keys: PoolKeys, *, ids: Sequence[str]) -> Call[list[str]]:
    """Return those of up to 500 tasks that have no record. A replica refuses the call."""
    args: Arguments = {"pool": keys.root, "rows": pack_rows([(id_,) for id_ in ids])}
    return Call("tasks/find_lost", args, lambda reply: [ids[number - 1] for number in reply])


def report_lost(
    keys: PoolKeys, *, report: str, observer: str, from_ms: int, submits: int, now_us: str = ""
) -> Call[bool]:
    """Store for a day that Redis has lost confirmed writes."""
    args: Arguments = {
        "pool": keys.root,
        "report": report,
        "observer": observer,
        "from_ms": str(from_ms),
        "submits": submits,
        "now_arg": now_us,
    }
    return Call("tasks/report_lost", args, bool)


def promote(keys: PoolKeys, *, limit: int, now_us: str = "") -> Call[Promoted]:
    """Move due tasks to their queues and expire those past their `start_by`, at most `limit` of each."""

    def parse(reply: list[int]) -> Promoted:
        promoted, expired, wait_ms, left, cancels = reply
        return Promoted(promoted, expired, None if wait_ms < 0 else wait_ms / 1000, bool(left), bool(cancels))

    return Call("tasks/promote", {"pool": keys.root, "limit": limit, "now_arg": now_us}, parse)


def assign(keys: PoolKeys, *, agents: Sequence[str], limit: int, now_us: str = "") -> Call[Assigned]:
    """Move up to `limit` of the best ready tasks into the inboxes of some agents, at most 64."""

    def parse(reply: list[Any]) -> Assigned:
        count, server_us, *flat = reply
        rest = list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
        return Assigned(
            count,
            tuple(read_text(agent) for agent, left, _ in rest if left),
            {read_text(agent): max(1, opens_us - server_us) for agent, _, opens_us in rest if opens_us},
        )

    args: Arguments = {"pool": keys.root, "agents": " ".join(agents), "limit": limit, "now_arg": now_us}
    return Call("tasks/assign", args, parse)


def dispatch(keys: PoolKeys, *, skill: str, limit: int, without: int = 0, now_us: str = "") -> Call[Dispatched]:
    """Move up to `limit` ready tasks of a skill into the inboxes of the least loaded agents with the skill."""

    def parse(reply: list[Any]) -> Dispatched:
        count, left, passed, server_us, *holds = reply
        waits = {
            read_text(agent): max(1, next_free_us - server_us) if next_free_us else 0
            for agent, next_free_us in zip(holds[::2], holds[1::2], strict=True)
        }
        return Dispatched(count, left=bool(left), without=passed, waits_us=waits)

    args: Arguments = {"pool": keys.root, "skill": skill, "limit": limit, "without": without, "now_arg": now_us}
    return Call("tasks/dispatch", args, parse)


class Finished(NamedTuple):
    """Reply of `finish`: one status per row, in order.

    `ready_ms` has, by the place of its row, since when a task was ready that was not ready since its submit; 0 if that
    is unknown. `dead` has the places of the invalid tasks that ended, because no other version of the skill may
    take them.
    """

    statuses: list[FinishStatus]
    ready_ms: dict[int, int]
    dead: set[int]


def finish(
    keys: PoolKeys,
    *,
    rows: Sequence[tuple[Delivery, Verdict]],
    worker: str,
    dead_ttl_s: int,
    max_wait_s: int,
    listpack_bytes: int | None = None,
    now_us: str = "",
) -> Call[Finished]:
    """Store up to 500 verdicts.

    Args:
        keys: of the pool.
        rows: deliveries and their verdicts.
        worker: that ran them.
        dead_ttl_s: minimum lifetime of dead letters.
        max_wait_s: lifetime of a task that goes back.
        listpack_bytes: the server's `hash-max-listpack-value`; None keeps hash tables as they are.
        now_us: replaces the server's clock in tests.
    """
    longest = 2**62 if listpack_bytes is None else listpack_bytes
    packed = [
        (
            *(d.task_id, d.generation, d.agent, d.entry, v.kind, opaque(v.payload)),
            *(opaque(v.envelope) if v.envelope else None, None, v.delay_ms, v.at_ms, v.reason, v.number),
            *(v.version, v.names, v.began_ago_ms, v.timed_out or None, 1),
        )
        if v.apart
        else (
            *(d.task_id, d.generation, d.agent, d.entry, v.kind, opaque(v.payload)),
            *(None, None, v.delay_ms, v.at_ms, v.reason, v.number),
            *((v.version, v.names) if v.version or v.began_ago_ms is not None else ()),
            *((v.began_ago_ms, v.timed_out or None) if v.began_ago_ms is not None else ()),
        )
        if v.delay_ms or v.at_ms or v.reason or v.number or v.version or v.began_ago_ms is not None
        else (d.task_id, d.generation, d.agent, d.entry, v.kind, opaque(v.payload), opaque(v.envelope), 1)
        if v.envelope and len(d.envelope) > longest >= len(v.payload)
        else (d.task_id, d.generation, d.agent, d.entry, v.kind, opaque(v.payload), opaque(v.envelope))
        if v.envelope
        else (d.task_id, d.generation, d.agent, d.entry, v.kind, opaque(v.payload))
        for d, v in rows
    ]

    def parse(reply: list[Any]) -> Finished:
        statuses, ready_ms, dead = [FinishStatus.OK] * len(packed), dict[int, int](), set[int]()
        for number, word in zip(reply[::2], reply[1::2], strict=True):
            if word.isdigit():
                ready_ms[number - 1] = read_whole(word)
            elif word == b"dead":
                dead.add(number - 1)
            else:
                statuses[number - 1] = read_word(FinishStatus, word)
        return Finished(statuses, ready_ms, dead)

    args: Arguments = {
        "pool": keys.root,
        "rows": pack_rows(packed),
        "worker": worker,
        "dead_ttl_s": dead_ttl_s,
        "max_wait_s": max_wait_s,
        "now_arg": now_us,
    }
    return Call("tasks/finish", args, parse)


class EmitRow(NamedTuple):
    """One row of output or progress, in the column order of `lua/tasks/emit.lua`.

    `seq` counts all rows of an attempt from 1, `number` its output chunks (0 for progress).
    """

    id: str
    generation: str
    attempt: int
    seq: int
    kind: str
    number: int
    data: bytes


def emit(keys: PoolKeys, *, rows: Sequence[EmitRow], max_chunks: int) -> Call[list[EmitStatus]]:
    """Append up to 500 rows to the streams of their tasks and return one status per row, in order."""
    packed = pack_rows([(*row[:-1], opaque(row.data)) for row in rows])
    args: Arguments = {"pool": keys.root, "rows": packed, "max_chunks": max_chunks}
    return Call("tasks/emit", args, lambda reply: [read_word(EmitStatus, status) for status in reply])


def watch(keys: PoolKeys, *, ids: Sequence[str]) -> Call[list[tuple[WatchStatus, str]]]:
    """Follow up to 500 tasks, or continue; return the status of each, and the last entry of its stream if any."""

    def parse(reply: list[bytes]) -> list[tuple[WatchStatus, str]]:
        texts = [read_text(part) for part in reply]
        return [(read_word(WatchStatus, status), last) for status, last in zip(texts[::2], texts[1::2], strict=True)]

    return Call("tasks/watch", {"pool": keys.root, "rows": pack_rows([(id_,) for id_ in ids])}, parse)


class Cancelled(NamedTuple):
    """Reply of `cancel`: the status of each task, and the state of one that had ended before.

    `any_children`: the tasks have children, which `cancel_children` must cancel.
    """

    answers: list[tuple[CancelStatus, TaskState | None]]
    any_children: bool


def cancel(
    keys: PoolKeys, *, ids: Sequence[str], reason: str, only_this: bool = False, now_us: str = ""
) -> Call[Cancelled]:
    """Cancel up to 500 tasks, and note those with children, unless `only_this` is true."""

    def parse(reply: list[Any]) -> Cancelled:
        *parts, any_children = reply
        texts = [read_text(part) for part in parts]
        answers = [
            (read_word(CancelStatus, status), read_word(TaskState, state) if state else None)
            for status, state in zip(texts[::2], texts[1::2], strict=True)
        ]
        return Cancelled(answers, bool(any_children))

    args: Arguments = {
        "pool": keys.root,
        "rows": pack_rows([(id_,) for id_ in ids]),
        "reason": reason,
        "only_this": "1" if only_this else "",
        "now_arg": now_us,
    }
    return Call("tasks/cancel", args, parse)


class CancelledChildren(NamedTuple):
    """Reply of `cancel_children`: tasks that ended, those that were told to stop, and whether more are left."""

    ended: int
    told: int
    left: bool


CANCEL_AT_ONCE: Final = 50
"""Tasks that one call of `cancel_children` looks at: less than a millisecond of the server."""


def cancel_children(keys: PoolKeys, *, limit: int = CANCEL_AT_ONCE, now_us: str = "") -> Call[CancelledChildren]:
    """Cancel tasks below cancelled ones; any program may go on where another one stopped."""

    def parse(reply: list[int]) -> CancelledChildren:
        ended, told, left = reply
        return CancelledChildren(ended, told, bool(left))

    return Call("tasks/cancel_children", {"pool": keys.root, "limit": limit, "now_arg": now_us}, parse)


def delete(
    keys: PoolKeys, *, ids: Sequence[str], now_us: str = ""
) -> Call[list[tuple[DeleteStatus, TaskState | None]]]:
    """Delete up to 500 ended tasks and return the status of each, and the state in which it was found."""

    def parse(reply: list[bytes]) -> list[tuple[DeleteStatus, TaskState | None]]:
        texts = [read_text(part) for part in reply]
        return [
            (read_word(DeleteStatus, status), read_word(TaskState, state) if state else None)
            for status, state in zip(texts[::2], texts[1::2], strict=True)
        ]

    args: Arguments = {"pool": keys.root, "rows": pack_rows([(id_,) for id_ in ids]), "now_arg": now_us}
    return Call("tasks/delete", args, parse)


def unlist_session(keys: PoolKeys, *, session: str, ids: Sequence[str]) -> Call[int]:
    """Remove up to 500 deleted or expired tasks from the list of a session; return how many tasks it still has.

    Args:
        keys: of the pool.
        session: its encoded id.
        ids: tasks of the list; those that exist stay.
    """
    args: Arguments = {"pool": keys.root, "session": session, "rows": pack_rows([(id_,) for id_ in ids])}
    return Call("tasks/unlist_session", args, int)


def retry(
    keys: PoolKeys, *, ids: Sequence[str], token: str, said: str, max_wait_s: int, now_us: str = ""
) -> Call[list[tuple[RequeueStatus, TaskState | None]]]:
    """Requeue up to 500 ended tasks and return the status of each, and the state in which it was found.

    A repeated call with the same `token` requeues no task twice.
    """

    def parse(reply: list[bytes]) -> list[tuple[RequeueStatus, TaskState | None]]:
        texts = [read_text(part) for part in reply]
        return [
            (read_word(RequeueStatus, status), read_word(TaskState, state) if state else None)
            for status, state in zip(texts[::2], texts[1::2], strict=True)
        ]

    args: Arguments = {
        "pool": keys.root,
        "rows": pack_rows([(id_,) for id_ in ids]),
        "token": token,
        "said": said,
        "max_wait_s": max_wait_s,
        "now_arg": now_us,
    }
    return Call("tasks/retry", args, parse)


class Answered(NamedTuple):
    """Reply of `answer`.

    Attributes:
        who: of `already` and `other`: time (ms) and actor; of `late`: the deadline (ms).
        value: of `other`: the stored answer, JSON.
        state: of `not_asking`: the state of the task.
        asks: of `not_asking`: the number of its questions.
    """

    status: AnswerStatus
    who: str = ""
    value: bytes = b""
    state: TaskState | None = None
    asks: int = 0


def wake(keys: PoolKeys, task_id: str) -> Call[bool]:
    """Make a task ready that waits for an exclusive lock. Returns False if the task does not wait."""
    return Call("tasks/wake", {"pool": keys.root, "id": task_id}, lambda reply: bool(reply != b"gone"))


def answer(
    keys: PoolKeys, *, id_: str, number: int, value: str, actor: str, max_wait_s: int, grant: str = "", now_us: str = ""
) -> Call[Answered]:
    """Answer question `number` of a task; `value` is JSON, for an option in its stored form.

    `grant`: budget and amounts that it adds.
    """

    def parse(reply: list[bytes]) -> Answered:
        status, *named = reply
        match read_word(AnswerStatus, status):
            case AnswerStatus.OTHER as found:
                return Answered(found, read_text(named[0]), named[1])
            case AnswerStatus.NOT_ASKING as found:
                return Answered(found, state=read_word(TaskState, named[0]), asks=read_whole(named[1]))
            case AnswerStatus.ALREADY | AnswerStatus.LATE as found:
                return Answered(found, read_text(named[0]))
            case found:
                return Answered(found)

    args: Arguments = {
        "pool": keys.root,
        "id": id_,
        "number": number,
        "value": value,
        "actor": actor,
        "max_wait_s": max_wait_s,
        "grant": grant,
        "now_arg": now_us,
    }
    return Call("tasks/answer", args, parse)


class JoinReply(NamedTuple):
    """Reply of `join`.

    Attributes:
        status: `registered`, or why not: `stale`, `cycle`, `crowded` or `unknown`.
        task: the task that is in the way.
        looked: number of rows that the call has looked at.
        left: number of these tasks that have not ended.
    """

    status: str
    task: str = ""
    looked: int = 0
    left: int = 0


JoinPart: TypeAlias = Literal["first", "more", "earlier"]
"""The first call of a join, a later one, or one that names tasks of earlier joins."""


class JoinTerms(NamedTuple):
    """When a join is met.

    Attributes:
        number: of the join in its task, from 1.
        left: tasks that may be left.
        stop: whether the first failure meets it.
    """

    number: int
    left: int
    stop: bool


def join(
    keys: PoolKeys,
    *,
    id_: str,
    generation: str,
    ids: Sequence[str],
    part: JoinPart,
    terms: JoinTerms,
    keep_s: int,
    most: int,
    met: str = "",
) -> Call[JoinReply]:
    """Register up to 500 tasks that an attempt joins, or store how a join was met.

    Args:
        keys: of the pool.
        id_: task of the attempt.
        generation: of the attempt.
        ids: the tasks.
        part: whether this is the first call of the join, a later one, or one that names tasks of earlier joins.
        terms: when it is met.
        keep_s: lifetime of the task while it waits.
        most: tasks that may join one task.
        met: digest of the joined ids, and the task whose failure met the join (else `-`); empty to register.
    """
    args: Arguments = {
        "pool": keys.root,
        "id": id_,
        "generation": generation,
        "rows": pack_rows([(one,) for one in ids]),
        "part": part,
        "number": terms.number,
        "left": terms.left,
        "stop": "1" if terms.stop else "0",
        "keep_s": keep_s,
        "most": most,
        "met": met,
    }

    def parse(reply: list[Any]) -> JoinReply:
        status = read_text(reply[0])
        if status == "registered":
            return JoinReply(status, looked=reply[1], left=reply[2])
        return JoinReply(status, read_text(reply[1]) if len(reply) > 1 else "")

    return Call("tasks/join", args, parse)


class OnceReply(NamedTuple):
    """Reply of `once`: `stored`, `already` with the stored value, or `stale`."""

    status: str
    value: bytes = b""


def once(keys: PoolKeys, *, id_: str, generation: str, name: str, value: bytes) -> Call[OnceReply]:
    """Store a result of `ctx.once`."""
    args: Arguments = {"pool": keys.root, "id": id_, "generation": generation, "name": name, "value": value}
    return Call("tasks/once", args, lambda reply: OnceReply(read_text(reply[0]), *reply[1:]))


class EffectReply(NamedTuple):
    """Reply of `effect`: `stored` with the stored value, `changed`, `full` or `stale`."""

    status: str
    value: bytes = b""


def effect(
    keys: PoolKeys,
    *,
    id_: str,
    generation: str,
    name: str,
    before: bytes,
    value: bytes,
    most: int,
    told: str,
    now_us: str = "",
) -> Call[EffectReply]:
    """Store a step of an effect, if `before` is stored (empty: none) and the task has at most `most` effects.

    Followers of the task read `told`, if it is not empty.
    """
    args: Arguments = {
        "pool": keys.root,
        "id": id_,
        "generation": generation,
        "name": name,
        "before": before,
        "value": value,
        "most": most,
        "told": told,
        "now_arg": now_us,
    }
    return Call("tasks/effect", args, lambda reply: EffectReply(read_text(reply[0]), *reply[1:]))


def begin(keys: PoolKeys, *, rows: Sequence[tuple[str, str]]) -> Call[list[LeaseStatus]]:
    """Record that attempts (task id, generation) of tasks with deaths begin; return a status per row, kept or lost."""
    args: Arguments = {"pool": keys.root, "rows": pack_rows(rows)}
    return Call("tasks/begin", args, lambda reply: [read_word(LeaseStatus, status) for status in reply])


def renew(
    keys: PoolKeys, *, worker: str, agent: str, rows: Sequence[tuple[str, str, str]]
) -> Call[tuple[int, list[LeaseStatus]]]:
    """Renew entries (entry, task id, generation) and return the consumer's pending count, and one status per row."""

    def parse(reply: list[Any]) -> tuple[int, list[LeaseStatus]]:
        return reply[0], [read_word(LeaseStatus, status) for status in reply[1:]]

    args: Arguments = {"pool": keys.root, "worker": worker, "agent": agent, "rows": pack_rows(rows)}
    return Call("tasks/renew", args, parse)


def return_unseen(
    keys: PoolKeys, *, worker: str, agent: str, held: Iterable[str], idle_ms: int, limit: int, now_us: str = ""
) -> Call[list[str]]:
    """Requeue entries of a living worker that it does not hold; return the removed entries."""
    args: Arguments = {
        "pool": keys.root,
        "worker": worker,
        "agent": agent,
        "held": pack_rows([(entry,) for entry in held]),
        "idle_ms": idle_ms,
        "limit": limit,
        "now_arg": now_us,
    }
    return Call("tasks/return_unseen", args, lambda reply: [read_text(entry) for entry in reply])


class DeadByDeaths(NamedTuple):
    """A task that became a dead letter because its workers died."""

    id: str
    skill: str
    attempt: int
    deaths: int


def _dead(reply: list[Any]) -> list[DeadByDeaths]:
    rows = zip(*[iter(reply)] * 4, strict=True)
    return [DeadByDeaths(read_text(id_), read_text(skill), attempt, deaths) for id_, skill, attempt, deaths in rows]


class Adopted(NamedTuple):
    """Reply of `adopt`.

    Attributes:
        suspects: whether suspects wait in the pool.
        filled: whether the inbox holds entries.
        dead: tasks that are dead letters now.
        deliveries: the adopted entries.
    """

    suspects: bool
    filled: bool
    dead: list[DeadByDeaths]
    deliveries: list[Delivery]


def adopt(
    keys: PoolKeys,
    *,
    worker: str,
    agent: str,
    lease_ms: int,
    held: Iterable[str],
    limit: int,
    own: bool,
    max_deaths: Mapping[str, int],
    dead_ttl_s: int,
    now_us: str = "",
) -> Call[Adopted]:
    """Claim entries of one inbox whose lease has expired; with `own` also those that this worker lost on its way."""

    def parse(reply: list[Any]) -> Adopted:
        rows = zip(*[iter(reply[4:])] * 9, strict=True)
        return Adopted(
            bool(reply[1]),
            bool(reply[2]),
            _dead(reply[3]),
            [
                Delivery(
                    agent,
                    *(read_text(entry), read_text(task_id), read_text(generation), attempt, deaths, envelope, forgiven),
                    *(None if group < 0 else group, depth),
                )
                for entry, task_id, generation, attempt, deaths, forgiven, group, depth, envelope in rows
            ],
        )

    args: Arguments = {
        "pool": keys.root,
        "worker": worker,
        "agent": agent,
        "lease_ms": lease_ms,
        "held": pack_rows([(entry,) for entry in held]),
        "limit": limit,
        "own": "1" if own else "0",
        "max_deaths": pack_rows(list(max_deaths.items())),
        "dead_ttl_s": dead_ttl_s,
        "now_arg": now_us,
    }
    return Call("tasks/adopt", args, parse)


class Taken(NamedTuple):
    """Reply of `take_suspects`; `left` tells whether suspects of the agent wait."""

    left: bool
    deliveries: list[Delivery]


def take_suspects(
    keys: PoolKeys,
    *,
    worker: str,
    agent: str,
    limit: int,
    running: Iterable[tuple[int, int]],
    idle: bool,
    now_us: str = "",
) -> Call[Taken]:
    """Assign suspects to a worker whose process has room for them.

    Args:
        keys: of the pool.
        worker: that takes them.
        agent: whose suspects.
        limit: at most this many.
        running: depth and group of each suspect that the process runs.
        idle: whether the process runs nothing, so that a task may run alone in it.
        now_us: replaces the server's clock in tests.
    """

    def parse(reply: list[Any]) -> Taken:
        groups = zip(reply[2::2], reply[3::2], strict=True)
        read = zip(parse_entries(agent, reply[1]), groups, strict=True)
        return Taken(
            bool(reply[0]), [msgspec.structs.replace(one, group=group, depth=depth) for one, (group, depth) in read]
        )

    args: Arguments = {
        "pool": keys.root,
        "worker": worker,
        "agent": agent,
        "limit": limit,
        "running": pack_rows(list(running)),
        "idle": "1" if idle else "0",
        "now_arg": now_us,
    }
    return Call("tasks/take_suspects", args, parse)


KEEP_AWAITED: Final = "="
"""Value of `WaitRow.awaited` that leaves the record of the wait as it is."""


class WaitRow(msgspec.Struct, frozen=True, array_like=True):
    """One attempt that waits.

    Attributes:
        awaited: ids of the tasks that it waits for, blank-separated; '' when it goes on, `KEEP_AWAITED` when they are
            recorded.
        look: those of them that may have become ready; blank-separated.
    """

    task: str
    generation: str
    awaited: str
    look: str


class LentRow(msgspec.Struct, frozen=True, array_like=True):
    """The attempts of an agent that wait in a worker, by depth: `depth=number`, blank-separated."""

    agent: str
    counts: str


class Recorded(NamedTuple):
    """Reply to one `WaitRow`.

    Attributes:
        stale: the attempt lost its task.
        depth: number of tasks above it that wait; None if the wait was not recorded.
        looked: number of tasks of `look` that the call has looked at, from the first on.
        size: bytes of the record of the wait.
        cycle: the tasks from the awaited one to the parent, if the wait would never end.
    """

    stale: bool = False
    depth: int | None = None
    looked: int = 0
    size: int = 0
    cycle: Sequence[str] = ()


class LendReply(NamedTuple):
    """Reply of `lend`; `expects` tells per agent whether awaited tasks may arrive in its inbox."""

    recorded: list[Recorded]
    expects: list[bool]


def lend(keys: PoolKeys, *, worker: str, rows: Sequence[WaitRow], agents: Sequence[LentRow]) -> Call[LendReply]:
    """Record for which tasks the attempts of a worker wait, and the slots that they lend meanwhile."""

    def parse_one(reply: list[Any]) -> Recorded:
        if reply[0] == b"stale":
            return Recorded(stale=True)
        if reply[0] == b"cycle":
            return Recorded(cycle=[read_text(id_) for id_ in reply[1:]])
        return Recorded(depth=read_whole(reply[1]), looked=read_whole(reply[2]), size=read_whole(reply[3]))

    def parse(reply: list[Any]) -> LendReply:
        return LendReply([parse_one(one) for one in reply[: len(rows)]], [bool(one) for one in reply[len(rows) :]])

    args: Arguments = {"pool": keys.root, "worker": worker, "rows": pack_rows(rows), "agents": pack_rows(agents)}
    return Call("tasks/lend", args, parse)


class Abandoned(NamedTuple):
    """Reply of `abandon`.

    Attributes:
        removed: number of removed entries.
        dead: tasks that are dead letters now.
        died: id and generation of the tasks that continue.
    """

    removed: int
    dead: list[DeadByDeaths]
    died: list[tuple[str, str]]


def abandon(
    keys: PoolKeys,
    *,
    worker: str,
    agent: str,
    limit: int,
    max_deaths: Mapping[str, int],
    reason: str,
    dead_ttl_s: int,
    now_us: str = "",
) -> Call[Abandoned]:
    """Requeue the entries of a dead worker."""

    def parse(reply: list[Any]) -> Abandoned:
        texts = [read_text(part) for part in reply[2:]]
        return Abandoned(reply[0], _dead(reply[1]), list(zip(texts[::2], texts[1::2], strict=True)))

    args: Arguments = {
        "pool": keys.root,
        "worker": worker,
        "agent": agent,
        "limit": limit,
        "max_deaths": pack_rows(list(max_deaths.items())),
        "reason": reason,
        "dead_ttl_s": dead_ttl_s,
        "now_arg": now_us,
    }
    return Call("tasks/abandon", args, parse)


class Recovered(NamedTuple):
    """Reply of `recover`.

    Attributes:
        requeued: number of requeued entries.
        left: whether there may be more.
        filled: whether the inbox holds entries.
        dead: tasks that are dead letters now.
    """

    requeued: int
    left: bool
    filled: bool
    dead: list[DeadByDeaths]


def recover(
    keys: PoolKeys,
    *,
    agent: str,
    limit: int,
    every_ms: int,
    heartbeat_ms: int,
    dead_ttl_s: int,
    clean: bool = False,
    now_us: str = "",
) -> Call[Recovered]:
    """Requeue entries that no worker of the agent will finish."""
    args: Arguments = {
        "pool": keys.root,
        "agent": agent,
        "limit": limit,
        "every_ms": every_ms,
        "heartbeat_ms": heartbeat_ms,
        "dead_ttl_s": dead_ttl_s,
        "clean": "1" if clean else "0",
        "now_arg": now_us,
    }

    def parse(reply: list[Any]) -> Recovered:
        return Recovered(reply[0], bool(reply[1]), bool(reply[2]), _dead(reply[3]))

    return Call("tasks/recover", args, parse)


def trim_events(keys: PoolKeys, *, oldest: str) -> Call[int]:
    """Remove the entries before `oldest` from the stream of ended tasks, and return their number."""
    return Call("tasks/trim_events", {"pool": keys.root, "oldest": oldest}, int)


def drop_replies(keys: PoolKeys, *, rows: Sequence[tuple[str, str]]) -> Call[int]:
    """Remove up to 500 entries (client, id of the entry) from reply streams, and return their number."""
    return Call("tasks/drop_replies", {"pool": keys.root, "rows": pack_rows(rows)}, int)


class RepairReport(NamedTuple):
    """Number of rows that were checked, and the findings as (index of the row, code, whether repaired)."""

    rows: int
    found: list[tuple[int, str, bool]]


def repair(
    keys: PoolKeys,
    *,
    rows: Sequence[tuple[bytes, bytes]],
    repair: bool,
    max_wait_s: int,
    dead_ttl_s: int,
    now_us: str = "",
) -> Call[RepairReport]:
    """Check that up to 500 tasks (id, place) are where their records say; with `repair` move them there.

    Rows are bytes, because damaged ids need not be text.
    """

    def parse(reply: list[Any]) -> RepairReport:
        found = zip(*[iter(reply[1:])] * 3, strict=True)
        return RepairReport(reply[0], [(row - 1, read_text(code), bool(repaired)) for row, code, repaired in found])

    args: Arguments = {
        "pool": keys.root,
        "rows": pack_rows([(opaque(id_), opaque(place)) for id_, place in rows]),
        "repair": "1" if repair else "0",
        "max_wait_s": max_wait_s,
        "dead_ttl_s": dead_ttl_s,
        "now_arg": now_us,
    }
    return Call("tasks/repair", args, parse)


class CheckedEntries(NamedTuple):
    """The entry to continue behind (empty at the end), and findings (entry, code, whether repaired)."""

    after: str
    found: list[tuple[str, str, bool]]


def check_inbox(
    keys: PoolKeys, *, agent: str, after: str, limit: int, repair: bool, now_us: str = ""
) -> Call[CheckedEntries]:
    """Check a part of one inbox for entries that belong to no attempt; with `repair` remove them."""

    def parse(reply: list[Any]) -> CheckedEntries:
        found = zip(*[iter(reply[1:])] * 3, strict=True)
        return CheckedEntries(
            read_text(reply[0]), [(read_text(entry), read_text(code), bool(done)) for entry, code, done in found]
        )

    args: Arguments = {
        "pool": keys.root,
        "agent": agent,
        "after": after,
        "limit": limit,
        "repair": "1" if repair else "0",
        "now_arg": now_us,
    }
    return Call("tasks/check_inbox", args, parse)


def measure_bytes(keys: PoolKeys, *, ids: Sequence[bytes]) -> Call[dict[bytes, int]]:
    """Read what up to 500 tasks count in the bytes of their queues."""
    args: Arguments = {"pool": keys.root, "rows": pack_rows([(opaque(id_),) for id_ in ids])}
    return Call("tasks/measure_bytes", args, lambda reply: dict(zip(reply[::2], reply[1::2], strict=True)))


class DeadLine(NamedTuple):
    """Skill and error of one dead letter; `line` is the first line of its reason."""

    id: str
    ended_ms: int
    skill: str
    line: str


def list_dead(keys: PoolKeys, *, limit: int) -> Call[tuple[int, list[DeadLine]]]:
    """Return the number of dead letters, and what groups the newest ones, at most 1000."""

    def parse(reply: list[Any]) -> tuple[int, list[DeadLine]]:
        rows = zip(reply[1::4], reply[2::4], reply[3::4], reply[4::4], strict=True)
        return reply[0], [
            DeadLine(read_text(id_), read_whole(at), read_text(skill), line.decode(errors="replace"))
            for id_, at, skill, line in rows
        ]

    return Call("tasks/list_dead", {"pool": keys.root, "limit": limit}, parse)


def correct_bytes(keys: PoolKeys, *, changes: Mapping[bytes, int]) -> Call[int]:
    """Add to the bytes of up to 500 queues, and return those of the pool."""
    rows = pack_rows([(opaque(queue), change) for queue, change in changes.items()])
    return Call("tasks/correct_bytes", {"pool": keys.root, "rows": rows}, int)


def check_keys(
    keys: PoolKeys, *, rows: Sequence[tuple[bytes, str, int, bool]], repair: bool, now_us: str = ""
) -> Call[list[tuple[int, str, bool]]]:
    """Check up to 500 keys from outside: (suffix, type, seconds to live; 0: permanent, whether it guards).

    Returns (index of the row, code, whether repaired).
    """

    def parse(reply: list[Any]) -> list[tuple[int, str, bool]]:
        found = zip(*[iter(reply)] * 3, strict=True)
        return [(row - 1, read_text(code), bool(repaired)) for row, code, repaired in found]

    args: Arguments = {
        "pool": keys.root,
        "rows": pack_rows(
            [(opaque(suffix), type_, keep_s, 1 if guards else 0) for suffix, type_, keep_s, guards in rows]
        ),
        "repair": "1" if repair else "0",
        "now_arg": now_us,
    }
    return Call("tasks/check_keys", args, parse)
