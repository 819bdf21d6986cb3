"""Declares every control command: fields, effect on the desired state, and place on the command line.

`orc.admin`, the command line, the JSON schema and the table of commands are made from these declarations. A command
changes the desired state (`slots`), is a job for the supervisor (`job`), or records an action (neither).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, reduce
from hashlib import sha256
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self, TypeAlias

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from orchestrator.core.amounts import UNITS, parse_amount, show_amount
from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import check_name, check_task_id, check_task_prefix, encode_foreign
from orchestrator.core.payload import decode_json
from orchestrator.core.queue_name import QueueName
from orchestrator.core.rates import parse_rate
from orchestrator.core.slots import share_slot

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


Danger: TypeAlias = Literal["A", "B", "C"]
"""Class of a command: A can be undone; B repeats or stops work; C loses data, or can run work twice."""


class DesiredChange(NamedTuple):
    """One change of the desired state.

    Attributes:
        slot: field of the hash `desired`, as `stop:agent:editor`.
        mark: second letter of its value: `r` rejects new tasks, `n` interrupts running tasks, `b` does both, `s` ends
            the process, `-` does none of these; an empty mark clears the slot, so that its command ends.
    """

    slot: str
    mark: str


# --------------------------------------------------------------------------------------------------------------- fields


def _name(kind: str) -> AfterValidator:
    return AfterValidator(lambda value: check_name(kind, value))


def _check_session(value: str) -> str:
    encode_foreign("session", value)
    return value


def _check_key(value: str) -> str:
    encode_foreign("key", value)
    return value


def _check_queue(value: str) -> str:
    kind, name = QueueName.parse(value)
    if kind not in {"skill", "agent"}:
        raise ValueError("must be skill:NAME or agent:NAME, as `orc queues list` shows it")
    check_name(kind, name)
    return value


def _check_limit(value: str) -> str:
    check_name("limit", value.removeprefix("@"))
    return value


def _check_json(value: str) -> str:
    try:
        decode_json(value.encode())
    except (ValueError, RecursionError):
        raise ValueError("is not JSON") from None
    return value


def _check_rate(value: str) -> str:
    parse_rate(value)
    return value


def _check_amount(value: Any) -> str:
    if value == "none":
        return "none"
    micro = parse_amount("the limit", value)
    # A small or large number of Python or JSON would be written with an exponent.
    return value if isinstance(value, str) else show_amount(micro)


def _limit_word(unit: str, text: str | None) -> str:
    if text is None:
        return "="
    return "-" if text == "none" else str(parse_amount(unit, text))


AgentName: TypeAlias = Annotated[
    str, _name("agent"), Field(description="Name of the agent; it need not be running yet.")
]
SkillName: TypeAlias = Annotated[str, _name("skill")]
WorkerName: TypeAlias = Annotated[str, _name("worker"), Field(description="Id of the worker.")]
LimitName: TypeAlias = Annotated[
    str, AfterValidator(_check_limit), Field(description="Name of the limit; @AGENT for an agent's own.")
]
ScheduleName: TypeAlias = Annotated[str, _name("schedule")]
SessionId: TypeAlias = Annotated[str, AfterValidator(_check_session)]
QueueText: TypeAlias = Annotated[str, AfterValidator(_check_queue), Field(description="skill:NAME or agent:NAME.")]
RateText: TypeAlias = Annotated[
    str, AfterValidator(_check_rate), Field(description="Starts per time, as 10/s, 10/min, 10/h or 10/d.")
]
ShareKey: TypeAlias = Annotated[
    str, AfterValidator(_check_key), Field(description="The key, as `fair=` of a submit has it.")
]
BudgetName: TypeAlias = Annotated[
    str, _name("budget"), Field(description="Name of the budget, as `budget=` of a submit has it.")
]
AmountText: TypeAlias = Annotated[str, BeforeValidator(_check_amount)]
TaskId: TypeAlias = Annotated[str, AfterValidator(check_task_id)]
FamilyTask: TypeAlias = Annotated[str, AfterValidator(check_task_prefix)]
"""Any task of a family; on the command line the beginning of its id. `Admin.give` sends the first task."""
ConfigKey: TypeAlias = Annotated[str, _name("config key"), Field(description="Name of the value, as routing.model.")]
JSON: Final = AfterValidator(_check_json)
JsonText: TypeAlias = Annotated[str, JSON, Field(max_length=8192, description="JSON value, at most 8192 characters.")]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]


# ------------------------------------------------------------------------------------------------------------- commands

MAX_PAUSE_S: Final = 30 * 86_400.0
"""Longest pause with an end."""
KINDS: Final[dict[str, type[Command]]] = {}
"""Each command by its kind."""


class Command(BaseModel):
    """Base of all commands. The docstring of a subclass is its help text and that of its `orc.admin` method."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True
    )

    slots: ClassVar[Mapping[str, str]] = {}
    """Slots of the desired state that the command changes, as a format of itself, and the mark that each gets."""

    verb: ClassVar[str] = ""
    """Words on the command line, as `queues pause`, or empty if it has neither a command there nor a method."""

    examples: ClassVar[tuple[str, ...]] = ()
    """Arguments on the command line, for its help."""

    confirm: ClassVar[str] = ""
    """The action that the command line asks to confirm, or empty if it does not ask."""

    drains: ClassVar[bool] = False
    """Whether running tasks delay its completion; the command line then offers `--wait`."""

    job: ClassVar[bool] = False
    """Whether the supervisor applies it to the tasks that were selected for it."""

    audience: ClassVar[Literal["all", "supervisor", "worker", "none"]] = "supervisor"
    """Which processes send a receipt: supervisor and workers, the supervisor, the worker it names, or none."""

    danger: ClassVar[Danger] = "B"
    """Class of the command: A can be undone; B repeats or stops work; C loses data. Roles and questions follow it."""

    filled: ClassVar[frozenset[str]] = frozenset()
    """Fields that the sender fills in, which are not typed."""

    kind: str

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Register the command under its kind."""
        kind = cls.model_fields["kind"].default
        if isinstance(kind, str):
            KINDS[kind] = cls

    @property
    def changes(self) -> tuple[DesiredChange, ...]:
        """The changes of the desired state."""
        return tuple(DesiredChange(slot.format(self), mark) for slot, mark in self.slots.items())

    @property
    def words(self) -> str:
        """The command on one line: `stop agent=editor now`."""
        values = self.model_dump(mode="json", exclude={"kind", "digest", *self.filled}, exclude_defaults=True)
        parts = [name if value is True else f"{name}={value}" for name, value in values.items()]
        return " ".join([self.kind, *parts])


def given_fields(model: type[Command]) -> dict[str, FieldInfo]:
    """Return the fields of a command that its giver chooses, by name: first its target, then how long, then options."""
    fields = {name: field for name, field in model.model_fields.items() if name not in {"kind", *model.filled}}
    return dict(sorted(fields.items(), key=lambda field: (not field[1].is_required(), field[0] == "for_s")))


class _Scoped(Command):
    audience = "all"

    agent: AgentName | None = Field(default=None, description="Only this agent.")
    session: SessionId | None = Field(default=None, description="Only tasks of this session.")
    skill: SkillName | None = Field(default=None, description="Only tasks of this skill.")
    family: FamilyTask | None = Field(
        default=None, description="Only the family of this task: the first one above it and all below that."
    )

    @model_validator(mode="after")
    def _one_scope(self) -> _Scoped:
        if sum(part is not None for part in (self.agent, self.session, self.skill, self.family)) > 1:
            raise ValueError("name one of agent, session, skill and family, or none of them for everything")
        return self

    @property
    def scope(self) -> str:
        """The scope as slots spell it: `all`, `agent:A`, `session:S`, `skill:S` or `family:ID`."""
        for kind in ("agent", "session", "skill", "family"):
            if (name := getattr(self, kind)) is not None:
                return f"{kind}:{name}"
        return "all"


class Stop(_Scoped):
    """Stop starting tasks until `start`: everywhere, or of an agent, session, skill, family. Restarts end no stop.

    By default running tasks finish, and new tasks are accepted and wait.
    """

    slots = {"stop:{.scope}": "-"}
    verb = "stop"
    examples = (
        '--reason "the model answers nonsense"',
        "--agent editor --now",
        "--session 101 --refuse",
        "--wait --timeout 2m",
    )
    drains = True

    kind: Literal["stop"] = "stop"
    now: bool = Field(
        default=False, description="Interrupt running tasks; they return to their queues and no attempt is counted."
    )
    refuse: bool = Field(default=False, description="Reject new tasks with the error `Stopped`.")

    @property
    def changes(self) -> tuple[DesiredChange, ...]:
        """Fills the slot of its scope; the mark tells `now` and `refuse`."""
        mark = {(False, False): "-", (True, False): "n", (False, True): "r", (True, True): "b"}[self.now, self.refuse]
        return (DesiredChange(f"stop:{self.scope}", mark),)


class Start(_Scoped):
    """End the stop of the same scope, of an agent also its pause with an end. Other scopes stay as they are.

    With `limit`, end the pause of a limit.
    """

    slots = {"stop:{.scope}": ""}
    verb = "start"
    examples = ("", "--agent editor", "--limit model:gpt")
    danger = "A"

    kind: Literal["start"] = "start"
    limit: LimitName | None = Field(default=None, description="End the pause of this limit.")

    @model_validator(mode="after")
    def _no_other_scope(self) -> Start:
        if self.limit is not None and self.scope != "all":
            raise ValueError("name one of agent, session, skill, family and limit, or none of them for everything")
        return self

    @property
    def changes(self) -> tuple[DesiredChange, ...]:
        """Clears the stop of its scope, and the pause with an end of an agent or limit."""
        if self.limit is not None:
            return (DesiredChange(f"hold:limit:{self.limit}", ""),)
        stop = DesiredChange(f"stop:{self.scope}", "")
        return (stop,) if self.agent is None else (stop, DesiredChange(f"hold:agent:{self.agent}", ""))


class PauseAgent(Command):
    """Stop giving tasks to an agent until it is resumed. It finishes the tasks that it has; new tasks wait."""

    slots = {"pause:agent:{.agent}": "-"}
    verb = "agents pause"
    examples = ('editor --reason "too many errors"',)
    danger = "A"

    kind: Literal["pause-agent"] = "pause-agent"
    agent: AgentName


class TimedPause(Command):
    """Base of pauses that end by themselves."""

    filled = frozenset({"until_ms"})

    for_s: float = Field(gt=0, le=MAX_PAUSE_S, description="Seconds until the pause ends by itself.")
    until_ms: int = Field(default=0, ge=0, description="When it ends, by the clock of Redis.")

    def ending(self, now_ms: int) -> Self:
        """Return the command with its end: up to the next full second, so that many callers give the same one."""
        return self.model_copy(update={"until_ms": -(-(now_ms + round(self.for_s * 1000)) // 1000) * 1000})


class HoldAgent(TimedPause):
    """Stop giving tasks to an agent for a time. It finishes the tasks that it has; new tasks wait.

    A longer pause replaces a shorter one. `orc start --agent` or `orc agents resume` ends it early.
    """

    slots = {"hold:agent:{.agent}": "-"}
    verb = "agents hold"
    examples = ('editor 5m --reason "the model is down"',)
    danger = "A"

    kind: Literal["hold-agent"] = "hold-agent"
    agent: AgentName


class HoldLimit(TimedPause):
    """Let a limit allow no start for a time: every agent that has the limit waits.

    A longer pause replaces a shorter one. `orc start --limit` ends it early.
    """

    slots = {"hold:limit:{.limit}": "-"}
    verb = "limits hold"
    examples = ('model:gpt 60s --reason "429 with Retry-After: 60"',)
    danger = "A"

    kind: Literal["hold-limit"] = "hold-limit"
    limit: LimitName


class ResumeAgent(Command):
    """Resume an agent that is paused."""

    slots = {"pause:agent:{.agent}": "", "hold:agent:{.agent}": ""}
    verb = "agents resume"
    examples = ("editor",)
    danger = "A"

    kind: Literal["resume-agent"] = "resume-agent"
    agent: AgentName


class PauseQueue(Command):
    """Stop taking tasks from a queue (`skill:NAME` or `agent:NAME`) until it is resumed. New tasks wait."""

    slots = {"pause:queue:{.queue}": "-"}
    verb = "queues pause"
    examples = ('skill:summarize --reason "the model is down"', "agent:editor")
    danger = "A"

    kind: Literal["pause-queue"] = "pause-queue"
    queue: QueueText


class DrainQueue(Command):
    """Reject new tasks for a queue (`Stopped`) until it is resumed. Waiting tasks still run."""

    slots = {"drain:queue:{.queue}": "r"}
    verb = "queues drain"
    examples = ("skill:summarize",)
    danger = "A"

    kind: Literal["drain-queue"] = "drain-queue"
    queue: QueueText


class ResumeQueue(Command):
    """Resume a queue that is paused or drained."""

    slots = {"pause:queue:{.queue}": "", "drain:queue:{.queue}": ""}
    verb = "queues resume"
    examples = ("skill:summarize",)
    danger = "A"

    kind: Literal["resume-queue"] = "resume-queue"
    queue: QueueText


class SetLimit(Command):
    """Change the rate of a limit until it is reset, also across restarts. It applies from the next start on."""

    slots = {"limit:{.limit}": "-"}
    verb = "limits set"
    examples = ('model:gpt 30/min --reason "half of the quota"',)
    danger = "A"

    kind: Literal["set-limit"] = "set-limit"
    limit: LimitName
    rate: RateText


class ResetLimit(Command):
    """Reset a limit to the rate that agents or settings define."""

    slots = {"limit:{.limit}": ""}
    verb = "limits reset"
    examples = ("model:gpt",)
    danger = "A"

    kind: Literal["reset-limit"] = "reset-limit"
    limit: LimitName


class ClearLimit(Command):
    """End what keeps calls from a provider, and the pause of its limit: agents start tasks and call it again.

    A provider is blocked while it is throttled, its quota is used up, or it failed several times in a row.
    """

    slots = {"hold:limit:{.limit}": ""}
    verb = "limits clear"
    examples = ('model:gpt --reason "paid the bill"',)
    danger = "A"

    kind: Literal["clear-limit"] = "clear-limit"
    limit: LimitName


class SetShare(Command):
    """Set the share of a key (`submit(..., fair=KEY)`) until it is deleted.

    Each key with waiting tasks gets starts in proportion to its weight, which is 1 for a key without a share.
    A share replaces the one that the key had.
    """

    slots = {"share:KEY": "-"}
    verb = "shares set"
    examples = ("acme --weight 3", 'acme --weight 3 --at-most 50 --reason "large contract"')

    kind: Literal["set-share"] = "set-share"
    # Scripts read both numbers in front of the key, so that no text misleads them (`share_of` in `includes/share.lua`).
    weight: float = Field(
        default=1.0, ge=0.01, le=1000, allow_inf_nan=False, description="Starts in proportion to those of other keys."
    )
    at_most: int | None = Field(default=None, ge=1, le=1_000_000, description="Tasks of the key that run at a time.")
    key: ShareKey

    @property
    def changes(self) -> tuple[DesiredChange, ...]:
        """Fills the slot of its key."""
        return (DesiredChange(share_slot(encode_foreign("key", self.key)), "-"),)


class DeleteShare(Command):
    """Delete the share of a key: its weight is 1 again, and any number of its tasks may run."""

    slots = {"share:KEY": ""}
    verb = "shares delete"
    examples = ("acme",)

    kind: Literal["delete-share"] = "delete-share"
    key: ShareKey

    @property
    def changes(self) -> tuple[DesiredChange, ...]:
        """Clears the slot of its key."""
        return (DesiredChange(share_slot(encode_foreign("key", self.key)), ""),)


class SetBudget(Command):
    """Set limits of a budget (`submit(..., budget=NAME)`) until it is deleted. What is not named stays as it is.

    A higher limit lets tasks start that wait for the budget. A limit below what is spent is refused.
    """

    slots = {"budget:{.budget}": ""}
    verb = "budgets set"
    examples = ("run-7 --usd 2 --tokens 2M --soft 0.8", 'team --usd 50 --per day --at-hard ask --reason "pilot"')

    kind: Literal["set-budget"] = "set-budget"
    budget: BudgetName
    usd: AmountText | None = Field(default=None, description="Limit in US dollars; none: no limit.")
    tokens: AmountText | None = Field(default=None, description="Limit of tokens, as 2M; none: no limit.")
    calls: AmountText | None = Field(default=None, description="Limit of calls; none: no limit.")
    seconds: AmountText | None = Field(default=None, description="Limit of seconds; none: no limit.")
    soft: float | None = Field(
        default=None,
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="Share of a limit at which `ctx.budget.wrap_up` is true [0.8].",
    )
    per: Literal["day", "ever"] | None = Field(default=None, description="Begin anew each day (UTC), or never [ever].")
    at_hard: Literal["ask", "stop"] | None = Field(
        default=None, description="Without room, ask a person for more, or end the task [stop]."
    )
    lost: Literal["spent", "free"] | None = Field(
        default=None, description="What the holds of an attempt count as that died [spent]."
    )

    @property
    def definition(self) -> str:
        """The words that `lua/control/append.lua` reads; `=` for what stays, `-` for none."""
        words = [_limit_word(unit, getattr(self, unit)) for unit in UNITS]
        words.append("=" if self.soft is None else f"{self.soft:g}")
        words.append({None: "=", "ever": "-"}.get(self.per, "day"))
        return " ".join([*words, self.at_hard or "=", self.lost or "="])


class DeleteBudget(Command):
    """Delete a budget. Refused while attempts hold amounts of it, or tasks wait for it."""

    slots = {"budget:{.budget}": ""}
    verb = "budgets delete"
    examples = ("run-7",)

    kind: Literal["delete-budget"] = "delete-budget"
    budget: BudgetName


class DrainWorker(Command):
    """Stop giving tasks to a worker until it is resumed. It finishes the tasks that it has, and stays."""

    slots = {"drain:worker:{.worker}": "-"}
    verb = "workers drain"
    examples = ('host-7:4711 --reason "new version"', "host-7:4711 --wait --timeout 10m")
    drains = True
    audience = "worker"
    danger = "A"

    kind: Literal["drain-worker"] = "drain-worker"
    worker: WorkerName


class ResumeWorker(Command):
    """Resume a worker that drains."""

    slots = {"drain:worker:{.worker}": ""}
    verb = "workers resume"
    examples = ("host-7:4711",)
    audience = "worker"
    danger = "A"

    kind: Literal["resume-worker"] = "resume-worker"
    worker: WorkerName


class StopWorker(Command):
    """Let a worker finish its tasks and exit, as after SIGTERM. Its host does not replace it."""

    slots = {"drain:worker:{.worker}": "s"}
    verb = "workers stop"
    examples = ('host-7:4711 --reason "this machine is slow"',)
    drains = True
    audience = "worker"

    kind: Literal["stop-worker"] = "stop-worker"
    worker: WorkerName


class SetLogLevel(Command):
    """Set the log level of every supervisor and worker until it is reset."""

    slots = {"log:level": "-"}
    verb = "control log-level"
    examples = ('debug --reason "looking for the leak"',)
    audience = "all"
    danger = "A"

    kind: Literal["set-log-level"] = "set-log-level"
    level: LogLevel = Field(description="debug, info, warning or error.")


class ResetLogLevel(Command):
    """Reset the log level of every process to the one in its settings."""

    slots = {"log:level": ""}
    verb = "control log-level --reset"
    audience = "all"
    danger = "A"

    kind: Literal["reset-log-level"] = "reset-log-level"


class PublishConfig(Command):
    """Publish a configuration value to every program of the pool, also to those that start later.

    Handlers read it with `ctx.config`, other programs with `orc.config`. It is not a setting of orchestrator.toml.
    """

    slots = {"config:{.key}": "-"}
    verb = "config publish"
    examples = (
        "routing.model large",
        """batch '{"size": 20}' --reason "a slow disk\"""",
        "prompts @prompts.json",
    )
    audience = "all"
    danger = "A"

    kind: Literal["publish-config"] = "publish-config"
    key: ConfigKey
    value: JsonText


