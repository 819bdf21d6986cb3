"""Every exception the project raises, in one tree. A message says what happened, to what, and what to do.

OrchestratorError
├── ConfigError                    settings, files, command line (exit 78)
├── InvalidInput (ValueError)      refused by validation; nothing was sent (exit 2)
├── NotFound (LookupError)         no such task, agent, worker (exit 3)
├── StoreError                     Redis did not do what was asked
│   ├── ServerUnavailable          no answer, or "try again later" (exit 69)
│   ├── ServerFull                 out of memory, or a disk that is full: refused, nothing was stored (exit 75)
│   ├── ServerRefused              Redis says no and will say no again: rights, a wrong type, a bug (exit 1)
│   └── FormatMismatch             another version wrote the data (exit 78)
├── Fenced                         this attempt no longer owns its task (exit 1)
├── LockError                      a lock was not got, or not kept
│   ├── LockBusy                   somebody else has it (exit 75)
│   ├── LockLost                   it could not be kept until the end (exit 1)
│   └── NotHeld                    it is not held, or not any more (exit 1)
├── AskExpired (TimeoutError)      nobody answered the question of a handler in time (exit 1)
├── QuestionChanged                a later attempt asks something else than an earlier one (exit 1)
├── AnswerRefused                  the task does not ask that, or has another answer (exit 4)
├── WorkspaceError                 a change of a workspace that was not made (exit 4)
│   ├── VersionConflict            a path has another version than was expected
│   ├── StateConflict              a state machine is in another state than was expected
│   └── WorkspaceFull              a cap was reached
├── SubmitRefused                  some tasks of a submit were not accepted (exit 4)
│   ├── KeyConflict                same key, another body
│   ├── QueueFull                  a cap was reached
│   ├── LaneBusy                   on_busy="reject", and the lane has a task
│   └── Stopped                    an operator refuses new tasks
├── CommandRefused                 a control command was not accepted (exit 4)
├── ScheduleExists                 a schedule of this name says something else (exit 4)
└── TaskError                      the task ended without a result
    ├── TaskFailed                 dead letter: failures, reject, deaths (exit 1)
    ├── TaskCancelled              (exit 1)
    └── TaskExpired                did not start by `start_by`, or its result is gone (exit 1)

`StoreError.outcome_unknown` tells whether the command may have run. Nothing above the store repeats such a call
unless the script behind it is safe to send twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.core.slots import parse_slot

if TYPE_CHECKING:
    from collections.abc import Sequence


class OrchestratorError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = 1


class ConfigError(OrchestratorError):
    """A setting, file or option is wrong or missing."""

    exit_code = 78


class InvalidInput(OrchestratorError, ValueError):
    """A value was refused by validation; nothing was sent."""

    exit_code = 2


class NotFound(OrchestratorError, LookupError):
    """The named thing does not exist (any more)."""

    exit_code = 3


class StoreError(OrchestratorError):
    """Redis did not do what was asked.

    Attributes:
        outcome_unknown: True when the command may have run although no answer came.
    """

    outcome_unknown = False


class ServerUnavailable(StoreError):
    """Redis did not answer, or asked to try again later.

    Attributes:
        task_ids: of a submit whose outcome is unknown, the tasks that may have arrived; `orc.task(id)` tells.
    """

    exit_code = 69

    def __init__(self, message: str, *, outcome_unknown: bool = False, task_ids: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown
        self.task_ids: tuple[str, ...] = tuple(task_ids)


class ServerFull(StoreError):
    """Redis refused a write for want of memory or disk; nothing was stored."""

    exit_code = 75


class ServerRefused(StoreError):
    """Redis refused the command and will refuse it again."""


class FormatMismatch(StoreError):
    """Another version of this program wrote the data in Redis, in a format that this one does not read."""

    exit_code = 78


class Fenced(OrchestratorError):
    """An attempt whose task was taken away, or has ended, tried to change something; nothing was changed.

    Attributes:
        owner: who may change it now, as a sentence part; empty when nobody does, or nobody knows.
    """

    def __init__(self, task_id: str, owner: str = "") -> None:
        by_now = f"; the present owner is {owner}" if owner else ""
        super().__init__(f"this attempt no longer owns task {task_id}; what it does changes nothing any more{by_now}")
        self.task_id = task_id
        self.owner = owner


class LockError(OrchestratorError):
    """A lock was not got, or not kept.

    Attributes:
        lock: its name.
    """

    def __init__(self, lock: str, message: str) -> None:
        super().__init__(f"lock {lock!r} {message}")
        self.lock = lock


class LockBusy(LockError):
    """Somebody else has the lock, and had it until the caller's waiting time was over.

    Attributes:
        holder: who has it; empty when it was just being handed on.
        left_ms: it lapses then unless its holder renews it, which it does while it lives.
    """

    exit_code = 75

    def __init__(self, lock: str, holder: str, left_ms: int, waited_s: float = 0.0) -> None:
        by = f"is held by {holder}" if holder else "is being handed on"
        waited = f"; waited {waited_s:.1f} s" if waited_s else ""
        super().__init__(lock, f"{by}, {left_ms} ms left unless renewed{waited}; try again, or wait longer")
        self.holder = holder
        self.left_ms = left_ms


class LockLost(LockError):
    """The lock could not be kept until the end of what it guards; that was cancelled before another could have it."""


class NotHeld(LockError):
    """The lock was given up or lost before."""


class WorkspaceError(OrchestratorError):
    """A change of a workspace was not made; nothing of it was."""

    exit_code = 4


class VersionConflict(WorkspaceError):
    """A path has another version than was expected.

    Attributes:
        path: which one.
        version: the one it has; 0: nothing is there.
    """

    def __init__(self, path: str, version: int, expected: str) -> None:
        now = f"has version {version}" if version else "holds nothing"
        super().__init__(f"path {path!r} {now}, not {expected}; nothing was changed: read it again, then decide")
        self.path, self.version = path, version


class StateConflict(WorkspaceError):
    """A state machine is in another state than was expected.

    Attributes:
        id: which one.
        state: the one it is in; None: it is not there.
    """

    def __init__(self, id_: str, state: str | None, expected: str) -> None:
        now = f"is {state}" if state else "is not there"
        super().__init__(f"{id_!r} {now}, expected was {expected}; nothing was changed")
        self.id, self.state = id_, state


class WorkspaceFull(WorkspaceError):
    """A workspace has reached a cap.

    Attributes:
        what: items, bytes, parts, agents or inbox.
    """

    def __init__(self, session: str, what: str, setting: str, cap: int) -> None:
        super().__init__(
            f"the workspace of session {session!r} has reached {setting} = {cap}; nothing was changed: "
            "delete what is not needed, or raise the setting"
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


class KeyConflict(SubmitRefused):
    """An idempotency key was used before for another body."""

    def __init__(self, key: str, existing: str) -> None:
        super().__init__(
            f"key {key!r} already belongs to task {existing} with another body; "
            "use a new key or send the same arguments"
        )
        self.key = key
        self.existing = existing


class QueueFull(SubmitRefused):
    """A queue has reached its cap; nothing was stored for this task."""

    def __init__(self, queue: str, cap: int) -> None:
        super().__init__(
            f"queue {queue} holds its maximum of {cap} tasks; submit again later, add workers, or raise queue.max_tasks"
        )
        self.queue = queue
        self.cap = cap


class Stopped(SubmitRefused):
    """A stop, or the drain of a queue, refuses new tasks; nothing was stored for this task.

    Attributes:
        slot: what refuses, as `stop:all`, `stop:session:101` or `drain:queue:skill:summarize`.
    """

    def __init__(self, slot: str) -> None:
        verb, kind, name = parse_slot(slot)
        if verb == "drain":
            text = f"queue {name} is drained: it takes no new tasks until `orc queues resume`"
        else:
            stopped = "everything" if kind == "all" else f"{kind} {name}"
            text = f"{stopped} is stopped and refuses new tasks until `orc start`"
        super().__init__(f"{text}; `orc control list` says who asked for it and why")
        self.slot = slot


class CommandRefused(OrchestratorError):
    """A control command was not accepted; nothing changed.

    Attributes:
        id: of the command.
        status: replayed, expired, early, stale or busy.
    """

    exit_code = 4

    def __init__(self, id_: str, status: str, message: str) -> None:
        super().__init__(message)
        self.id = id_
        self.status = status


class ScheduleExists(OrchestratorError):
    """A schedule of this name says something else; nothing was changed."""

    exit_code = 4

    def __init__(self, name: str, says: str) -> None:
        super().__init__(f"schedule {name!r} exists and says something else ({says}); replace it, or take another name")
        self.name = name


class AskExpired(OrchestratorError, TimeoutError):
    """Nobody answered a question by its deadline, and it has no default.

    Attributes:
        question: what was asked.
    """

    def __init__(self, question: str) -> None:
        super().__init__(f"nobody answered in time: {question}; give `ask` a later deadline=, or a default=")
        self.question = question


class QuestionChanged(OrchestratorError):
    """An attempt asks something else than an earlier one asked at this place.

    Attributes:
        question: what this attempt asks.
        earlier: what the earlier one asked.
    """

    def __init__(self, number: int, question: str, earlier: str) -> None:
        super().__init__(
            f"question {number} of this attempt is {question!r}, and an earlier attempt asked {earlier!r} there; "
            "a handler must ask the same in the same order each time it runs"
        )
        self.question, self.earlier = question, earlier


class AnswerRefused(OrchestratorError):
    """An answer that was not taken: the task does not ask that (any more), or has another answer."""

    exit_code = 4


class LaneBusy(SubmitRefused):
    """A lane has a task, and the new one was submitted with `on_busy="reject"`; nothing was stored for it.

    Attributes:
        task_id: the task that the lane is busy with; `orc.task(task_id)` is a handle for it.
    """

    def __init__(self, lane: str, task_id: str) -> None:
        super().__init__(
            f"lane {lane!r} is busy with task {task_id}; submit again when that has ended, or let the new one wait "
            'with on_busy="enqueue"'
        )
        self.lane = lane
        self.task_id = task_id


class TaskError(OrchestratorError):
    """The task ended without a result."""

    def __init__(self, task_id: str, message: str) -> None:
        super().__init__(f"task {task_id} {message}")
        self.task_id = task_id


class TaskFailed(TaskError):
    """The task became a dead letter.

    Attributes:
        reason: one line: the exception of the last attempt, the text of a `Reject`, or `deaths`.
        errors: the traceback text of each failed attempt, oldest first.
    """

    def __init__(self, task_id: str, reason: str, errors: Sequence[str] = ()) -> None:
        super().__init__(task_id, f"failed: {reason}")
        self.reason = reason
        self.errors: tuple[str, ...] = tuple(errors)


class TaskCancelled(TaskError):
    """The task was cancelled before it produced a result."""

    def __init__(self, task_id: str, reason: str) -> None:
        super().__init__(task_id, f"was cancelled: {reason}" if reason else "was cancelled")
        self.reason = reason


class TaskExpired(TaskError):
    """The task did not start in time, or its record is gone."""
