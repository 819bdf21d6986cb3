"""Defines the exceptions of the project. A message says what happened, to which thing, and what to do.

OrchestratorError
├── ConfigError                    settings, files, command line (exit 78)
├── InvalidInput (ValueError)      invalid value; nothing was sent (exit 2)
├── NotFound (LookupError)         no such task, agent, worker (exit 3)
├── StoreError                     Redis did not run a command
│   ├── ServerUnavailable          no reply, or "try again later" (exit 69)
│   ├── ServerFull                 memory or disk is full; nothing was stored (exit 75)
│   ├── ServerRefused              refused for good: permissions, a wrong type, a bug (exit 1)
│   │   ├── DamagedData            holds what no program of the project writes (exit 1)
│   │   │   └── UnreadableValue (ValueError)   a value is no JSON, or nested too deep (exit 1)
│   │   └── TlsRefused             a certificate is missing or not accepted (exit 78)
│   └── FormatMismatch             this version is too old or too new for the pool (exit 78)
├── Fenced                         this attempt no longer owns its task (exit 1)
├── LeaseLapsed                    this attempt's lease has lapsed by the clock of its worker (exit 1)
├── LockError                      a lock was not acquired, or not kept
│   ├── LockBusy                   another owner holds it (exit 75)
│   │   └── Occupied               a task or an editor holds the session or agent alone (exit 75)
│   ├── LockLost                   it was lost before the end of its block (exit 1)
│   └── NotHeld                    it is not held, or no longer (exit 1)
├── WaitCycle                      the awaited task waits for this one (exit 1)
├── JoinTimeout (TimeoutError)     tasks that a task joins did not end in time (exit 1)
├── JoinChanged                    an attempt joins other tasks than an earlier one (exit 1)
├── JoinRefused                    a task cannot be joined (exit 4)
├── AskExpired (TimeoutError)      a question was not answered in time (exit 1)
├── QuestionChanged                an attempt asks another question than an earlier one (exit 1)
├── EffectUnknown                  an effect was begun, and its outcome is unknown (exit 1)
├── EffectChanged                  an effect has other arguments than in an earlier attempt (exit 1)
├── AnswerRefused                  the task does not ask this, or has another answer (exit 4)
├── WorkspaceError                 a workspace was not changed (exit 4)
│   ├── VersionConflict            a path has another version than expected
│   ├── StateConflict              a state machine is in another state than expected
│   └── WorkspaceFull              a limit was reached
├── ChatError                      a chat was not changed (exit 4)
│   ├── ChatConflict               a message has another version than expected, or is not the last
│   ├── ChatFull                   a limit was reached
│   └── TenantFull                 the chats of the tenant have reached a limit
├── SubmitRefused                  some tasks of a submit were not accepted (exit 4)
│   ├── KeyConflict                the key was used with another body
│   ├── QueueFull                  a limit was reached
│   ├── LaneBusy                   the lane has a task, and on_busy="reject"
│   ├── NoAgent                    no live agent has the skill, and require_agent is set
│   └── Stopped                    a stop or drain refuses new tasks
├── NotDurable                     a task was accepted, but not as durable as asked (exit 75)
├── CommandRefused                 a control command was not accepted (exit 4)
├── UpgradeUnfinished              a feature needs `orc upgrade finish` (exit 4)
├── UpgradeRefused                 older programs use the pool (exit 4)
├── ScheduleExists                 the schedule exists with another definition (exit 4)
├── BackupFailed                   a backup file could not be written (exit 1)
├── DamagedBackup                  a backup file cannot be restored (exit 1)
├── SecondaryStoreError            a second storage could not be read or changed (exit 1)
├── EmbeddingError                 an embedder failed; nothing was sent (exit 1)
├── PayloadError                   a value of the payload store was not read or written (exit 1)
│   ├── PayloadMissing             the store does not have it
│   ├── PayloadChanged             the store has another value
│   └── PayloadStoreUnavailable    the store does not answer, is full, or refuses (exit 69)
├── RestoreRefused                 the target of a restore is not empty (exit 4)
└── TaskError                      the task ended without a result
    ├── TaskFailed                 dead letter: failures, reject, deaths (exit 1)
    │   └── ChildFailed            the same of a child; its parent is not retried
    ├── TaskCancelled              (exit 1)
    └── TaskExpired                not started by `start_by`, or its result is gone (exit 1)

`StoreError.outcome_unknown` tells whether the command may have run. Callers repeat such a call only if its script is
safe to send twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.slots import parse_slot

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from orchestrator.core.durability import Durability


NAMED_PROGRAMS: Final = 20
"""Programs that a message names."""
MESSAGE_CHARS: Final = 16_384
"""Longest message; a longer one, which repeats a value of megabytes, loses its middle."""


class OrchestratorError(Exception):
    """Base of all errors of the project."""

    exit_code = 1

    def __init__(self, *args: object) -> None:
        super().__init__(*[_cut(arg) if isinstance(arg, str) else arg for arg in args])


def _cut(message: str) -> str:
    if len(message) <= MESSAGE_CHARS:
        return message
    half = MESSAGE_CHARS // 2
    return f"{message[:half]} … {message[-half:]}"


class ConfigError(OrchestratorError):
    """A setting, file or option is wrong or missing."""

    exit_code = 78


class InvalidInput(OrchestratorError, ValueError):
    """A value was refused; nothing was sent."""

    exit_code = 2


class NotFound(OrchestratorError, LookupError):
    """The named thing does not exist, or no longer."""

    exit_code = 3


class StoreError(OrchestratorError):
    """Redis did not run a command.

    Attributes:
        outcome_unknown: True when the command may have run although no reply arrived, or when a script failed after its
            start, so that Redis may have kept a part of its changes.
        task_ids: of a submit with unknown outcome, the tasks that may have arrived; check them with `orc.task(id)`.
        retry_within_s: longest useful pause before a retry, when a live server said that another one takes the command
            now or soon; it holds for the first failures in a row (`core.backoff.QUICK_RETRIES`). None: as long as the
            caller likes.
    """

    retry_within_s: float | None = None

    def __init__(self, message: str, *, outcome_unknown: bool = False, task_ids: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown
        self.task_ids: tuple[str, ...] = tuple(task_ids)


class ServerUnavailable(StoreError):
    """Redis did not answer, or asked to try again later."""

    exit_code = 69


class ServerFull(StoreError):
    """Redis refused a write because memory or disk is full; nothing was stored."""

    exit_code = 75


class ServerRefused(StoreError):
    """Redis refused the command and will refuse it again."""


class DamagedData(ServerRefused):
    """Redis holds something that no program of the project writes; the rest of the pool is not affected."""


class UnreadableValue(DamagedData, ValueError):
    """A stored value is no JSON, or nested too deep: another program wrote it."""


class TlsRefused(ServerRefused):
    """Redis and this program do not accept each other's certificates."""

    exit_code = 78