class WithdrawConfig(Command):
    """Withdraw a published configuration value."""

    slots = {"config:{.key}": ""}
    verb = "config withdraw"
    examples = ("routing.model",)
    audience = "all"
    danger = "A"

    kind: Literal["withdraw-config"] = "withdraw-config"
    key: ConfigKey


class RenewEpoch(Command):
    """Reject every command that was signed before now. Active commands stay active.

    Needed after a restore from a backup, because Redis has then forgotten which commands it has accepted since.
    """

    slots = {"epoch": "+"}
    verb = "control renew"
    examples = ('--reason "restored from the backup of Monday"', "--yes")
    confirm = "reject every command that was signed before now"
    danger = "C"

    kind: Literal["renew-epoch"] = "renew-epoch"


# ----------------------------------------------------------------------------------------------------------------- jobs


class Job(Command):
    """Applies an action to selected tasks; stays in `desired` until it is done."""

    job: ClassVar[bool] = True

    count: int = Field(ge=0, description="How many tasks were selected.")
    filter: str = Field(default="", max_length=2000, description="How they were selected, for display.")
    digest: str = Field(
        default="",
        max_length=64,
        description="SHA-256 of their ids, one per line, so that the signature covers the selection.",
    )

    def selecting(self, tasks: Sequence[str]) -> Self:
        """Return the command for these tasks."""
        return self.model_copy(update={"count": len(tasks), "digest": _digest(tasks)})

    def means(self, tasks: Sequence[str]) -> bool:
        """Return whether the command was given for these tasks."""
        return self.digest == _digest(tasks)


