# Generated from the asynchronous classes by `make generate`; do not edit.

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import date, datetime
from typing import Any, Generic, Literal, Self, TypeVar, Unpack, overload

from orchestrator.agents.skills import SkillInfo, SkillSummary
from orchestrator.agents.stats import AttemptStats, By
from orchestrator.boards.boards import Standing
from orchestrator.chat.accounts import ChatUsage
from orchestrator.chat.model import AppendedMessages, ChatChange, ChatHead, Hydration, Message, Position, StoredMessage
from orchestrator.client.flow_handle import Failed
from orchestrator.client.session import SessionEvent
from orchestrator.client.shared_config import ConfigChange
from orchestrator.control.commands import Command
from orchestrator.control.receipts import Receipts
from orchestrator.core.durability import Durability
from orchestrator.core.durations import Duration
from orchestrator.core.settings import Settings
from orchestrator.embedding.model import Embedder
from orchestrator.erasure.model import ErasureReport
from orchestrator.extraction.model import Extraction
from orchestrator.limits.limits import Decision
from orchestrator.locks.model import LockInfo
from orchestrator.memory.forgetting import ForgetPreview, Forgotten, RecordFilter
from orchestrator.memory.model import (
    Json,
    MemoryQuery,
    Recall,
    Record,
    RecordAccess,
    RecordChange,
    SimilarRecords,
    StoredRecord,
    Tier,
    Unset,
    ValueChange,
)
from orchestrator.memory.tiers import TransitionReport
from orchestrator.memory.upkeep import MemoryStats, SweepReport
from orchestrator.schedules.model import Schedule
from orchestrator.schedules.plans import ScheduleOptions
from orchestrator.secondary.model import SecondaryStore
from orchestrator.simulations.simulation import StateRef
from orchestrator.tasks.effects import TaskEffect
from orchestrator.tasks.ends import EndedTask
from orchestrator.tasks.families import SessionSummary
from orchestrator.tasks.flows import Flow, FlowTask
from orchestrator.tasks.model import AnswerStatus, CancelStatus, OutputChunk, RequeueStatus, TaskEvent, TaskState
from orchestrator.tasks.options import TaskOptions
from orchestrator.tasks.output import Place
from orchestrator.tasks.queries import TaskOutcome, TaskRow
from orchestrator.tasks.selecting import TaskFilter, TaskPage
from orchestrator.tasks.submission import Arguments, NamedSkill, Submission, TypedSkill
from orchestrator.why.model import TaskInfo, TaskStatus
from orchestrator.workspace.model import (
    AgentEntry,
    Appended,
    Applied,
    Counted,
    Delete,
    Directive,
    LogEntry,
    Patched,
    Replay,
    Snapshot,
    StateEntry,
    Versioned,
    WorkspaceEvent,
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
M = TypeVar("M")
__all__ = [
    "Admin",
    "Agents",
    "Board",
    "BoardView",
    "Chat",
    "FlowHandle",
    "Lease",
    "Limits",
    "Locks",
    "Memory",
    "Orchestrator",
    "Schedules",
    "Scratch",
    "Sent",
    "SessionHandle",
    "SharedConfig",
    "Simulation",
    "StateMemory",
    "Subjects",
    "TaskHandle",
    "Tasks",
    "Workspace",
    "WorkspaceView",
]

class Orchestrator:
    """Submits tasks and waits for their results.

    Args:
        url: `redis://`, `rediss://` or `unix://`; by default the settings, else a running embedded server near by.
        pool: dispatch domain.
        prefix: `app:env:tenant`, the first part of every key.
        settings: all settings at once, in place of files and environment.

    Use it as `with Orchestrator() as orc:`, or call `open` and `close`, which need not be in the same task.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        pool: str | None = None,
        prefix: str | None = None,
        settings: Settings | None = None,
    ) -> None: ...
    def open(self) -> Self:
        """Connect.

        Raises:
            ConfigError, StoreError: no server is named, or it does not answer.
            OrchestratorError: it is open already, or `close` was called meanwhile.
        """

    def close(self) -> None:
        """Close the connections; tasks go on, results stay readable by their ids.

        Calls that still wait raise `OrchestratorError`.
        """

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    @overload
    def submit(self, skill: TypedSkill[T], args: Arguments = None, **options: Unpack[TaskOptions]) -> TaskHandle[T]: ...
    @overload
    def submit(
        self, skill: str | NamedSkill, args: Arguments = None, **options: Unpack[TaskOptions]
    ) -> TaskHandle[Any]:
        """Submit one task. Concurrent calls share a round trip.

        Warns with `NoAgentWarning`, once per skill and process, when no live agent has the skill.

        Args:
            skill: name of the skill, or the `Skill` itself.
            args: JSON object of its arguments, or a pydantic model.
            options: the [options of a task](../task-options.md).

        Raises:
            InvalidInput: an argument is invalid; nothing was sent.
            KeyConflict, QueueFull, LaneBusy, Stopped: the server refused the task; nothing was stored.
            NoAgent: `require_agent` is set, and no live agent has the skill; nothing was sent.
            NotDurable: the task was accepted, but its durability was not reached in time.
            ConfigError: the server cannot reach the durability; nothing was stored.
            PayloadStoreUnavailable: the arguments are large, and the payload store did not take them; nothing was sent.
            FormatMismatch: the pool no longer admits this version of the program.
            ServerUnavailable: Redis did not answer, even after retries. If `outcome_unknown` is true, the task may have
                been stored; `task_ids` has its id.
            ServerRefused: Redis refused a command of the submit. If `outcome_unknown` is true, as above.
        """

    def submit_many(self, tasks: Iterable[Submission]) -> list[TaskHandle[Any]]:
        """Submit many tasks in chunks, two on their way at a time; all are accepted or `SubmitRefused` tells of each.

        Raises:
            InvalidInput: one is malformed; nothing was sent.
            NoAgent: one has `require_agent`, and no live agent has its skill; nothing was sent.
            FormatMismatch: the pool no longer admits this version of the program.
            SubmitRefused: some were not accepted; `outcomes` has a handle or an exception for each, in order. That of a
                task that may have arrived is a `ServerUnavailable` or a `ServerRefused` whose `outcome_unknown` is
                true. That of a task that was accepted, but not as durable as asked, is a `NotDurable`.
            NotDurable: all were accepted, and some are not as durable as asked; `handles` has all of them.
            ConfigError: the server cannot reach their durability; nothing was stored.
            ServerUnavailable: none was, because Redis did not answer; `task_ids` are those that may have arrived.
        """

    def submit_flow(self, flow: Flow, *, key: str | None = None) -> FlowHandle:
        """Submit the tasks of a flow with one call: all of them are accepted, or none.

        Args:
            flow: up to 500 tasks, which run after one another.
            key: a second submit with the same key and the same flow returns the same tasks. The first task gets this
                key, and the others a name behind it: `order-7`, `order-7/judge`.

        Raises:
            InvalidInput: the flow has a cycle, or an argument is invalid; nothing was sent.
            SubmitRefused: a task was refused, so that nothing was stored; or tasks of an earlier submit with this key
                are gone. `outcomes` has the reason or the handle of each, in the order in which they were added.
            KeyConflict: a task or another flow was submitted with this key.
            NoAgent: a task has `require_agent`, and no live agent has its skill; nothing was sent.
            NotDurable: all were accepted, and are not as durable as `queue.durability`; `handles` has all of them.
            PayloadStoreUnavailable: large arguments were not stored; nothing was sent.
            UpgradeUnfinished: the pool admits programs that do not know flows.
            ServerUnavailable, ServerRefused: as `submit_many`.
        """

    @property
    def admin(self) -> Admin:
        """The control commands: stop, start, pause, limits, workers, ..."""

    def locks(self, scope: str = "pool", *, owner: str | None = None) -> Locks:
        """Named locks of a session, of an agent, or of the pool: `with orc.locks("session:101").hold("doc"):`.

        Held locks are renewed until this client is closed.

        Args:
            scope: `session:S`, `agent:A`, `user:U`, `domain:D`, `global` or `pool`.
            owner: who holds them, for people; host and process by default.

        Raises:
            InvalidInput: that is no scope.
        """

    def session(self, session: str) -> SessionHandle:
        """Return a session, whose events can be followed: `for event in orc.session("chat-7").events():`.

        Args:
            session: its id.

        Raises:
            InvalidInput: that is no session.
        """

    @property
    def limits(self) -> Limits:
        """Limits by name: may something happen now? Shared by all programs with the same prefix."""

    @property
    def agents(self) -> Agents:
        """Published states of agents, and the agents that are alive."""

    @property
    def subjects(self) -> Subjects:
        """People that texts are about: where the texts are, and their erasure."""

    def skills(self) -> list[SkillSummary]:
        """Return the skills of the live agents by name."""

    def skill(self, name: str) -> SkillInfo:
        """Return one skill with its versions: docstring, JSON schemas of arguments and result.

        Raises:
            NotFound: no worker of the last week has it.
        """

    def stats(self, *, within: Duration = 3600, by: By = "both") -> list[AttemptStats]:
        """Return how many attempts ended in the last minutes, and how long they waited and ran.

        Workers send their numbers with the heartbeat. A day is kept.

        Args:
            within: how far back, seconds or timedelta; rounded up to whole minutes.
            by: per `agent`, per `skill`, or `both`.

        Raises:
            InvalidInput: `within` is 0 or above a day, or `by` is not known.
        """

    @property
    def tasks(self) -> Tasks:
        """Lists of tasks: of a session, of a parent, of the pool; the sessions; the tasks that ended."""

    @property
    def config(self) -> SharedConfig:
        """Configuration values that are published while programs run; `orc.admin.publish_config` changes them."""

    @overload
    def board(self, name: None = None, *, date: date | None = None) -> BoardView: ...
    @overload
    def board(self, name: str, *, date: date | None = None) -> Board:
        """Return the board of a day: `orc.board().top(3)` returns the agents with the most tasks today.

        Args:
            name: of a board of your own, any text of up to 256 bytes; by default the tasks of the pool's agents that
                ended with a result.
            date: a day in UTC; by default today, by the server's clock.

        Raises:
            InvalidInput: that is no name or no date.
        """

    def workspace(self, session: str) -> WorkspaceView:
        """Return the shared state of a session. Reads need no lock; `edit()` takes one.

        Args:
            session: any text of up to 256 bytes.

        Raises:
            InvalidInput: that is no session.
        """

    def simulation(self, simulation: str) -> Simulation:
        """Return the indices of a simulation: its agents, their states, and buffers of its entities.

        Args:
            simulation: any text of up to 256 bytes.

        Raises:
            InvalidInput: that is no id.
        """

    def memory(
        self, agent: str | None = None, *, user: str | None = None, domain: str | None = None, global_: bool = False
    ) -> Memory:
        """Return the memory of an agent, a user, a domain, or of all programs of the prefix: one of these.

        Changes take no lock; those of `under(lease)` present one.

        Args:
            agent: name of the agent.
            user: id of the user, any text of up to 256 bytes. The records are about that user, so that
                `orc.subjects.erase(user, ...)` removes them.
            domain: name of the domain, any text of up to 256 bytes.
            global_: True for the global memory, which all programs of the prefix share.

        Raises:
            InvalidInput: none or several are given, or that is no name.
        """

    def chat(self, session: str, source: str = "main") -> Chat:
        """Return a chat of a session: `orc.chat("s-1").append([{"role": "user", "content": "Hello"}])`.

        Changes take no lock and are made once per `op_id`; `under(lease)` returns a chat that presents a lock.

        Args:
            session: any text of up to 256 bytes.
            source: name of the chat; a session has one per source.

        Raises:
            InvalidInput: that is no session or no source.
        """

    def extract(
        self, session: str, *, agent: str, source: str = "main", skill: str = "extract", subject: str | None = None
    ) -> TaskHandle[Extraction] | None:
        """Submit a task that extracts the messages of a chat that the skill has not extracted, into the agent's memory.

        Call it after a turn. While no message is added, it returns the same task, also one that is a dead letter.

        Args:
            session: session of the chat.
            agent: agent with the skill, as `Agent.extracts` registers it.
            source: source of the chat.
            skill: name of the skill.
            subject: person that messages are about which name none. Give it for a session that is assigned to a
                person, so that `erase` finds the records.

        Returns:
            The handle; None if all messages were extracted.

        Raises:
            InvalidInput, QueueFull, Stopped, ServerUnavailable: as `submit`.
        """

    def chat_usage(self) -> ChatUsage:
        """Return what all chats of the tenant hold: bytes, messages, number of chats.

        The tenant is the third part of the prefix. Clients and workers count their changes every 5 s; this client
        counts its own first.

        Raises:
            StoreError: no reply.
        """

    def task(self, id_: str) -> TaskHandle[Any]:
        """Return a handle for a known id, without asking Redis.

        Raises:
            InvalidInput: that is not the form of a task id.
        """

    def cancel(
        self, task: str | TaskHandle[Any], reason: str = "", *, only_this: bool = False, actor: str | None = None
    ) -> CancelStatus:
        """Cancel a task, by its id or handle, and the tasks below it; see `TaskHandle.cancel`.

        Args:
            task: id or handle.
            reason: kept with the tasks and the record of the call.
            only_this: its children go on.
            actor: who cancels; the user of this process by default.

        Raises:
            InvalidInput: that is not the form of a task id, or a text is not valid; nothing was changed.
        """

    def retry(
        self, task: str | TaskHandle[Any], reason: str = "", *, with_children: bool = False, actor: str | None = None
    ) -> RequeueStatus:
        """Retry a task that ended without a result, by its id or handle; see `TaskHandle.retry`.

        Args:
            task: id or handle.
            reason: kept with the tasks and the record of the call.
            with_children: first retry the tasks below it that ended without a result; needs a supervisor.
            actor: who retries; the user of this process by default.

        Raises:
            InvalidInput: that is not the form of a task id, or a text is not valid; nothing was changed.
        """

    def as_completed(
        self, handles: Iterable[TaskHandle[T]], *, timeout: Duration | None = None
    ) -> Iterator[TaskHandle[T]]:
        """Give each handle when its task has ended: `for handle in orc.as_completed(handles)`.

        Those that are known to have ended come first, in their order. `result()` of a handle that was given returns or
        raises at once. A loop that is left early leaves nothing behind; the tasks go on.

        Args:
            handles: of this client; one that is there twice is given once.
            timeout: seconds or timedelta for all of them, from this call on; None waits as long as it takes, also while
                Redis is away; 0 asks once.

        Raises:
            TimeoutError: not all had ended after `timeout`; the message says how many. While looping.
            OrchestratorError: the client was closed; while looping.
            InvalidInput: that is no handle, or one of another client.
        """

class TaskHandle(Generic[T_co]):
    """A task, by its id. Cheap; valid as long as the client that made it is open.

    Attributes:
        id: the task's id.
        outcome: how it ended, once that is known here.
        requeued: the task has run again since an end that was known here.
    """

    @property
    def id(self) -> str: ...
    @property
    def outcome(self) -> TaskOutcome | None: ...
    @property
    def durability(self) -> Durability | None:
        """Report of the durability of the submit that returned this handle; None if it asked for nothing."""

    @overload
    def result(self, timeout: Duration | None = None) -> T_co: ...
    @overload
    def result(self, timeout: Duration | None = None, *, as_: type[M]) -> M:
        """Wait for the end of the task and return its result.

        A call after a failure waits again if the task was requeued meanwhile (`retry`).

        Args:
            timeout: seconds or timedelta; None waits as long as it takes, also while Redis is away; 0 asks once. The
                task goes on when the waiting ends. Loading a result from the payload store is not counted.
            as_: a type that the result is validated as.

        Raises:
            PayloadError: the payload store does not have the result, has another value, or does not answer.
            TaskFailed: it became a dead letter.
            TaskCancelled: it was cancelled.
            TaskExpired: it did not start in time, or its record is gone.
            TimeoutError: it had not ended after `timeout`, or Redis did not answer. The text tells what the task waits
                for, except after a `timeout` of 0.
            StoreError: Redis refuses to tell; with a timeout of 0 also that it does not answer.
            InvalidInput: `timeout` is no duration.
        """

    def result_of(self, outcome: TaskOutcome) -> T_co:
        """Return the result of an end that the caller has read, or raise its error, as `result`; for the workers."""

    def stored_result(self, timeout: Duration | None = None) -> bytes:
        """Wait for the end of the task and return its result as Redis has it: JSON, or a reference to a large value.

        Arguments and errors as of `result`.
        """

    def status(self) -> TaskStatus:
        """Its state, and in words what it waits for.

        Raises:
            NotFound: no such task, or its retention has passed.
        """

    def info(self) -> TaskInfo:
        """Everything that is known of it.

        Raises:
            NotFound: no such task, or its retention has passed.
        """

    def output(self, after: str | None = None) -> Iterator[OutputChunk]:
        """Read the partial output of the task live; ends when the task has ended and all was read.

        Args:
            after: the `id` of a chunk or event that was seen before: go on behind it.

        Raises:
            InvalidInput: `after` is no such id.
            NotFound: the task does not exist; when reading.
            OrchestratorError: the client is closed; when reading.
        """

    def events(self, after: str | None = None) -> Iterator[TaskEvent]:
        """Read the life of the task live, progress and output included; ends after the final event.

        Args:
            after: the `id` of a chunk or event that was seen before: go on behind it.

        Raises:
            InvalidInput: `after` is no such id.
            NotFound: the task does not exist; when reading.
            OrchestratorError: the client is closed; when reading.
        """

    def cancel(self, reason: str = "", *, only_this: bool = False, actor: str | None = None) -> CancelStatus:
        """Cancel it and the tasks below it: waiting tasks end at once, running ones are told to stop.

        The call returns when it has reached all of them. If this program dies before, a supervisor goes on.
        `orc control list` shows it.

        Args:
            reason: kept with the task and its record.
            only_this: its children go on.
            actor: who cancels; the user of this process by default.

        Returns:
            `ENDED`, `SIGNALLED` (its worker stops it within a few seconds), `ALREADY` (it had ended), `UNKNOWN`.

        Raises:
            InvalidInput: `actor` has more than 500 characters, or a text is not valid; nothing was changed.
        """

    def answer(self, value: Any, *, question: int | None = None, actor: str | None = None) -> AnswerStatus:
        """Answer the question that it waits with, so that it goes on.

        The first answer stands: the same one again does nothing, another one is refused.

        Args:
            value: a JSON value; one of the options, if the question has some.
            question: which question of the task, counted from 1; by default the latest one.
            actor: who answers; the user of this process by default.

        Returns:
            `ANSWERED`, or `ALREADY`: the question has the same answer.

        Raises:
            AnswerRefused: the task does not ask that now, or has another answer.
            InvalidInput: the answer is none of the options, or no JSON value.
            NotFound: no such task, or its retention has passed.
        """

    def retry(self, reason: str = "", *, with_children: bool = False, actor: str | None = None) -> RequeueStatus:
        """Let it run again after it has ended without a result: the same task, with its id, key and history.

        Failures and deaths count from now on. What is already told stays told; a new `result()` waits again.

        Args:
            reason: kept with the task and its record, which `orc control list` shows.
            with_children: first retry the tasks below it that ended without a result. A supervisor does all of it, also
                if this program dies; the call waits for it.
            actor: who retries; the user of this process by default.

        Returns:
            `REQUEUED`, `ALREADY` (it has not ended), `REFUSED` (it succeeded), `DAMAGED` (its record cannot be
            decoded), `UNKNOWN`.

        Raises:
            InvalidInput: `actor` has more than 500 characters, or a text is not valid; nothing was changed.
        """

class Admin:
    """Gives control commands. Each is stored before it is announced, and recorded with actor and reason.

    Every method takes `reason` and `actor` (user and host of this process by default). It raises `CommandRefused` when
    Redis does not accept the command, `InvalidInput` for an invalid value and `StoreError` when Redis does not answer.
    """

    @property
    def schedules(self) -> Schedules:
        """The schedules of the pool."""

    def stop(
        self,
        *,
        agent: str | None = None,
        session: str | None = None,
        skill: str | None = None,
        family: str | None = None,
        now: bool = False,
        refuse: bool = False,
        reason: str = "",
        actor: str | None = None,
    ) -> Sent:
        """Stop starting tasks until `start`: everywhere, or of an agent, session, skill, family. Restarts end no stop.

        By default running tasks finish, and new tasks are accepted and wait.

        Args:
            agent: only this agent.
            session: only tasks of this session.
            skill: only tasks of this skill.
            family: only the family of this task: the first one above it and all below that.
            now: interrupt running tasks; they return to their queues and no attempt is counted.
            refuse: reject new tasks with the error `Stopped`.
            reason: kept with the command.
            actor: user and host of this process by default.
        """

    def start(
        self,
        *,
        agent: str | None = None,
        session: str | None = None,
        skill: str | None = None,
        family: str | None = None,
        limit: str | None = None,
        reason: str = "",
        actor: str | None = None,
    ) -> Sent:
        """End the stop of the same scope, of an agent also its pause with an end. Other scopes stay as they are.

        With `limit`, end the pause of a limit.

        Args:
            agent: only this agent.
            session: only tasks of this session.
            skill: only tasks of this skill.
            family: only the family of this task: the first one above it and all below that.
            limit: end the pause of this limit.
            reason: kept with the command.
            actor: user and host of this process by default.
        """

    def pause_agent(self, agent: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Stop giving tasks to an agent until it is resumed. It finishes the tasks that it has; new tasks wait."""

    def hold_agent(self, agent: str, for_s: float, *, reason: str = "", actor: str | None = None) -> Sent:
        """Stop giving tasks to an agent for a time. It finishes the tasks that it has; new tasks wait.

        A longer pause replaces a shorter one. `orc start --agent` or `orc agents resume` ends it early.

        Args:
            agent: name of the agent; it need not be running yet.
            for_s: seconds until the pause ends by itself.
            reason: kept with the command.
            actor: user and host of this process by default.
        """

    def hold_limit(self, limit: str, for_s: float, *, reason: str = "", actor: str | None = None) -> Sent:
        """Let a limit allow no start for a time: every agent that has the limit waits.

        A longer pause replaces a shorter one. `orc start --limit` ends it early.

        Args:
            limit: name of the limit; @AGENT for an agent's own.
            for_s: seconds until the pause ends by itself.
            reason: kept with the command.
            actor: user and host of this process by default.
        """

    def resume_agent(self, agent: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Resume an agent that is paused."""

    def pause_queue(self, queue: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Stop taking tasks from a queue (`skill:NAME` or `agent:NAME`) until it is resumed. New tasks wait."""

    def drain_queue(self, queue: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Reject new tasks for a queue (`Stopped`) until it is resumed. Waiting tasks still run."""

    def resume_queue(self, queue: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Resume a queue that is paused or drained."""

    def set_limit(self, limit: str, rate: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Change the rate of a limit until it is reset, also across restarts. It applies from the next start on.

        Args:
            limit: name of the limit; @AGENT for an agent's own.
            rate: starts per time, as 10/s, 10/min, 10/h or 10/d.
            reason: kept with the command.
            actor: user and host of this process by default.
        """

    def reset_limit(self, limit: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Reset a limit to the rate that agents or settings define."""

    def clear_limit(self, limit: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """End what keeps calls from a provider, and the pause of its limit: agents start tasks and call it again.

        A provider is blocked while it is throttled, its quota is used up, or it failed several times in a row.
        """

    def set_share(
        self, key: str, *, weight: float = 1.0, at_most: int | None = None, reason: str = "", actor: str | None = None
    ) -> Sent:
        """Set the share of a key (`submit(..., fair=KEY)`) until it is deleted.

        Each key with waiting tasks gets starts in proportion to its weight, which is 1 for a key without a share.
        A share replaces the one that the key had.

        Args:
            key: the key, as `fair=` of a submit has it.
            weight: starts in proportion to those of other keys.
            at_most: tasks of the key that run at a time.
            reason: kept with the command.
            actor: user and host of this process by default.
        """

    def delete_share(self, key: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Delete the share of a key: its weight is 1 again, and any number of its tasks may run."""

    def set_budget(
        self,
        budget: str,
        *,
        usd: float | str | None = None,
        tokens: float | str | None = None,
        calls: float | str | None = None,
        seconds: float | str | None = None,
        soft: float | None = None,
        per: str | None = None,
        at_hard: str | None = None,
        lost: str | None = None,
        reason: str = "",
        actor: str | None = None,
    ) -> Sent:
        """Set limits of a budget (`submit(..., budget=NAME)`) until it is deleted. What is not named stays as it is.

        A higher limit lets tasks start that wait for the budget. A limit below what is spent is refused.

        Args:
            budget: name of the budget, as `budget=` of a submit has it.
            usd: limit in US dollars; none: no limit.
            tokens: limit of tokens, as 2M; none: no limit.
            calls: limit of calls; none: no limit.
            seconds: limit of seconds; none: no limit.
            soft: share of a limit at which `ctx.budget.wrap_up` is true [0.8].
            per: begin anew each day (UTC), or never [ever].
            at_hard: without room, ask a person for more, or end the task [stop].
            lost: what the holds of an attempt count as that died [spent].
            reason: kept with the command.
            actor: user and host of this process by default.
        """

    def delete_budget(self, budget: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Delete a budget. Refused while attempts hold amounts of it, or tasks wait for it."""

    def drain_worker(self, worker: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Stop giving tasks to a worker until it is resumed. It finishes the tasks that it has, and stays."""

    def resume_worker(self, worker: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Resume a worker that drains."""

    def stop_worker(self, worker: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Let a worker finish its tasks and exit, as after SIGTERM. Its host does not replace it."""

    def set_log_level(self, level: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Set the log level of every supervisor and worker until it is reset."""

    def reset_log_level(self, *, reason: str = "", actor: str | None = None) -> Sent:
        """Reset the log level of every process to the one in its settings."""

    def publish_config(self, key: str, value: Any, *, reason: str = "", actor: str | None = None) -> Sent:
        """Publish a configuration value to every program of the pool, also to those that start later.

        Handlers read it with `ctx.config`, other programs with `orc.config`. It is not a setting of orchestrator.toml.

        Args:
            key: name of the value, as routing.model.
            value: JSON value.
            reason: kept with the command.
            actor: user and host of this process by default.
        """

    def withdraw_config(self, key: str, *, reason: str = "", actor: str | None = None) -> Sent:
        """Withdraw a published configuration value."""

    def renew_epoch(self, *, reason: str = "", actor: str | None = None) -> Sent:
        """Reject every command that was signed before now. Active commands stay active.

        Needed after a restore from a backup, because Redis has then forgotten which commands it has accepted since.
        """

    def retry(
        self,
        tasks: Sequence[str] | TaskFilter,
        *,
        limit: int = ...,
        with_children: bool = False,
        reason: str = "",
        actor: str | None = None,
    ) -> Sent:
        """Retry tasks that ended without a result, as a job of the supervisor; `receipts()` waits for its end.

        The tasks keep their ids, keys and histories; failures and deaths count from zero.

        Args:
            tasks: ids, or a filter, which selects the dead letters that match now unless it names states.
            limit: select at most this many; `more` of the result tells whether more match.
            with_children: also all tasks below them, each before its parent, which finds them by their keys.
            reason: kept with each task.
            actor: user and host of this process by default.
        """

    def cancel(
        self,
        tasks: Sequence[str] | TaskFilter,
        *,
        limit: int = ...,
        only_this: bool = False,
        reason: str = "",
        actor: str | None = None,
    ) -> Sent:
        """Cancel tasks and, unless `only_this` is true, those below them; a filter selects open ones. See `retry`."""

    def delete(
        self, tasks: Sequence[str] | TaskFilter, *, limit: int = ..., reason: str = "", actor: str | None = None
    ) -> Sent:
        """Delete ended tasks; a filter selects dead letters unless it names states. See `retry`."""

    def purge(self, queue: str, *, reason: str, actor: str | None = None) -> Sent:
        """Cancel every task that waits in a queue (`skill:NAME` or `agent:NAME`) now."""

    def finish_upgrade(self, *, ignore_connections: bool = False, reason: str = "", actor: str | None = None) -> Sent:
        """Admit no program older than this one from now on, so that features that older ones misread may be used.

        Args:
            ignore_connections: count no connections of older programs whose pool is unknown, and finish also if the
                Redis user may not list connections.
            reason: kept with the command.
            actor: user and host of this process by default.

        Returns:
            The command that records it. `older` has the older programs that started meanwhile: stop them.

        Raises:
            UpgradeRefused: older programs use the pool, or may use it because connections are unknown.
            OrchestratorError: the floor was raised, but Redis did not accept the command that records it.
        """

class Sent:
    """An accepted command.

    Attributes:
        id: of the command, as `orc control show` takes it.
        command: the command.
        at: when Redis accepted it.
        more: of a job: True if more tasks match its filter than were selected.
        older: of `finish_upgrade`: older programs that were found after the floor had risen.
    """

    @property
    def id(self) -> str: ...
    @property
    def command(self) -> Command: ...
    @property
    def at(self) -> datetime: ...
    @property
    def more(self) -> bool: ...
    @property
    def older(self) -> tuple[str, ...]: ...
    def receipts(self, *, timeout: Duration | None = 5.0, until_done: bool = False) -> Receipts:
        """Wait for the receipts.

        Args:
            timeout: seconds or a timedelta, after which it returns the receipts so far; None: no time-out.
            until_done: wait until every process is done, not only until each has answered. A job always waits so.
        """

class Schedules:
    """Adds, changes and lists schedules. A supervisor fires them.

    Every method that changes something takes `reason` and `actor` (by default user and host of this process). Methods
    raise `InvalidInput` for invalid values, `NotFound` for an unknown name, `StoreError` when Redis did not do it.
    """

    def add(
        self,
        name: str,
        skill: str | NamedSkill,
        args: Arguments = None,
        *,
        replace: bool = False,
        require_agent: bool = False,
        reason: str = "",
        actor: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> str:
        """Add a schedule. Returns "added", "replaced", or "same" if an equal schedule exists.

        Warns with `NoAgentWarning` when no live agent has the skill.

        Args:
            name: name of the schedule.
            skill: name of the handler that its tasks run, or a `Skill`.
            args: arguments of the tasks.
            replace: replace an existing schedule, which keeps its history and stays paused if it is.
            require_agent: refuse the schedule when no live agent has the skill.
            reason: text shown in the command record.
            actor: who makes the change.
            options: `cron` (five fields) with `zone` (UTC), or `every`; `overlap`, `catch_up`; and for its tasks
                `agent`, `session`, `lane`, `fair`, `budget`, `priority`, `tags`, `timeout`, `max_attempts`,
                `result_ttl`.

        Raises:
            UpgradeUnfinished: it has `fair` or `budget`, and the pool admits programs that do not know them.
            ScheduleExists: another schedule has this name, and `replace` is not set.
            NoAgent: `require_agent` is set, and no live agent has the skill.
        """

    def pause(self, name: str, *, reason: str = "", actor: str | None = None, id_: str | None = None) -> bool:
        """Stop a schedule from firing until `resume`. Returns False if it was paused before.

        With `id_`, a new task id, the record of the change has this id.
        """

    def resume(self, name: str, *, reason: str = "", actor: str | None = None, id_: str | None = None) -> bool:
        """Let a paused schedule fire again from its next fire time on. Returns False if it was not paused.

        With `id_`, a new task id, the record of the change has this id.
        """

    def delete(self, name: str, *, reason: str = "", actor: str | None = None, id_: str | None = None) -> None:
        """Delete a schedule. Tasks that it submitted stay.

        With `id_`, a new task id, a repeat of the call returns when the record of the first one has this id.
        """

    def trigger(self, name: str, *, reason: str = "", actor: str | None = None, id_: str | None = None) -> str:
        """Submit the task of a schedule now, even of a paused one, and return the task's id. The fire times stay.

        With `id_`, a new task id, a repeat of the call submits nothing.

        Raises:
            SubmitRefused: the task was refused.
        """

    def list(self) -> Sequence[Schedule]:
        """List all schedules, the next to fire first, paused ones last."""

    def get(self, name: str) -> Schedule:
        """Return one schedule."""

    def next_fires(self, name: str, count: int = 5) -> Sequence[datetime]:
        """Return the next `count` fire times in UTC; for a paused schedule, those after a resume now."""

class Locks:
    """The named locks of one scope. Locks of different scopes are independent."""

    def within(self, scope: str) -> Locks:
        """Return the locks of another scope, for the same owner.

        Args:
            scope: `session:S`, `agent:A`, `user:U`, `domain:D`, `global` or `pool`.

        Raises:
            InvalidInput: not a scope.
        """

    def hold(
        self, name: str, *, ttl: Duration | None = None, wait: Duration | None = None, profile: str = "memory"
    ) -> AbstractContextManager[Lease]:
        """Hold a lock during a block: `with locks.hold("report") as lease:`.

        The lock is renewed while the block runs, and released when it ends. If a renewal fails for too long, the block
        is cancelled before another owner can get the lock.

        Args:
            name: any text of up to 256 bytes.
            ttl: seconds or timedelta until the lock of a dead holder lapses.
            wait: seconds or timedelta to wait for the lock; 0 asks once.
            profile: usual `ttl` and `wait`: `memory` (30, 5), `coordination` (10, 5), `execution` (300, 5).

        Raises:
            LockBusy: another owner has it; the error names the holder and the ms that it has left.
            LockLost: the lock was lost before the block ended.
            InvalidInput: an invalid name or time.
            ServerUnavailable: no reply.
        """

    def try_acquire(self, name: str, *, ttl: Duration | None = None, profile: str = "memory") -> Lease | None:
        """Take a lock if it is free. It is not renewed: finish in time or call `extend`, and call `release`.

        Args:
            name: see `hold`.
            ttl: see `hold`.
            profile: see `hold`.

        Returns:
            None if another owner has it.

        Raises:
            InvalidInput, ServerUnavailable: see `hold`.
        """

    def peek(self, name: str) -> LockInfo | None:
        """Return the current holder of a lock, or None if it is free."""

    def list(self, limit: int = 500) -> list[LockInfo]:
        """List the held locks of the scope, those that lapse first in front."""

    def take_away(self, lock: LockInfo, *, reason: str = "", actor: str | None = None) -> bool:
        """Release a lock of another owner, whose block is cancelled at its next renewal. `orc control list` shows it.

        Until then the old and a new owner may work at the same time, unless the protected resource checks the fence.

        Args:
            lock: the lock as `peek` or `list` returned it.
            reason: kept with the record.
            actor: who takes it; the user of this process by default.

        Returns:
            False: that ownership had ended; nothing was changed.

        Raises:
            InvalidInput: `actor` has more than 500 characters, or a text is not valid; nothing was changed.
        """

class Lease:
    """A named lock that this process holds. Changes of shared state in its scope can present it.

    Attributes:
        lock: name of the lock.
        scope: `session:S`, `agent:A`, `user:U`, `domain:D`, `global` or `pool`.
        token: random, unique to this ownership.
        fence: number of this ownership, higher than every earlier one. Pass it to the resource that the lock protects
            outside of Redis, which must refuse a lower fence than the highest it has seen.
        lost: how the lock was lost; empty while it is held.
    """

    @property
    def lock(self) -> str: ...
    @property
    def token(self) -> str: ...
    @property
    def fence(self) -> int: ...
    @property
    def lost(self) -> str: ...
    @property
    def deadline(self) -> float:
        """Time by `time.monotonic()` until which the lock is surely held. Each renewal extends it."""

    @property
    def held(self) -> bool:
        """True while the lock is held, as far as this process knows without asking Redis."""

    def extend(self, ttl: Duration | None = None) -> None:
        """Restart the lifetime of the lock. `hold` renews by itself.

        Args:
            ttl: new lifetime, seconds or timedelta; by default the one it was taken with.

        Raises:
            NotHeld: the lock has lapsed, or another owner has it.
            ServerUnavailable: no reply; the lock may or may not have been extended.
        """

    def release(self) -> None:
        """Release the lock; the longest waiter gets it. Not needed within `hold`.

        If Redis does not reply, this only logs a warning, because the lock lapses by itself.

        Raises:
            NotHeld: the lock had lapsed, so the guarded work may have overlapped with another owner's.
        """

    @property
    def task(self) -> str:
        """Empty: a lease belongs to no task; see `locks.model.WriteGuard`."""

class Limits:
    """Rate limits by name, shared by all programs with the same prefix."""

    def check(
        self,
        name: str,
        limit: int | None = None,
        window: Duration | None = None,
        *,
        cost: int = 1,
        profile: str | None = None,
        op_id: str | None = None,
    ) -> Decision:
        """Count an event if the limit allows it: `if not (orc.limits.check(ip, profile="api")).allowed: ...`.

        Args:
            name: what is limited, as an agent or an address; any text of up to 200 bytes.
            limit: number of events that every window allows, at most 2^53.
            window: length of the window, seconds or timedelta.
            cost: number that this event counts for, as the tokens of a model; at most `limit`.
            profile: usual limit and window instead: `tasks` (10 a minute), `hooks` (20 an hour), `chat` (10 a minute),
                `api` (60 a minute). Each profile counts separately.
            op_id: id of the event; repeated within the window, it counts once, unless 1000 others came in between.

        Raises:
            InvalidInput: an invalid name or number, or a cost above the limit.
            UpgradeUnfinished: a limit above 100,000 or a cost above 500, while the pool admits programs that cannot
                count it.
            StoreError: Redis did not reply; the event may or may not have been counted.
        """

class Agents:
    """Reads and changes the states of all agents, and lists the active ones: `orc.agents`.

    Changes made here take no lock; the last of two concurrent changes wins. They wait while a task with `lock="agent"`
    holds the agent, and then raise `Occupied`. All pools of one prefix share the states. A state expires seven days
    after its last change.
    """

    def state(self, agent: str, *fields: str) -> dict[str, Any]:
        """Return these fields of an agent's state, or all fields. Missing fields are left out.

        Raises:
            InvalidInput, StoreError: not a name; no reply.
        """

    def states(self, agents: Iterable[str], *fields: str) -> dict[str, dict[str, Any]]:
        """Return the states, or some fields, of up to 500 agents in one round trip; see `state`."""

    def set_state(self, agent: str, fields: Mapping[str, Any], *, op_id: str | None = None) -> None:
        """Write fields of an agent's state, all or none. Other fields stay.

        Args:
            agent: name of the agent.
            fields: JSON values of at most 64 KiB each; an agent has up to 200 fields.
            op_id: id of the change; repeated within ten minutes, the change is made once.

        Raises:
            InvalidInput: an invalid name or value, or too many fields; nothing was changed.
            Occupied: a task holds the agent alone; nothing was changed.
            StoreError: Redis did not do it; a repeat with the same `op_id` is made once.
        """

    def bump(self, agent: str, field: str, by: int = 1, *, op_id: str | None = None) -> int:
        """Add to a field that holds a whole number, and return the sum. Concurrent calls all count.

        Args:
            agent: name of the agent.
            field: name of the field; a missing one counts as 0.
            by: number to add; may be negative.
            op_id: as in `set_state`; a repeat returns the first result.

        Raises:
            InvalidInput, Occupied, StoreError: as `set_state`; also when the field holds another value.
        """

    def active(self, within: Duration = 30) -> dict[str, datetime]:
        """Return the time of the last heartbeat of each active agent of this pool, the latest first.

        Args:
            within: maximum age of the heartbeat, seconds or timedelta. Workers send one every `worker.heartbeat_s`.

        Raises:
            InvalidInput, StoreError: not a duration; no reply.
        """

class Tasks:
    """Reads lists of tasks and sessions.

    Methods raise `InvalidInput` for invalid values, and `StoreError` when Redis does not answer.
    """

    def find(
        self,
        *,
        session: str | None = None,
        parent: str | None = None,
        states: Collection[TaskState | str] = ...,
        limit: int = 100,
    ) -> tuple[TaskRow, ...]:
        """List tasks: those that run, those that wait, then those that ended, newest end first.

        Args:
            session: only tasks of this session, newest first. A pool keeps the newest 1000 of a session.
            parent: only children of this task, in the order of their submits. A pool keeps the newest 100,000.
            states: only tasks in these states.
            limit: maximum number, at most 10,000.
        """

    def list(self, wanted: TaskFilter = ..., *, after: str | None = None) -> Iterator[TaskRow]:
        """Yield the tasks that match a filter, page by page: `for task in orc.tasks.list(TaskFilter(tag="eu")):`.

        A session, a parent or a tag is looked up. Other conditions are compared with all tasks in the wanted states.
        The newest comes first for a session, a tag, dead letters and other tasks that ended; children come in the order
        of their submits. A task that changes its state meanwhile may be missing.

        Args:
            wanted: the filter; without states it matches tasks in any state.
            after: `cursor` of a page, to go on behind it.
        """

    def page(self, wanted: TaskFilter = ..., *, after: str | None = None, limit: int = 100) -> TaskPage:
        """Read one page of `list`, which says how many tasks it has read. It may be empty although more follow.

        Args:
            wanted: the filter.
            after: `cursor` of the page before.
            limit: maximum number, at most 10,000.
        """

    def tree(self, task: str, *, limit: int = 1000) -> tuple[TaskRow, ...]:
        """List a task and the tasks below it: each behind its parent, children in the order of their submits.

        Args:
            task: id of the task.
            limit: maximum number, at most 10,000; levels near the task come first.
        """

    def effects(self, task: str) -> tuple[TaskEffect, ...]:
        """List the effects of a task, which `ctx.effect` has begun, in the order of their last begin.

        Args:
            task: id of the task.

        Raises:
            NotFound: no such task, or its retention has passed.
        """

    def sessions(self, *, limit: int = 100) -> tuple[SessionSummary, ...]:
        """List the sessions with the latest submit or end of a task.

        A session stays listed for as long as its last task may wait and its result is kept, or until about 10,000 other
        sessions were active.

        Args:
            limit: maximum number, at most 10,000.
        """

    def ends(
        self,
        *,
        outcomes: Collection[TaskState | str] = ...,
        agent: str | None = None,
        skill: str | None = None,
        session: str | None = None,
        limit: int = 100,
    ) -> tuple[EndedTask, ...]:
        """List the tasks that ended last, newest first. A pool keeps `results.max_events`.

        Args:
            outcomes: only these final states.
            agent: only tasks that this agent had last.
            skill: only tasks of this skill.
            session: only tasks of this session.
            limit: maximum number, at most 10,000.
        """

    def watch_ends(
        self,
        after: str = ...,
        *,
        outcomes: Collection[TaskState | str] = ...,
        agent: str | None = None,
        skill: str | None = None,
        session: str | None = None,
        block: Duration | None = None,
    ) -> Iterator[EndedTask]:
        """Yield tasks as they end, over a connection of its own: `for end in orc.tasks.watch_ends():`.

        Args:
            after: `place` of the last end that was seen; `$` is now, `0-0` all that the pool keeps.
            outcomes: only these final states, like the filters of `ends`.
            agent: only tasks that this agent had last.
            skill: only tasks of this skill.
            session: only tasks of this session.
            block: end when no task has ended for so many seconds, or that timedelta; None never ends.
        """

class SharedConfig:
    """The published values of a pool: `orc.config`, and `ctx.config` in handlers.

    In a handler `get` and `all` answer from what the worker knows, without asking Redis: it receives each change at
    once, and polls with every heartbeat.
    """

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key.

        Args:
            key: its name.
            default: what is returned if nothing is published.

        Raises:
            InvalidInput, StoreError: that is no key; no answer.
        """

    def all(self) -> dict[str, Any]:
        """All published values by their keys.

        Raises:
            StoreError: no answer.
        """

    def changes(self, after: str = ..., *, block: Duration | None = None) -> Iterator[ConfigChange]:
        """Give the changes as they come, over a connection of its own: `for change in orc.config.changes():`.

        The record holds about the last 10,000 commands of all kinds. Who may have missed more reads `all`.

        Args:
            after: `id` of the last change that was seen; `$` is now, `0-0` all that are on record.
            block: end when nothing has come for so many seconds, or that timedelta; None never ends.

        Raises:
            InvalidInput: that is no id of a change.
            StoreError: Redis refused; while it only does not answer, it is asked again.
        """

class BoardView:
    """Reads the board of one day. Days are kept for eight days.

    Attributes:
        date: the day, or None for the server's current day.
    """

    @property
    def date(self) -> date | None: ...
    def top(self, n: int = 10) -> list[Standing]:
        """Return the members with the highest counts, the highest first.

        Args:
            n: maximum number of members, 1 to 1000.

        Raises:
            InvalidInput: `n` is out of range.
            StoreError: Redis did not reply.
        """

    def rank(self, member: str) -> Standing | None:
        """Return the place of one member, or None if it has no count on this day.

        Raises:
            InvalidInput, StoreError: not a name; no reply.
        """

class Board(BoardView):
    """A board by name, shared by all programs with the same prefix."""

    def add(self, member: str, by: int = 1, *, op_id: str | None = None) -> int:
        """Add to today's count of a member, for any date of this view, and return the new count.

        Args:
            member: any printable text of up to 256 bytes.
            by: number to add; may be negative.
            op_id: id of the event that is counted; repeated within ten minutes, it counts once.

        Raises:
            InvalidInput: an invalid name or number, or the day has 10,000 members.
            StoreError: Redis did not do it; a repeat with the same `op_id` counts once.
        """

class WorkspaceView:
    """Reads what a session shares; `edit` and `under` return a `Workspace` that changes it.

    Attributes:
        session: id of the session.
    """

    @property
    def session(self) -> str: ...
    def get(self, *paths: str) -> dict[str, Versioned]:
        """Return these paths of the document, or all paths. Missing paths are left out."""

    def log(self, log: str, *, last: int = 100, after: int | None = None) -> list[LogEntry]:
        """Return entries of a log, oldest first.

        Args:
            log: name of the log.
            last: maximum number of entries, up to 10,000.
            after: return the entries that follow this number, except trimmed ones; by default the newest entries.

        Raises:
            InvalidInput: an invalid name or number.
        """

    def members(self, set_: str) -> frozenset[str]:
        """Return the members of a set; empty if the set does not exist."""

    def states(self, *ids: str) -> dict[str, StateEntry]:
        """Return the state machines with these ids, or all of them. Missing ones are left out."""

    def agents(self) -> list[AgentEntry]:
        """Return the agents in the session: joined, with a lease that has not ended."""

    def snapshot(self) -> Snapshot:
        """Return everything that is shared at one moment, with the id of the last event."""

    def events(self, after: str = ..., *, block: Duration | None = None) -> Iterator[WorkspaceEvent]:
        """Yield events in order as they happen: `for event in workspace.events():`.

        Waiting uses a connection of its own until the loop ends.

        Args:
            after: id of the last known event; `0-0` for all stored events, `$` for new events only.
            block: seconds or timedelta to wait for the next event before the loop ends; None waits forever.

        Raises:
            InvalidInput: `after` is not an event id, or `block` is not a duration.
        """

    def replay(self, *, until: str | None = None) -> Replay:
        """Rebuild the workspace from its events alone, and compare the result with the stored one.

        Args:
            until: id of the last event to apply. By default all events are applied, and only then is the result
                compared.

        Raises:
            InvalidInput: `until` is not an event id.
        """

    def export(self) -> dict[str, Json]:
        """Return everything that is shared as one JSON value, with versions, authors and the agents in the session."""

    def under(self, lock: Lease, *, agent: str = "", wait: Duration = ...) -> Workspace:
        """Return a workspace whose changes present a lock that the caller holds.

        Args:
            lock: a lease of this session, as `ctx.locks.hold(...)` returns; after its loss every change is refused.
            agent: agent in whose name the changes are made.
            wait: seconds or timedelta that a change waits while another owner holds the session alone.

        Raises:
            InvalidInput: `wait` is not a duration.
        """

    def edit(
        self, name: str = "", *, exclusive: bool = False, agent: str = "", ttl: Duration = 30.0, wait: Duration = ...
    ) -> AbstractContextManager[Workspace]:
        """Change the workspace from outside a task: `with orc.workspace("101").edit("dashboard") as ws:`.

        Editors of one name take turns: the next one waits, and Redis refuses the changes of one that froze and lost its
        turn. Editors of different names, and tasks, change the workspace at the same time; each change is atomic. With
        `exclusive` the editor takes the session, as a task with `lock="session"` does.

        Args:
            name: name of the editor, by default that of the agent.
            exclusive: make every other change of the session wait until the block ends.
            agent: agent in whose name the changes are made; by default none.
            ttl: seconds or timedelta until the lock lapses if this process dies.
            wait: seconds or timedelta to wait for the editor of the same name, and in each change for the end of
                another exclusive owner.

        Raises:
            LockBusy: another editor of this name has not ended in time.
            Occupied: another owner holds the session alone; in the block, every change may raise it.
            LockLost: the lock was not renewed in time; the block was cancelled.
            StoreError: Redis did not reply.
        """

class Workspace(WorkspaceView):
    """Reads and changes what a session shares.

    Every change waits while another owner holds the session alone, and then raises `Occupied`; `join`, `leave`,
    `direct` and `acknowledge` do not wait. It raises `Fenced` (`LockLost` for a named lock) when another owner has its
    lock, `WorkspaceFull` at a cap, and `StoreError` when Redis did not do it; nothing is changed then. `op_id` names a
    change: a call with the same id within `workspace.dedup_s` changes nothing and returns the first result, with
    `duplicate`.

    Attributes:
        session: id of the session.
        agent: agent that makes the changes, or empty if there is none.
    """

    @property
    def agent(self) -> str: ...
    @property
    def scratch(self) -> Scratch:
        """The private paths of the agent.

        Raises:
            InvalidInput: the workspace was opened without an agent.
        """

    def set(
        self,
        path: str,
        value: Json,
        *,
        if_version: int | None = None,
        newer_than: int | None = None,
        op_id: str | None = None,
    ) -> Applied:
        """Write a path.

        Args:
            path: any printable text of up to 256 bytes, as `agents.ada.status`. Paths are flat: none contains another.
            value: any JSON value or pydantic model.
            if_version: write only if the path has this version; 0: only if it does not exist.
            newer_than: write this number as the version, only if the stored version is lower. The same number again
                returns `duplicate`.
            op_id: id of the change.

        Raises:
            VersionConflict: the path has another version.
            InvalidInput: an invalid path, not JSON, or too large.
        """

    def patch(
        self,
        changes: Mapping[str, Json | Delete],
        *,
        if_versions: Mapping[str, int] | None = None,
        op_id: str | None = None,
    ) -> Patched:
        """Change many paths, all or none.

        Args:
            changes: at most 500 values by path; `DELETE` deletes a path, which need not exist.
            if_versions: versions that these paths must have; 0: the path must not exist.
            op_id: id of the change.

        Raises:
            VersionConflict: a path has another version.
            InvalidInput: as `set`.
        """

    def incr(self, path: str, by: int = 1, *, op_id: str | None = None) -> Counted:
        """Add `by` to the whole number at a path; a missing path counts as 0. The result's `value` is the sum.

        Raises:
            InvalidInput: the path holds another value, or the sum is not exact (beyond 2^53 - 1).
        """

    def append(self, log: str, *items: Json, op_id: str | None = None, cap: int | None = None) -> Appended:
        """Append to a log. The first item creates it.

        Args:
            log: name of the log.
            items: JSON values or pydantic models, at most 500 and 4 MiB together.
            op_id: id of the change.
            cap: number of entries that the log keeps, at most and by default `workspace.max_log`; older ones are
                removed.

        Raises:
            InvalidInput: an invalid name, item or cap.
        """

    def add(self, set_: str, *members: str, op_id: str | None = None) -> Counted:
        """Add members to a set; the result's `value` is the number of new members.

        Raises:
            InvalidInput: an invalid name or member (printable text of up to 256 bytes, at most 500).
        """

    def remove(self, set_: str, *members: str, op_id: str | None = None) -> Counted:
        """Remove members from a set; the result's `value` is the number of members removed.

        Raises:
            InvalidInput: as `add`.
        """

    def transition(
        self,
        task_id: str,
        *,
        to: str,
        expect: str | Collection[str] | None = None,
        data: Json = None,
        op_id: str | None = None,
    ) -> Applied:
        """Move a state machine to another state.

        Args:
            task_id: id of the state machine, as a task of a plan; any printable text of up to 256 bytes.
            to: name of the new state.
            expect: allowed current states, or None for any; if empty, the machine must not exist.
            data: JSON value that is stored with the state.
            op_id: id of the change.

        Raises:
            StateConflict: it is in another state, which the error names.
            InvalidInput: an invalid name or value.
        """

    def publish(
        self, key: str, *, as_path: str | None = None, to_log: str | None = None, op_id: str | None = None
    ) -> Applied:
        """Move an entry of the agent's scratch into the document, or to the end of a log, in one step.

        Args:
            key: path of the scratch; it is deleted there.
            as_path: path of the document; by default `key`.
            to_log: name of a log, instead of a path.
            op_id: id of the change.

        Raises:
            NotFound: the scratch has no such path.
            InvalidInput: no agent, or both targets given.
        """

    def join(self, info: Json = None, *, lease: Duration = 60.0) -> None:
        """Add the agent to the session's directory, or renew its lease there.

        Args:
            info: JSON value that the agent publishes about itself.
            lease: seconds or timedelta until the entry ends, unless the agent joins again.

        Raises:
            InvalidInput: no agent, or a lease of 0.
        """

    def leave(self) -> None:
        """Remove the agent from the session's directory."""

    def direct(self, agent: str, kind: str, data: Json = None, *, op_id: str | None = None) -> str:
        """Send a directive with JSON data to an agent, as `STOP`; it stays in the inbox until acknowledged.

        Returns:
            The directive's id.

        Raises:
            InvalidInput: an invalid agent or kind, or not JSON.
        """

    def directives(self, *, block: Duration | None = None) -> Iterator[Directive]:
        """Yield the unacknowledged directives of the agent, then new ones: `for directive in ws.directives():`.

        Every later loop, in any worker, yields a directive again until it is passed to `acknowledge`.

        Args:
            block: seconds or timedelta to wait for the next one before the loop ends; None waits forever, 0 not at all.

        Raises:
            InvalidInput: no agent.
        """

    def acknowledge(self, *directives: Directive) -> None:
        """Remove directives from the agent's inbox, after the agent has carried them out.

        Raises:
            InvalidInput: no agent, or no directive.
        """

    def clear(self, *, events: bool = False, op_id: str | None = None) -> int:
        """Empty the workspace, with scratches, directory and directives, and return the revision.

        Versions, revisions and ids of events continue to rise.

        Args:
            events: remove the stored events too, with the previous values in them; the event of this call remains. By
                default they stay until they are trimmed or expire.
            op_id: id of the change.
        """

class Scratch:
    """Reads and changes the private paths of one agent. They expire with the workspace and have no events.

    Attributes:
        agent: name of the agent.
    """

    def get(self, *paths: str) -> dict[str, Versioned]:
        """Return these paths, or all paths. Missing paths are left out."""

    def list(self) -> list[str]:
        """Return the names of all paths."""

    def set(
        self,
        path: str,
        value: Json,
        *,
        if_version: int | None = None,
        newer_than: int | None = None,
        op_id: str | None = None,
    ) -> Applied:
        """Write a value to a path; `if_version` and `newer_than` as in `Workspace.set`."""

    def patch(
        self,
        changes: Mapping[str, Json | Delete],
        *,
        if_versions: Mapping[str, int] | None = None,
        op_id: str | None = None,
    ) -> Patched:
        """Change several paths, all or none; `if_versions` as in `Workspace.patch`."""

    def delete(self, *paths: str, op_id: str | None = None) -> Patched:
        """Delete paths; a missing path is not an error."""

class Chat:
    """Reads and changes one chat of a session: `orc.chat(session)` for any program, `ctx.chat` for an attempt.

    A change of `ctx.chat` presents the attempt's lock, so that an attempt that lost its task changes nothing. One of
    `orc.chat` takes no lock. Both wait while a task with `lock="session"` holds the session alone.

    Attributes:
        session: id of the session.
        name: source of the chat; a session has one chat per source.
    """

    @property
    def session(self) -> str: ...
    @property
    def name(self) -> str: ...
    def source(self, name: str) -> Chat:
        """Return the chat of the session with another source; its changes present the same lock.

        Raises:
            InvalidInput: not text of 1 to 256 bytes.
        """

    def under(self, lock: Lease, *, agent: str = "", wait: Duration = ...) -> Chat:
        """Return the chat with changes that present a lock that the caller holds.

        Args:
            lock: a lease of this session, as `ctx.locks.hold(...)` returns; after its loss every change is refused.
            agent: agent in whose name the changes are made.
            wait: seconds or timedelta that a change waits while another owner holds the session alone.

        Raises:
            InvalidInput: `wait` is not a duration.
        """

    def kept_in(self, store: SecondaryStore) -> Chat:
        """Return the chat with a copy in a second storage, which outlives the chat in Redis.

        Every change of the returned handle saves what was not yet saved. `hydrate` restores messages that Redis has
        lost, or that have expired. If the storage fails, a change is nevertheless made, `chat_not_saved` is logged, and
        a later change saves it. A chat has one copy: use the same storage everywhere.

        Args:
            store: `SqliteStore`, `JsonLinesStore`, or your own `SecondaryStore`.
        """

    def save(self, store: SecondaryStore | None = None) -> int:
        """Save what has changed since the last save, for handles without a copy. Return the number of saved messages.

        Args:
            store: where to; by default that of `kept_in`.

        Raises:
            SecondaryStoreError, StoreError: a later save does it.
            InvalidInput: there is no storage.
        """

    def rehydrate(self, store: SecondaryStore | None = None, *, last: int = ...) -> Hydration:
        """Restore messages from a second storage, and read the chat.

        What the chat holds stays; messages are added before its first one, as far as its caps allow. One program at a
        time restores a chat, the others wait for it.

        Args:
            store: where from; by default that of `kept_in`.
            last: maximum number of messages to return.

        Raises:
            SecondaryStoreError: the storage cannot be read.
            LockBusy: another program restores the chat for more than 10 s.
            InvalidInput, Fenced, Occupied, StoreError: as `append`.
        """

    def append(
        self, messages: Sequence[Mapping[str, Any] | Message], *, op_id: str | None = None, turn: str | None = None
    ) -> AppendedMessages:
        """Append messages; those whose ids the chat holds are not stored again.

        Args:
            messages: 1 to 500 JSON objects, or `Message` for those with an id, a length or a turn of their own.
            op_id: id of the call; repeated, the messages are appended once. Messages without an id get one from it, as
                `op_id.1`, so that this holds as long as they are stored; one of more than 252 bytes gives a digest.
            turn: turn that they belong to, any text of up to 256 bytes.

        Raises:
            InvalidInput: a message that cannot be stored; nothing was appended.
            ChatFull: the session has `chat.max_sources` chats.
            TenantFull: the chats of the tenant have reached `chat.tenant_max_bytes` or `chat.tenant_max_chats`.
            Fenced, Occupied: the attempt lost its task; another task holds the session alone. Nothing was appended.
            SubjectErased: the person that a message is about was erased less than 20 minutes ago; nothing was appended.
            StoreError: Redis did not do it; a repeat with the same `op_id` is made once.
        """

    def upsert(
        self, id_: str, message: Mapping[str, Any] | Message, *, version: int, op_id: str | None = None
    ) -> ChatChange:
        """Store a message unless the chat holds this version of it or a newer one. It keeps its place.

        Args:
            id_: id of the message; a new one is appended.
            message: the whole message.
            version: its version, a whole number from 1 on that its writers raise.
            op_id: id of the change; repeated within ten minutes, it is made once.

        Raises:
            InvalidInput, ChatFull, Fenced, Occupied, StoreError: as `append`.
        """

    def patch(
        self, id_: str, message: Mapping[str, Any] | Message, *, if_version: int, op_id: str | None = None
    ) -> ChatChange:
        """Replace a message that has a version. It keeps its place, and its version rises by 1.

        Args:
            id_: id of the message.
            message: the whole message.
            if_version: version that it must have.
            op_id: as in `upsert`.

        Raises:
            ChatConflict: it has another version, or is not there; nothing was changed.
            InvalidInput, ChatFull, Fenced, Occupied, StoreError: as `append`.
        """

    def set_meta(
        self, fields: Mapping[str, Any], *, newer_than: int | None = None, op_id: str | None = None
    ) -> ChatChange:
        """Write fields of the chat in one change, all or none. Other fields stay; None removes a field.

        Args:
            fields: JSON values of at most 16 KiB each; a chat has up to 100.
            newer_than: version that these fields become; they are not written unless it is higher than the stored one.
                By default each change raises the version by 1.
            op_id: as in `upsert`.

        Raises:
            ChatFull: too many fields, or chats in the session.
            TenantFull: as `append`; removals are made nevertheless.
            InvalidInput, Fenced, Occupied, StoreError: as `append`.
        """

    def set_summary(self, text: str, *, upto: int, version: int, op_id: str | None = None) -> ChatChange:
        """Store the summary of the oldest messages unless the chat has this version or a newer one.

        It outlives the messages by `chat.summary_ttl_s`.

        Args:
            text: the summary.
            upto: number of the last message that it covers.
            version: its version, a whole number from 1 on that its writers raise.
            op_id: as in `upsert`.

        Raises:
            TenantFull: the chat is new, and the tenant has `chat.tenant_max_chats`.
            InvalidInput, ChatFull, Fenced, Occupied, StoreError: as `append`.
        """

    def pop(self, expect: str | None = None) -> StoredMessage | None:
        """Remove the last message and return it; None if the chat is empty. Reads it first: two round trips.

        A damaged message, whose JSON cannot be read, goes with it.

        Args:
            expect: id that the last message must have. If this message is damaged, it alone is removed; its data is
                None.

        Raises:
            ChatConflict: another message is the last; nothing was changed.
            Fenced, Occupied, StoreError: as `append`.
        """

    def truncate(self, keep: int) -> int:
        """Remove the oldest messages until `keep` are left; return the number of removed ones.

        Up to 500 go at a time. A kept chat is saved first, so that its copy has them.

        Raises:
            InvalidInput: `keep` is not a whole number from 1 on; `clear` removes all.
            SecondaryStoreError: the chat could not be saved; nothing was removed.
            Fenced, Occupied, StoreError: as `append`; a repeat goes on.
        """

    def clear(self, *, op_id: str | None = None) -> None:
        """Remove messages, fields and summary. Numbers continue. The workspace of the session stays as it is.

        Raises:
            Fenced, Occupied, StoreError: as `append`.
        """

    def note_extracted(self, by: str, *, upto: int, rev: int) -> int:
        """Note up to which message a skill has extracted the chat; `head().extracted` has the notes.

        The number never falls, except by a `pop`. It stays before messages that were appended under these numbers after
        the skill has read them. The note is no change of the chat: it extends no lifetime and raises no revision.

        Args:
            by: the skill, as `AGENT/SKILL`.
            upto: number of the last message.
            rev: highest revision of the messages that were read.

        Returns:
            The number that the chat has now; 0 if it has ended.

        Raises:
            InvalidInput, Fenced, Occupied, StoreError: as `append`.
        """

    def hydrate(
        self,
        *,
        last: int | None = None,
        turns: int | None = None,
        max_tokens: int | None = None,
        known: Hydration | Position | None = None,
        pair_safe: bool = True,
        cached: bool = False,
    ) -> Hydration:
        """Read the newest messages with fields and summary in one round trip.

        A read in the second half of the lifetime extends it, which is a second round trip.

        Args:
            last: maximum number of messages; by default 200, or as many as `turns` and `max_tokens` need.
            turns: maximum number of turns. The result begins with a turn; a turn begins with another `turn`, or with a
                message of the user where messages have none.
            max_tokens: maximum of all `tokens`; a message without counts a fourth of its characters. The newest
                messages that fit are returned, none if the last alone is too long.
            known: what the caller has. An unchanged chat sends `not_modified` and no messages. If messages were only
                added, the result has these alone: see `Hydration.after` and `Hydration.updated`.
            pair_safe: leave out outputs of tools whose call is left out, with all messages before them, and outputs
                whose call the chat does not hold. A call without an output stays, because it may still run. Calls are
                recognised in messages of OpenAI and Anthropic, and by `Message.calls` and `Message.answers`.
            cached: keep what was read in this process, up to 16 MiB of all chats, and read only what is new. The
                server is asked each time, so that the result is what the chat holds.

        Raises:
            InvalidInput, StoreError: an invalid number; no reply.
        """

    def page(self, before: int, n: int = 50) -> tuple[StoredMessage, ...]:
        """Return the `n` messages before a number, oldest first.

        Args:
            before: number of the first known message, as `hydration.messages[0].number`.
            n: maximum number of messages, up to 10,000.

        Raises:
            InvalidInput, StoreError: an invalid number; no reply.
        """

    def meta(self) -> Mapping[str, Any]:
        """Return the fields of the chat."""

    def head(self) -> ChatHead:
        """Return the counts, times and fields of the chat."""

    def sources(self) -> list[str]:
        """Return the sources of all chats of the session, sorted."""

class Simulation:
    """Reads which agents and states a simulation has, and buffers data of its entities.

    An agent enters the indices by storing a record with this simulation: `orc.memory(agent).store(...)`. The indices
    follow within one round trip; if the program dies in between, the next change of the agent's memory or the repair
    walk makes up for it. A record that expires or is deleted leaves them.

    Attributes:
        id: id of the simulation.
    """

    @property
    def id(self) -> str: ...
    def agents(self, *, agent_type: str | None = None, limit: int = 1000) -> dict[str, int]:
        """Return the agents that have a state, with the last step that each has stored, the most advanced first.

        Args:
            agent_type: only agents with states of this type; their last step of it.
            limit: maximum number, 1 to 10,000.

        Raises:
            InvalidInput, StoreError: an invalid type or limit; no reply.
        """

    def states(
        self,
        lo: int | None = None,
        hi: int | None = None,
        *,
        agent_type: str | None = None,
        after: StateRef | None = None,
        limit: int = 1000,
    ) -> list[StateRef]:
        """Return the states from step `lo` to `hi`, both included, by step, then by agent.

        Args:
            lo: first step; None for no bound.
            hi: last step; None for no bound.
            agent_type: only states of agents of this type.
            after: last state of the page before; None for the first page.
            limit: maximum number, 1 to 10,000.

        Raises:
            InvalidInput, StoreError: an invalid bound, type or limit; no reply.
        """

    def of_type(self, agent_type: str, *, limit: int = 1000) -> list[StateRef]:
        """Return the states of agents of a type, by step, then by agent; see `states`.

        Args:
            agent_type: type that the agents gave with their states.
            limit: maximum number, 1 to 10,000.
        """

    def near(self, x: float, y: float, radius: float, *, limit: int = 100) -> list[StateRef]:
        """Return the states within a radius of a position, the nearest first.

        Args:
            x: first coordinate of the centre.
            y: second coordinate of the centre.
            radius: greatest distance; the circle touches at most 1024 cells of `memory.cell_size`.
            limit: maximum number, 1 to 10,000.

        Raises:
            InvalidInput, StoreError: not finite numbers, a radius of more than 1024 cells; no reply.
        """

    def push(self, entity: str, *items: Any, cap: int = 1000, op_id: str | None = None) -> int:
        """Append items to the buffer of an entity, drop the oldest beyond the cap, and return the number kept.

        Args:
            entity: name of the entity, any text of up to 256 bytes.
            items: 1 to 500 JSON values of at most `memory.max_record_bytes` each.
            cap: items that the buffer keeps, 1 to 100,000.
            op_id: id of the change; repeated within ten minutes, the items are appended once.

        Raises:
            InvalidInput: invalid items, name or cap; nothing was appended.
            StoreError: Redis did not do it; a repeat with the same `op_id` is made once.
        """

    def buffer(self, entity: str, last: int = 100) -> list[Any]:
        """Return the last items of the buffer of an entity, oldest first.

        Args:
            entity: name of the entity.
            last: maximum number, 1 to 10,000.

        Raises:
            InvalidInput, StoreError: an invalid name or number; no reply.
        """

class Memory:
    """Stores and recalls the records of one agent, one user, one domain, or of all programs.

    Changes through `ctx.memory` and `ctx.memory_of(...)` present a lock of the attempt, so that an attempt that lost
    its task changes nothing. Changes through `orc.memory(...)` take no lock; of two concurrent ones the last wins. Both
    wait while an exclusive owner holds the scope, as a task with `lock="agent"` its agent, and then raise `Occupied`.

    A record in the memory of a user is about that user: it gets the user as its `subject`.

    Attributes:
        kind: `agent`, `user`, `domain` or `global`.
        id: name of the agent, id of the user, name of the domain, or `all`.
    """

    @property
    def kind(self) -> str: ...
    @property
    def id(self) -> str: ...
    def under(self, lock: Lease, *, wait: Duration = ...) -> Memory:
        """Return a memory whose changes present a lock that the caller holds.

        Args:
            lock: a lease of this scope, as `orc.locks("agent:ada").hold(...)` returns; after its loss every change is
                refused.
            wait: seconds or timedelta that a change waits while another owner holds the scope alone.

        Raises:
            InvalidInput: `wait` is not a duration.
        """

    def with_embedder(self, embedder: Embedder, text: Callable[[Json], str] = ...) -> Memory:
        """Return a memory that makes the vectors of its records and questions itself.

        `store`, `store_many` and `update(content=...)` embed the contents before they write, `store_many` all of them
        in one call of the embedder. A record that brings its `embedding` keeps it. A content whose text has nothing to
        compare, as an empty one, gets no vector. `similar` also takes a text.

        Every program that stores vectors in one memory uses the same embedder.

        Args:
            embedder: as `WordLlamaEmbedder()`, `HashedNgrams()` or one of your own; see `Embedder`.
            text: returns the text of a content. By default, a text is taken as it is, of an object its field `text`,
                and of anything else its JSON.

        Raises:
            InvalidInput: not an embedder.
        """

    def store(self, record: Record, *, tier: Tier = "stm", op_id: str | None = None) -> RecordChange:
        """Store a record with all its index entries. A record of the same id is replaced, in whichever tier it is.

        Args:
            record: the record.
            tier: `stm` or `im`. The oldest short-term records beyond `memory.max_stm_records` move to `im`.
            op_id: id of the change; repeated within ten minutes, the change is made once.

        Raises:
            InvalidInput: an invalid value, or an `op_id` of another record; nothing was stored.
            EmbeddingError: the embedder failed; nothing was stored.
            MemoryFull: a cap was reached; nothing was stored.
            Fenced, LockLost: another owner has the lock; nothing was stored.
            Occupied: another owner holds the scope alone; nothing was stored.
            SubjectErased: the person that the record is about was erased less than 20 minutes ago; nothing was stored.
            StoreError: Redis did not do it; a repeat with the same `op_id` is made once.
        """

    def store_many(
        self, records: Sequence[Record], *, tier: Tier = "stm", op_id: str | None = None
    ) -> list[RecordChange]:
        """Store many records in order, up to 100 of them and 1 MiB in a round trip; see `store`.

        A round trip stores all of its records or none.

        Args:
            records: the records.
            tier: as in `store`.
            op_id: id of the change. After an error, a repeat with the same records stores each of them once.

        Raises:
            InvalidInput, MemoryFull, Fenced, LockLost, Occupied, StoreError: as `store`. An invalid record refuses all
                of them; after another error, the first ones may have been stored.
        """

    def update(
        self,
        id_: str,
        *,
        importance: float | None = None,
        content: Json | Unset = ...,
        embedding: Sequence[float] | bytes | None = None,
        newer_than: int | None = None,
        op_id: str | None = None,
    ) -> RecordChange:
        """Change the importance, the content or the vector of a record, which keeps its place and its deadline.

        New content without a vector leaves the record without one, because the old vector is not that of the content.
        A memory with an embedder makes the vector of new content.

        Args:
            id_: id of the record.
            importance: new importance.
            content: new content.
            embedding: vector of the content; see `Record`.
            newer_than: write this number as the version, only if the stored version is lower. The same number again
                returns `duplicate`.
            op_id: as in `store`.

        Raises:
            NotFound: no such record, or it was deleted or has expired; it is not made again.
            InvalidInput, EmbeddingError, MemoryFull, Fenced, LockLost, Occupied, StoreError: as `store`.
        """

    def touch(self, *ids: str, op_id: str | None = None) -> int:
        """Count an access to each of up to 500 records, with its time; their content is not rewritten.

        Args:
            *ids: ids of the records.
            op_id: as in `store`.

        Returns:
            The number of these records that exist.

        Raises:
            InvalidInput, Fenced, LockLost, Occupied, StoreError: as `store`.
        """

    def delete(self, *ids: str, op_id: str | None = None) -> int:
        """Delete up to 500 records with all their index entries.

        Args:
            *ids: ids of the records.
            op_id: as in `store`.

        Returns:
            The number of records that existed.

        Raises:
            InvalidInput, Fenced, LockLost, Occupied, StoreError: as `store`.
        """

    def supersede(self, old: str, by: str | None, *, op_id: str | None = None) -> RecordChange:
        """Take a record out of all recalls because another one replaces it. `get` returns it with `superseded_by`.

        It stays out of recalls when the other record is deleted or expires: `supersede(old, None)` puts it back.

        Args:
            old: id of the record.
            by: id of the record that replaces it, which is not replaced itself; None puts the record back.
            op_id: as in `store`.

        Raises:
            NotFound: one of the two records does not exist.
            InvalidInput: both are the same, or the other one is replaced itself; nothing was changed.
            Fenced, LockLost, Occupied, StoreError: as `store`.
        """

    def preview_forget(self, wanted: RecordFilter, *, limit: int = ...) -> ForgetPreview:
        """Select the records that match a filter, and return their number and some of them.

        `forget` takes the preview within an hour; it removes the selected records, not those that match later.

        Args:
            wanted: the filter.
            limit: maximum number of records, up to 100,000.

        Raises:
            InvalidInput, StoreError: an invalid condition; no reply.
        """

    def forget(self, what: ForgetPreview | RecordFilter, *, limit: int = ...) -> Forgotten:
        """Remove records with all their index entries, in both tiers and in batches.

        A record that has changed since the preview stays. A repeat with the same preview removes nothing twice, and
        returns the same result for ten minutes.

        Args:
            what: a preview, or a filter to select and remove at once.
            limit: as in `preview_forget`.

        Raises:
            NotFound: the preview is older than an hour; records that were removed before stay removed.
            InvalidInput, Fenced, LockLost, Occupied, StoreError: as `store`.
        """

    def embed_missing(self, *, limit: int = 1000) -> int:
        """Embed the contents of records that have no vector, as those stored before the memory had an embedder.

        Up to 100 texts are one call of the embedder. A record whose content changes meanwhile is left, and so is one
        whose text has nothing to compare. Versions stay.

        Args:
            limit: maximum number of records, up to 100,000.

        Returns:
            The number of records that have got a vector; less than `limit` once all have been looked at.

        Raises:
            InvalidInput: the memory has no embedder, or vectors of another one.
            EmbeddingError: the embedder failed; the records before have their vectors.
            MemoryFull, Fenced, LockLost, Occupied, StoreError: as `store`.
        """

    def drop_vectors(self) -> int:
        """Remove the vectors of all records, which stay as they are, so that another embedder can be used.

        Stop the programs that store with the old embedder first: what they store meanwhile keeps its vector. Then
        `memory.with_embedder(other).embed_missing()` makes the new vectors.

        Returns:
            The number of removed vectors.

        Raises:
            Fenced, LockLost, Occupied, StoreError: as `store`; a repeat removes the rest.
        """

    def transition(self, *, limit: int = 100) -> TransitionReport:
        """Move short-term records that are due to the intermediate tier, with a new lifetime.

        A record is due when more than `memory.max_stm_records` are newer, or from the age of `memory.stm_age_s` on if
        its importance is at least `memory.keep_importance`; less important ones expire. A record with a retention of
        its own keeps its deadline. The supervisor does this for every memory from time to time, and every `store` for
        the records beyond the cap.

        Args:
            limit: maximum number of records, 1 to 1000.

        Raises:
            InvalidInput, Fenced, LockLost, Occupied, StoreError: as `store`.
            MemoryFull: the intermediate tier is full; nothing was moved.
        """

    def offload(self, sink: SecondaryStore, *, older_than: Duration = 0, limit: int = 100) -> int:
        """Move intermediate records to long-term storage, those that expire first, and return how many it has saved.

        The records move to an outbox, are saved, and leave the outbox. A call that a crash ends loses none and saves
        none twice: the next call saves what is in the outbox first.

        Args:
            sink: the storage, as `SqliteStore("memory.sqlite")`.
            older_than: age of the records, seconds or timedelta.
            limit: maximum number of records, 1 to 1000.

        Raises:
            SecondaryStoreError: the storage failed; the records wait in the outbox for `memory.outbox_ttl_s`.
            InvalidInput, Fenced, LockLost, Occupied, StoreError: as `store`.
        """

    def offloaded(self, sink: SecondaryStore, *, since: int | None = None) -> Iterator[Record]:
        """Iterate over the records that `offload` has saved, by step: `for record in memory.offloaded(sink)`.

        `store` brings a record back as a new one: with version 1, no accesses, and the retention of its tier. Records
        that were superseded are left out; `sink.load` returns them, too. A record has the vector that it was stored
        with; a memory with an embedder leaves out vectors of another one, so that `store` embeds the content again.

        Args:
            sink: the storage.
            since: first step; None for all.
        """

    def sweep(self, *, cursor: int = 0, budget: int = 200) -> SweepReport:
        """Remove expired records and index entries without a record, and restore lost entries.

        Every change removes some expired records, and the supervisor sweeps every memory; a sweep of your own makes it
        sooner. The server decides about each entry in the step that removes it, so that a record that is stored
        meanwhile is safe.

        Args:
            cursor: 0, or `cursor` of the last report.
            budget: entries to look at, 1 to 100,000.

        Raises:
            InvalidInput, Fenced, LockLost, Occupied, StoreError: as `store`.
        """

    def stats(self) -> MemoryStats:
        """Return how many records and bytes the memory holds."""

    def states(self, simulation: str | None = None) -> StateMemory:
        """Return the states of the agent, by their position relative to the newest one.

        Args:
            simulation: simulation that new states belong to.

        Raises:
            InvalidInput: not the memory of an agent.
        """

    def get(self, *ids: str, tier: Tier | None = None) -> list[StoredRecord | None]:
        """Return up to 500 records by id, in order; None for each that is missing or has expired.

        Args:
            *ids: ids of the records.
            tier: look at this tier alone.
        """

    def accesses(self, *ids: str) -> dict[str, RecordAccess]:
        """Return how often and when up to 500 records were touched; those that were not are left out.

        Args:
            *ids: ids of the records.
        """

    def recent(self, n: int = 10, *, kind: str | None = None) -> list[StoredRecord]:
        """Return the newest records, newest first.

        Args:
            n: number of records, up to 1000.
            kind: records of this kind alone.
        """

    def at(self, position: int = 0, *, kind: str | None = None) -> StoredRecord | None:
        """Return the record at a position relative to the newest one: 0 the newest, -1 the one before it.

        Args:
            position: 0 or negative.
            kind: count records of this kind alone.
        """

    def history(
        self, steps: int = 5, *, kind: str | None = None, order: Literal["new", "old"] = "old"
    ) -> list[StoredRecord]:
        """Return the newest records in the order in which they happened.

        Args:
            steps: number of records, up to 1000.
            kind: records of this kind alone.
            order: `old` returns the oldest of them first, `new` the newest.
        """

    def changes(self, steps: int = 1, *, kind: str | None = None) -> dict[str, ValueChange]:
        """Return how the content of the newest record differs from that of an earlier one, by field.

        Args:
            steps: positions between the two, at least 1.
            kind: compare records of this kind alone.

        Returns:
            The difference of each field of the two contents; empty if there is no record that far back.
        """

    def between(self, lo: int, hi: int, *, kind: str | None = None, limit: int = 100) -> list[StoredRecord]:
        """Return the records of a range of steps, the oldest first.

        Args:
            lo: lowest step.
            hi: highest step.
            kind: records of this kind alone.
            limit: maximum number of records, up to 1000.
        """

    def of_kind(self, kind: str, *, limit: int = 100) -> list[StoredRecord]:
        """Return the newest records of a kind, newest first.

        Args:
            kind: the kind.
            limit: maximum number of records, up to 1000.
        """

    def of_action(self, action: str, *, limit: int = 100) -> list[StoredRecord]:
        """Return the newest records about an action, newest first.

        Args:
            action: the action.
            limit: maximum number of records, up to 1000.
        """

    def important(self, threshold: float, *, limit: int = 20) -> list[StoredRecord]:
        """Return the most important records, the most important first.

        Args:
            threshold: lowest importance.
            limit: maximum number of records, up to 1000.
        """

    def query(self, query: MemoryQuery) -> Recall:
        """Return the records that meet all conditions, in one round trip.

        The server reads the index with the fewest entries, and looks at most at 10,000 of them; the result says whether
        that was enough.

        Args:
            query: the conditions.

        Raises:
            InvalidInput: an invalid condition.
        """

    def similar(
        self,
        vector: Sequence[float] | bytes | str,
        k: int = 5,
        *,
        where: MemoryQuery | None = None,
        min_score: float | None = None,
    ) -> SimilarRecords:
        """Return the records whose vectors are the most similar to a vector, the most similar first.

        A record that was stored without `embedding` has no vector. A vector that is not that of its record now is never
        found: neither one of an earlier content, nor one that a task added after it had lost its lock.

        Args:
            vector: numbers, or 32-bit floats as little-endian bytes; a text, if the memory has an embedder.
            k: number of records, up to 100.
            where: conditions that the records must meet; `order` and `limit` do not count.
            min_score: lowest cosine, from -1 to 1.

        Raises:
            InvalidInput: an invalid value, or a vector that the stored ones cannot be compared with.
            EmbeddingError: the embedder failed.
            ConfigError: `memory.vector_rung` asks for what the server does not have.
        """

    def near(self, x: float, y: float, radius: float, *, tiers: Sequence[Tier] = ..., limit: int = 50) -> Recall:
        """Return the records at most `radius` away from a point, the nearest first.

        The server reads the cells that the circle touches, or all records if these are more than 400, and looks at most
        at 10,000 entries; the result says whether that was enough.

        Args:
            x: first coordinate of the point.
            y: second coordinate.
            radius: largest distance.
            tiers: tiers to search.
            limit: maximum number of records, up to 1000.

        Raises:
            InvalidInput: not finite numbers, or a negative radius.
        """

class StateMemory:
    """Remembers the states of one agent, one per step, as records of kind `state`.

    A state is a JSON object. Reads add its metadata: `state_id`, `agent_id`, `simulation_id`, `step_number` and
    `stored_at` (Unix seconds). Positions count back from the newest state: 0 is the newest, -1 the one before it. They
    reach the newest `memory.relative_states` states, at most `memory.max_stm_records`; older ones remain records of
    the memory until they expire.

    Args:
        memory: memory of the agent, from `orc.memory(agent)` or `ctx.memory`. None: memory is switched off; nothing is
            stored, and reads return None or an empty list.
        simulation: simulation that the states belong to, unless a call names another one. Reads return the states of
            this simulation alone; without one, all states.
    """

    def store_agent_state(
        self,
        state_data: Mapping[str, Json],
        step_number: int,
        *,
        simulation_id: str | None = None,
        ttl: Duration | None = None,
        op_id: str | None = None,
    ) -> str | None:
        """Store the state of a step, in place of an earlier one of the same step, and return its id.

        The mapping is not changed. `position_x` and `position_y` place the state in the plane, `agent_type` lists it
        under that type in the simulation.

        Args:
            state_data: JSON object; a field with the name of metadata is replaced.
            step_number: a whole number of at most 2^40.
            simulation_id: simulation that the state belongs to.
            ttl: retention, seconds or timedelta. None: that of short-term records, then of intermediate ones.
            op_id: id of the change; repeated within ten minutes, the change is made once.

        Returns:
            The name of the agent and the step, as `ed-7`, and the simulation if there is one, as `ed-7@run 1`: a
            step of one simulation replaces none of another. None if memory is switched off.

        Raises:
            InvalidInput: JSON cannot hold the state, or it is too large; nothing was stored.
            MemoryFull, Fenced, LockLost, Occupied, StoreError: as `Memory.store`.
        """

    def get_current_state(self) -> dict[str, Json] | None:
        """Return the newest state, or None if there is none."""

    def get_previous_state(self) -> dict[str, Json] | None:
        """Return the state before the newest one, or None if there is none."""

    def get_state_at_relative_position(self, relative_position: int) -> dict[str, Json] | None:
        """Return the state at a position: 0 the newest, -1 the one before it. None if there is none.

        Args:
            relative_position: 0 or negative.

        Raises:
            InvalidInput, StoreError: a positive position; no reply.
        """

    def get_state_history(self, steps: int = 5) -> list[dict[str, Json]]:
        """Return the newest states in the order of their steps, in one round trip.

        Args:
            steps: number of states, at least 1; positions bound it as they bound all reads.

        Raises:
            InvalidInput, StoreError: not a number; no reply.
        """

    def calculate_state_changes(self, steps: int = 1) -> dict[str, dict[str, Any]] | None:
        """Compare the newest state with the one `steps` positions before it, field by field, without metadata.

        Args:
            steps: positions between the two, at least 1.

        Returns:
            Per field, for two numbers `previous`, `current`, `change` and `percent_change`: the change in percent of
            the previous number without its sign, None if that is 0. For other values `previous`, `current` and
            `changed`. A field that only one of the states has also gets `added` or `removed`. None if there is no state
            that far back.

        Raises:
            InvalidInput, StoreError: not a number; no reply.
        """

class Subjects:
    """Finds and erases what is stored about people: `orc.subjects`.

    A subject is the id of a person, as `Record.subject` and `Message.subject` name it: any text of up to 256 bytes.
    """

    def assign(self, subject: str, *, session: str) -> None:
        """Assign a session to a person as a whole, so that `erase` empties it: workspace, chats and tasks of this pool.

        Call it before the first text is written, and again when the session is used for more than a year.

        Raises:
            SubjectErased: the person was erased less than 20 minutes ago.
            InvalidInput, StoreError: not an id; no reply.
        """

    def digest(self, subject: str) -> str:
        """Return the hash of a person's id that the records of erasures have.

        Raises:
            InvalidInput: not an id.
        """

    def places(self, subject: str) -> list[Place]:
        """List the places that may hold text about a person, at most 500.

        Raises:
            InvalidInput, StoreError: not an id; no reply.
        """

    def erase(
        self,
        subject: str,
        *,
        asked_by: str,
        reason: str = "",
        stores: Sequence[SecondaryStore] = ...,
        actor: str | None = None,
    ) -> ErasureReport:
        """Remove all text about a person: records, messages, summaries, assigned sessions, copies in second storage.

        Two records of the action name who asked, what was removed and a hash of the person's id. Text about the person
        is refused with `SubjectErased` for 20 minutes. A repeat is safe, and goes on after a crash.

        Args:
            subject: id of the person.
            asked_by: who asked for it, as a ticket or a person in charge.
            reason: for the record.
            stores: second storages that may have copies.
            actor: user and host of this process by default.

        Raises:
            InvalidInput: not an id, or the record would contain it.
            CommandRefused: the action could not be recorded; nothing was removed.
            SecondaryStoreError, PayloadStoreUnavailable, StoreError: a call failed; a repeat goes on.
        """

class SessionHandle:
    """A session of the pool.

    Attributes:
        id: the session.
    """

    def events(self, after: str | None = None, *, block: Duration | None = None) -> Iterator[SessionEvent]:
        """Yield the events of all tasks of the session and of its workspace, in order: `for event in …:`.

        Tasks are followed from the moment at which this finds them, about a tenth of a second after their submit. What
        they emit is complete; of the states before that moment the first event has the last. A task that has ended
        before has its final state only, unless it emitted; after a retry it is followed within a second. The newest
        1000 tasks of the session are followed.

        Args:
            after: `id` of the last event that was seen; None is the beginning, `$` is now.
            block: end when nothing has happened for so many seconds, or that timedelta; None never ends.

        Raises:
            InvalidInput: `after` is not the id of an event.
        """

class FlowHandle:
    """The tasks of a flow that was submitted, by their names: `handle.task("judge")`.

    Attributes:
        name: name of the flow.
    """

    @property
    def name(self) -> str: ...
    @property
    def names(self) -> list[str]:
        """The names of the tasks, in the order in which they were added; each is behind its predecessors."""

    @property
    def handles(self) -> list[TaskHandle[Any]]:
        """The handles of the tasks, in the order of `names`."""

    @overload
    def task(self, task: FlowTask[T]) -> TaskHandle[T]: ...
    @overload
    def task(self, task: str) -> TaskHandle[Any]:
        """Return the handle of a task.

        Args:
            task: its name, or what `Flow.task` returned.

        Raises:
            NotFound: the flow has no such task.
        """

    def results(self, timeout: Duration | None = None, *, failed: Failed = "raise") -> dict[str, Any]:
        """Wait until all tasks have ended, and return their results by name.

        Args:
            timeout: seconds or timedelta for all of them; None waits as long as it takes; 0 asks once.
            failed: `raise` raises the error of a task as soon as it has failed by itself; `collect` waits for the
                others, and returns each error in place of the result.

        Raises:
            TaskFailed, TaskCancelled, TaskExpired: a task failed, unless `failed="collect"`.
            TimeoutError: not all had ended after `timeout`.
            InvalidInput: an argument is invalid.
            PayloadError, StoreError: as `TaskHandle.result`.
            WaitCycle: in a handler, one of the tasks waits for this one.
        """

    def cancel(self, reason: str = "", *, actor: str | None = None) -> dict[str, CancelStatus]:
        """Cancel all tasks of the flow that have not ended, and the tasks below them; see `TaskHandle.cancel`.

        Args:
            reason: kept with the tasks and the record of the call.
            actor: who cancels; the user of this process by default.

        Returns:
            By name what became of each.

        Raises:
            InvalidInput: `actor` has more than 500 characters, or a text is not valid; nothing was changed.
        """