class FormatMismatch(StoreError):
    """The pool does not admit this version of the program, or has data of a format that this one does not read.

    Attributes:
        shut_out_of: root of the keys of a pool that does not admit this version; empty for data that it does not read.
    """

    exit_code = 78

    def __init__(self, message: str, *, shut_out_of: str = "") -> None:
        super().__init__(message)
        self.shut_out_of = shut_out_of


class Fenced(OrchestratorError):
    """An attempt that no longer owns its task tried to change something; nothing was changed.

    Attributes:
        owner: current owner, as a part of a sentence; empty if there is none, or it is unknown.
    """

    def __init__(self, task_id: str, owner: str = "") -> None:
        by_now = f"; the current owner is {owner}" if owner else ""
        super().__init__(f"this attempt no longer owns task {task_id}; its changes have no effect{by_now}")
        self.task_id = task_id
        self.owner = owner


class LeaseLapsed(OrchestratorError):
    """The lease of an attempt lapsed by the clock of its worker; another worker may run the task by now."""

    def __init__(self, task_id: str) -> None:
        super().__init__(f"the lease of task {task_id} has lapsed, because Redis confirmed no renewal in time")
        self.task_id = task_id


class LockError(OrchestratorError):
    """A lock was not acquired, or not kept.

    Attributes:
        lock: its name.
    """

    def __init__(self, lock: str, message: str) -> None:
        super().__init__(f"lock {lock!r} {message}")
        self.lock = lock