def _digest(tasks: Sequence[str]) -> str:
    return sha256("\n".join(tasks).encode()).hexdigest()


class CancelTasks(Job):
    """Cancel the selected tasks, and those below them."""

    kind: Literal["cancel-tasks"] = "cancel-tasks"
    only_this: bool = Field(default=False, description="The tasks below the selected ones go on.")


class RetryTasks(Job):
    """Retry the selected dead letters."""

    kind: Literal["retry-tasks"] = "retry-tasks"


class DeleteTasks(Job):
    """Delete the selected tasks, which have ended, permanently."""

    danger = "C"

    kind: Literal["delete-tasks"] = "delete-tasks"


class PurgeQueue(Job):
    """Cancel every task that was waiting in a queue when the command was given."""

    danger = "C"

    kind: Literal["purge-queue"] = "purge-queue"
    queue: QueueText


# -------------------------------------------------------------------------------------------------------------- records


class RecordCommand(Command):
    """Records an action that has been taken already."""

    audience = "none"


class RecordTasks(RecordCommand):
    """Records that tasks were cancelled, retried or deleted by their ids, or their redacted data shown."""

    kind: Literal["tasks"] = "tasks"
    action: Literal["cancel", "retry", "delete", "reveal"]
    tasks: tuple[TaskId, ...] = Field(min_length=1, max_length=500)