class LockBusy(LockError):
    """Another owner held the lock until the caller's waiting time was over.

    Attributes:
        holder: the owner; empty while the lock is being passed on.
        left_ms: time to live; a live owner renews it.
    """

    exit_code = 75

    def __init__(self, lock: str, holder: str, left_ms: int, waited_s: float = 0.0) -> None:
        by = f"is held by {holder}" if holder else "is being passed on"
        waited = f"; waited {waited_s:.1f} s" if waited_s else ""
        super().__init__(lock, f"{by}, {left_ms} ms left unless renewed{waited}; try again, or wait longer")
        self.holder = holder
        self.left_ms = left_ms


class Occupied(LockBusy):
    """An exclusive owner held the scope until the caller's waiting time was over; nothing was changed.

    Attributes:
        scope: `session:S`, `agent:A`, `user:U`, `domain:D` or `global`.
        deadlock: True if the owner waits for the caller's task, so that no wait can help.
    """

    def __init__(self, scope: str, holder: str, left_ms: int, waited_s: float = 0.0, *, deadlock: bool = False) -> None:
        super().__init__(scope, holder, left_ms, waited_s)
        if deadlock:
            advice = "which waits for this task: a deadlock; let the parent not wait, or use another session or lock="
        else:
            waited = f"; waited {waited_s:.1f} s" if waited_s else ""
            advice = f"{left_ms} ms left unless renewed{waited}; try again later, or wait longer"
        kind, _, name = scope.partition(":")
        held = f"{kind} {name!r}" if name else f"the {kind} scope"
        self.args = (f"{held} is held alone by {holder or 'the next waiter'}, {advice}; nothing was changed",)
        self.scope = scope
        self.deadlock = deadlock


class LockLost(LockError):
    """The lock was lost before its block ended; the block was cancelled before another owner could acquire it."""


class NotHeld(LockError):
    """The lock was released or lost before."""


class WorkspaceError(OrchestratorError):
    """A workspace was not changed."""

    exit_code = 4


class VersionConflict(WorkspaceError):
    """A path has another version than expected.

    Attributes:
        path: the path.
        version: its version; 0: it does not exist.
    """

    def __init__(self, path: str, version: int, expected: str) -> None:
        now = f"has version {version}" if version else "holds nothing"
        super().__init__(f"path {path!r} {now}, not {expected}; nothing was changed: read it again, then decide")
        self.path, self.version = path, version


class StateConflict(WorkspaceError):
    """A state machine is in another state than expected.

    Attributes:
        id: the state machine.
        state: its state, or None if it does not exist.
    """

    def __init__(self, id_: str, state: str | None, expected: str) -> None:
        now = f"is {state}" if state else "is not there"
        super().__init__(f"{id_!r} {now}, not {expected}; nothing was changed")
        self.id, self.state = id_, state


class WorkspaceFull(WorkspaceError):
    """A workspace has reached a limit.

    Attributes:
        what: items, bytes, parts, agents or inbox.
    """

    def __init__(self, session: str, what: str, setting: str, cap: int) -> None:
        super().__init__(
            f"the workspace of session {session!r} has reached {setting} = {cap}; nothing was changed: "
            "delete what is not needed, or raise the setting"
        )
        self.what = what


class SubjectErased(OrchestratorError):
    """The text is about a person who was erased less than 20 minutes ago; nothing was stored."""

    exit_code = 4

    def __init__(self) -> None:
        super().__init__(
            "the person that the text is about was erased less than 20 minutes ago; nothing was stored. Repeat it "
            "later if the text may be stored again"
        )


class MemoryFull(OrchestratorError):
    """A memory has reached a limit.

    Attributes:
        what: records or bytes.
    """

    def __init__(self, owner: str, what: str, setting: str, cap: int) -> None:
        super().__init__(
            f"the memory of {owner} has reached {setting} = {cap}; nothing was stored: "
            "delete or offload records, or raise the setting"
        )
        self.what = what


class ChatError(OrchestratorError):
    """A chat was not changed."""

    exit_code = 4


class ChatConflict(ChatError):
    """A message has another version than expected, or another message is the last."""

    def __init__(self, session: str, found: str) -> None:
        super().__init__(f"in the chat of session {session!r} {found}; nothing was changed: read it again, then decide")


class ChatFull(ChatError):
    """A chat, or its session, has reached a limit.

    Attributes:
        what: sources or fields.
    """

    def __init__(self, session: str, what: str, setting: str, cap: int) -> None:
        super().__init__(
            f"the chat of session {session!r} has reached {setting} = {cap}; nothing was changed: "
            "remove what is not needed, or raise the setting"
        )
        self.what = what


class TenantFull(ChatError):
    """The chats of a tenant have reached a limit.

    Attributes:
        what: bytes or chats.
    """

    def __init__(self, tenant: str, what: str, setting: str, cap: int) -> None:
        super().__init__(
            f"the chats of tenant {tenant!r} have reached {setting} = {cap}; nothing was changed: "
            "clear chats that are not needed, or raise the setting"
        )
        self.what = what


class SubmitRefused(OrchestratorError):
    """Some tasks were not accepted.

    Attributes:
        outcomes: one entry per submission, in order: a `TaskHandle` for each accepted task, an exception for each
            refused one.
    """

    exit_code = 4

    def __init__(self, message: str, outcomes: Sequence[object] = ()) -> None:
        super().__init__(message)
        self.outcomes: tuple[object, ...] = tuple(outcomes)


class NotDurable(OrchestratorError):
    """Tasks were accepted and will run, but the server did not confirm their durability in time.

    Attributes:
        handles: the handles of all tasks of the call, in order; `durability` of each tells what was reached.
        handle: the first of them that is less durable than asked.
        durability: what was asked and what was reached.
    """

    exit_code = 75

    def __init__(self, durability: Durability, handle: Any, handles: Sequence[Any], *, count: int = 1) -> None:
        tasks = f"task {handle.id} was" if count == 1 else f"{count} of {len(handles)} tasks were"
        super().__init__(
            f"{tasks} accepted without durability {durability.asked!r}: {durability.missed}; "
            "do not submit again without a key, and see `orc doctor`"
        )
        self.durability = durability
        self.handle = handle
        self.handles: tuple[Any, ...] = tuple(handles)


class KeyConflict(SubmitRefused):
    """An idempotency key was used before with another body."""

    def __init__(self, key: str, existing: str) -> None:
        super().__init__(
            f"key {key!r} already belongs to task {existing} with another body; "
            "use a new key or send the same arguments"
        )
        self.key = key
        self.existing = existing


class QueueFull(SubmitRefused):
    """A queue has reached its limit; the task was not stored.

    Attributes:
        queue: the queue, `lane:NAME`, `scheduled`, `pool`, `queues` and `schedules` (their number), or the slot of a
            stop, as `stop:session:101`, if the tasks that it holds back reach the limit together with the queue.
        cap: the limit: tasks, queues, schedules, or bytes if `held_bytes` is set.
        held_bytes: bytes of the tasks of the queue or of the pool that wait; None for other limits.
    """

    def __init__(self, queue: str, cap: int, held_bytes: int | None = None) -> None:
        slot = parse_slot(queue)
        if held_bytes is not None:
            what, setting = ("the pool", "pool") if queue == "pool" else (f"queue {queue}", "queue")
            text = (
                f"the tasks of {what} that wait hold {held_bytes} of at most {cap} bytes, and this task does "
                f"not fit; submit again later, add workers, or raise queue.max_{setting}_bytes"
            )
        elif queue == "queues":
            text = (
                f"the pool has its maximum of {cap} queues with tasks, and this task is for another one; submit again "
                "later, use fewer names of skills and agents, or raise queue.max_queues"
            )
        elif queue == "schedules":
            text = f"the pool has its maximum of {cap} schedules; delete some, or raise queue.max_schedules"
        elif slot.verb == "stop":
            text = (
                f"the queue and the tasks that the stop of {slot.scope} holds back reach the maximum of {cap} tasks; "
                "submit again after `orc start`, or raise queue.max_tasks"
            )
        else:
            text = (
                f"queue {queue} holds its maximum of {cap} tasks; submit again later, add workers, or raise "
                "queue.max_tasks"
            )
        super().__init__(text)
        self.queue = queue
        self.cap = cap
        self.held_bytes = held_bytes


class Stopped(SubmitRefused):
    """A stop, or the drain of a queue, refuses new tasks; the task was not stored.

    Attributes:
        slot: the stop or drain, as `stop:all`, `stop:session:101` or `drain:queue:skill:summarize`.
    """

    def __init__(self, slot: str) -> None:
        verb, kind, name = parse_slot(slot)
        if verb == "drain":
            text = f"queue {name} is drained: it takes no new tasks until `orc queues resume`"
        else:
            stopped = "everything" if kind == "all" else f"{kind} {name}"
            text = f"{stopped} is stopped and refuses new tasks until `orc start`"
        super().__init__(f"{text}; `orc control list` shows who gave it and why")
        self.slot = slot