class RecordAnswer(RecordCommand):
    """Records the answer to a task that waited for a person."""

    kind: Literal["answer"] = "answer"
    task: TaskId
    question: int = Field(ge=1, description="Number of the question, from 1.")


class RecordSchedule(RecordCommand):
    """Records a change or a trigger of a schedule."""

    kind: Literal["schedule"] = "schedule"
    action: Literal["add", "replace", "pause", "resume", "trigger", "delete"]
    schedule: ScheduleName
    detail: str = Field(default="", max_length=2000, description="Its new definition, for display.")


class RecordLock(RecordCommand):
    """Records that a lock was taken from its holder."""

    kind: Literal["release-lock"] = "release-lock"
    lock: str = Field(min_length=1, max_length=1000)
    holder: str = Field(default="", max_length=1000)


class RecordSession(RecordCommand):
    """Records that a session was deleted, or a chat of it cleared."""

    kind: Literal["session"] = "session"
    action: Literal["delete", "clear-chat"]
    session: SessionId
    detail: str = Field(default="", max_length=2000, description="What was deleted, for display.")


class RecordStateChange(RecordCommand):
    """Records that a program changed state of sessions, memories or agents outside a task."""

    kind: Literal["change"] = "change"
    action: Literal[
        "change-workspace",
        "clear-workspace",
        "direct-agent",
        "change-chat",
        "clear-chat",
        "change-memory",
        "forget-memory",
        "change-agent-state",
    ]
    scopes: tuple[Annotated[str, Field(max_length=300)], ...] = Field(
        min_length=1, max_length=50, description="As session:ID; of a user a hash of prefix and id."
    )