class CommandRefused(OrchestratorError):
    """A control command was not accepted; nothing changed.

    Attributes:
        id: of the command.
        status: replayed, expired, early, stale, busy or ended.
    """

    exit_code = 4

    def __init__(self, id_: str, status: str, message: str) -> None:
        super().__init__(message)
        self.id = id_
        self.status = status


class UpgradeUnfinished(OrchestratorError):
    """A feature was refused because the pool still admits programs that would misread it; nothing was changed.

    Attributes:
        needed: the lowest format that understands the feature.
        floor: the lowest format that the pool admits.
    """

    exit_code = 4

    def __init__(self, feature: str, pool: str, *, needed: int, floor: int) -> None:
        super().__init__(
            f"{feature} needs programs of format {needed}, and pool {pool!r} still admits format {floor}; "
            "upgrade the programs that `orc upgrade status` lists, then type `orc upgrade finish`"
        )
        self.needed, self.floor = needed, floor


class UpgradeRefused(OrchestratorError):
    """The floor of the pool was not raised, because older programs use the pool, or may use it.

    Attributes:
        programs: those programs; empty if only unknown ones may use it.
    """

    exit_code = 4

    def __init__(self, format_: int, programs: Sequence[str]) -> None:
        if programs:
            named = ", ".join([*programs[:NAMED_PROGRAMS], *(["..."] if len(programs) > NAMED_PROGRAMS else [])])
            message = (
                f"{len(programs)} programs are older than format {format_}: {named}; nothing was changed: upgrade or "
                "stop them, then type `orc upgrade finish` again"
            )
        else:
            message = (
                f"clients and standby supervisors older than format {format_} are unknown, because the Redis user may "
                "not run CLIENT LIST; nothing was changed: allow it, or upgrade or stop them all, then type "
                "`orc upgrade finish --ignore-connections`"
            )
        super().__init__(message)
        self.programs: tuple[str, ...] = tuple(programs)


class ScheduleExists(OrchestratorError):
    """A schedule with this name has another definition; nothing was changed."""

    exit_code = 4

    def __init__(self, name: str, says: str) -> None:
        super().__init__(
            f"schedule {name!r} exists and has another definition ({says}); replace it, or use another name"
        )
        self.name = name


class BackupFailed(OrchestratorError):
    """A backup file could not be written; no part of it is left."""


class DamagedBackup(OrchestratorError):
    """A backup file is damaged, incomplete, or of a newer version; the message names the place."""


class SecondaryStoreError(OrchestratorError):
    """A second storage could not be read or changed, as when its disk is full; a repeat is safe."""


class EmbeddingError(OrchestratorError):
    """An embedder failed, or did not return what its protocol asks for; nothing was sent to Redis.

    Attributes:
        embedder: its name.
        count: number of texts.
    """

    def __init__(self, embedder: str, count: int, what: str) -> None:
        texts = "one text" if count == 1 else f"{count} texts"
        super().__init__(
            f"embedder {embedder!r} did not embed {texts}: {what}; nothing was sent to Redis: repeat the call when it "
            "works, or give the vectors as Record.embedding"
        )
        self.embedder, self.count = embedder, count


class PayloadError(OrchestratorError):
    """A value of the payload store could not be read or written."""


class PayloadMissing(PayloadError):
    """The payload store does not have a value.

    Attributes:
        name: of the object.
    """

    def __init__(self, name: str, address: str) -> None:
        super().__init__(
            f"the payload store {address} does not have {name}: it was deleted, or this process uses another store; "
            "restore the object from a backup of the store, or submit the task again"
        )
        self.name = name


class PayloadChanged(PayloadError):
    """The payload store has another value than was stored; it is not used.

    Attributes:
        name: of the object.
    """

    def __init__(self, name: str, address: str, how: str) -> None:
        super().__init__(
            f"{name} in the payload store {address} was changed after it was stored: {how}; "
            "restore the object from a backup of the store, or submit the task again"
        )
        self.name = name


class PayloadStoreUnavailable(PayloadError):
    """The payload store does not answer, is full, refuses, or is not configured in this process."""

    exit_code = 69


class RestoreRefused(OrchestratorError):
    """The target of a restore holds data, programs use it, or a later run of the restore has replaced this one."""

    exit_code = 4


class WaitCycle(OrchestratorError):
    """A handler awaits a task that waits for the handler's own task, so that neither could go on.

    Attributes:
        task_id: the task of the handler.
        path: the awaited task, each task that the one before it waits for, and the handler's task.
    """

    def __init__(self, task_id: str, path: Sequence[str]) -> None:
        between = "".join(f"task {id_}, which waits for " for id_ in path[:-1])
        super().__init__(
            f"task {task_id} would wait for itself: it awaits {between}this task; "
            "submit without awaiting, or give the child another key or lane"
        )
        self.task_id, self.path = task_id, list(path)


class JoinTimeout(OrchestratorError, TimeoutError):
    """Too few of the tasks that a task joins ended by the deadline, and there is no default.

    Attributes:
        task_ids: the first of these tasks.
        count: number of them.
    """

    def __init__(self, task_ids: Sequence[str], count: int) -> None:
        more = f" and {count - len(task_ids)} more" if count > len(task_ids) else ""
        super().__init__(
            f"too few of {count} tasks ended in time: {', '.join(task_ids)}{more}; give `join` a later deadline=, or a "
            "default="
        )
        self.task_ids, self.count = list(task_ids), count


class JoinChanged(OrchestratorError):
    """An attempt joins other tasks than the attempt for which this join was over.

    Attributes:
        number: of the join in its task, from 1.
    """

    def __init__(self, number: int) -> None:
        super().__init__(
            f"join {number} of this attempt has other tasks than in an earlier attempt, for which it was over; a "
            "handler must submit and join the same tasks in the same order each time it runs"
        )
        self.number = number


class JoinRefused(OrchestratorError):
    """A task cannot be joined.

    Attributes:
        task_id: that task.
    """

    exit_code = 4

    def __init__(self, task_id: str, reason: str) -> None:
        super().__init__(f"task {task_id} cannot be joined: {reason}")
        self.task_id = task_id


class AskExpired(OrchestratorError, TimeoutError):
    """A question was not answered by its deadline, and has no default.

    Attributes:
        question: its text.
    """

    def __init__(self, question: str) -> None:
        super().__init__(f"not answered in time: {question}; give `ask` a later deadline=, or a default=")
        self.question = question


class QuestionChanged(OrchestratorError):
    """An attempt asks another question than an earlier attempt asked at this place.

    Attributes:
        question: text of this attempt.
        earlier: text of the earlier attempt.
    """

    def __init__(self, number: int, question: str, earlier: str) -> None:
        super().__init__(
            f"question {number} of this attempt is {question!r}, and an earlier attempt asked {earlier!r} there; "
            "a handler must ask the same in the same order each time it runs"
        )
        self.question, self.earlier = question, earlier


class ProviderUnavailable(OrchestratorError):
    """No call of a provider may begin now; a handler that lets it pass is snoozed, and no attempt is counted.

    Attributes:
        provider: the limit.
        state: `throttled`, `quota`, `broken`, `trying` (another call tries a broken provider), or the limit that has
            no room: `requests`, `tokens`, `at_once`.
        until: when it ends, by the clock of Redis; None if that is unknown, or if an operator must clear it.
        told_by: who told it; empty for a limit without room.
        delay_s: seconds after which the task runs again, if `until` is None.
    """

    def __init__(
        self,
        provider: str,
        state: str,
        until: datetime | None,
        told_by: str = "",
        reason: str = "",
        *,
        delay_s: float = 1.0,
    ) -> None:
        end = "" if until is None else f" until {until.isoformat(timespec='seconds')}"
        match state:
            case "throttled":
                text = f"is throttled{end}"
            case "quota":
                text = f"has no quota{end or f'; `orc limits clear {provider}` ends this'}"
            case "broken":
                text = f"failed several times in a row, and gets no call{end}"
            case "trying":
                text = "failed several times in a row, and another call tries it"
            case _:
                text = f"has no room for another call ({state})"
        told = f", told by {told_by}" if told_by else ""
        super().__init__(f"provider {provider!r} {text}{told}{f': {reason}' if reason else ''}")
        self.provider, self.state, self.until, self.told_by = provider, state, until, told_by
        self.delay_s = delay_s