class RecordErasure(RecordCommand):
    """Records that the text about a person was erased, without the text and without the person's id."""

    kind: Literal["erase"] = "erase"
    stage: Literal["begun", "ended"]
    person: str = Field(pattern=r"[0-9a-f]{32}", description="Hash of prefix and id of the person.")
    asked_by: str = Field(min_length=1, max_length=200, description="Who asked for it.")
    records: int = Field(default=0, ge=0)
    messages: int = Field(default=0, ge=0)
    summaries: int = Field(default=0, ge=0)
    sessions: int = Field(default=0, ge=0)
    tasks: int = Field(default=0, ge=0)
    stored: int = Field(default=0, ge=0, description="Items in second storage.")
    left: int = Field(default=0, ge=0, description="Places that could not be erased.")


class RecordUpgrade(RecordCommand):
    """Records that the lowest format of a program that the pool admits was raised."""

    kind: Literal["finish-upgrade"] = "finish-upgrade"
    floor: int = Field(ge=1, description="The lowest format that the pool admits.")


# ------------------------------------------------------------------------------------------------------------- encoding


@cache
def _adapter() -> TypeAdapter[Command]:
    union: Any = Annotated[reduce(or_, KINDS.values()), Field(discriminator="kind")]
    return TypeAdapter(union)