class EffectUnknown(OrchestratorError):
    """An effect was begun, its outcome is unknown, and the task must not begin it again.

    Attributes:
        effect: its name.
        worker: the worker that began it.
        begun_at: when.
    """

    def __init__(self, effect: str, worker: str, begun_at: datetime, decided_by: str = "") -> None:
        decided = f"; {decided_by} decided to end the task" if decided_by else ""
        super().__init__(
            f"effect {effect!r} was begun by worker {worker} at {begun_at.isoformat(timespec='seconds')} and its "
            f"outcome is unknown{decided}; find out whether it was done before you repeat it"
        )
        self.effect, self.worker, self.begun_at = effect, worker, begun_at


class EffectChanged(OrchestratorError):
    """An attempt passes other arguments to an effect than the attempt that began it.

    Attributes:
        effect: its name.
    """

    def __init__(self, effect: str) -> None:
        super().__init__(
            f"effect {effect!r} was begun with other arguments; give another name to another effect, or pass the same "
            "arguments each time the handler runs"
        )
        self.effect = effect


class BudgetExhausted(OrchestratorError):
    """A budget of the task has no room for a call.

    A handler may catch it, use `ctx.spend(..., last=True)` once for a last call, and return what it has. If the handler
    lets it pass, the task becomes a dead letter with the reason `budget`.

    Attributes:
        budget: its name.
        reason: `room`, `overspent` (more than the limit is spent or held), `above` (the call needs more than it),
            `last` (more than 5 % of a limit, or nothing of these is left), `used` (the task has had its last call),
            `undefined` or `damaged`.
    """

    def __init__(self, budget: str, reason: str, said: str) -> None:
        super().__init__(said)
        self.budget, self.reason = budget, reason


class AnswerRefused(OrchestratorError):
    """An answer was refused: the task does not ask this question, or no longer, or has another answer."""

    exit_code = 4


class LaneBusy(SubmitRefused):
    """A lane is busy, and the task was submitted with `on_busy="reject"`; the task was not stored.

    Attributes:
        task_id: task in the lane; `orc.task(task_id)` returns its handle.
    """

    def __init__(self, lane: str, task_id: str) -> None:
        super().__init__(
            f"lane {lane!r} is busy with task {task_id}; submit again when that has ended, or let the new one wait "
            'with on_busy="enqueue"'
        )
        self.lane = lane
        self.task_id = task_id


class NoAgent(SubmitRefused):
    """No live agent takes tasks of the skill, and `require_agent` is set; nothing was stored.

    Attributes:
        skill: that no live agent has.
        agent: that the task is addressed to, or None.
    """

    def __init__(self, skill: str, agent: str | None, absence: str) -> None:
        super().__init__(
            f"{absence}; nothing was submitted, because `require_agent` is set: correct the name, or start a worker "
            "with `orc worker run MODULE:AGENT`"
        )
        self.skill, self.agent = skill, agent


class TaskError(OrchestratorError):
    """The task ended without a result."""

    def __init__(self, task_id: str, message: str) -> None:
        super().__init__(f"task {task_id} {message}")
        self.task_id = task_id


class TaskFailed(TaskError):
    """The task became a dead letter.

    Attributes:
        reason: one line: the last exception, the text of a `Reject`, or `deaths`.
        errors: traceback text of each failed attempt, oldest first.
    """

    def __init__(self, task_id: str, reason: str, errors: Sequence[str] = ()) -> None:
        super().__init__(task_id, f"failed: {reason}")
        self.reason = reason
        self.errors: tuple[str, ...] = tuple(errors)


class ChildFailed(TaskFailed):
    """A child became a dead letter. An attempt that lets it pass is not retried, because the child would stay dead.

    Attributes are those of `TaskFailed`, of the child.
    """


class TaskCancelled(TaskError):
    """The task was cancelled before it produced a result."""

    def __init__(self, task_id: str, reason: str) -> None:
        super().__init__(task_id, f"was cancelled: {reason}" if reason else "was cancelled")
        self.reason = reason


class TaskExpired(TaskError):
    """The task did not start in time, or its record is gone."""