def encode_command(command: Command) -> bytes:
    """Encode a command as JSON: its kind and the fields that differ from their defaults."""
    return msgspec.json.encode({"kind": command.kind, **command.model_dump(mode="json", exclude_defaults=True)})


def decode_command(data: bytes) -> Command:
    """Decode a command.

    Raises:
        InvalidInput: this version does not know the kind, or a field is missing or invalid.
    """
    try:
        return _adapter().validate_json(data)
    except ValidationError as invalid:
        raise InvalidInput(f"not a command: {first_error(invalid)}") from None


def make_command(kind: str, values: Mapping[str, Any]) -> Command:
    """Create a command from user input; a value of None counts as missing.

    Raises:
        InvalidInput: a value is invalid; the message names the field.
    """
    try:
        return _adapter().validate_python(
            {"kind": kind, **{key: value for key, value in values.items() if value is not None}}
        )
    except ValidationError as invalid:
        raise InvalidInput(first_error(invalid)) from None


def first_error(invalid: ValidationError) -> str:
    """Return the first error in user input: its field, and what is wrong."""
    error = invalid.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in error["loc"] if str(part) not in KINDS)
    message = error["msg"].removeprefix("Value error, ")
    return f"{place}: {message}" if place else message


def commands_schema() -> dict[str, Any]:
    """Return the JSON schema of all commands."""
    schema = _adapter().json_schema()
    schema["title"] = "Control commands"
    return schema
