"""Every command that an operator can give, as data: one model per kind, told apart by `kind`.

The command line, `orc.admin` and the JSON schema are made from these; whoever obeys matches on them. A command changes
what is active (`changes`), or it is a job for the supervisor (`job`), or it only records what was done (neither).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence  # noqa: TC003 - pydantic reads annotations
from hashlib import sha256
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self, TypeAlias, get_args

import msgspec
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import check_name, check_task_id, encode_foreign
from orchestrator.core.payload import decode_json
from orchestrator.core.rates import parse_rate


class DesiredChange(NamedTuple):
    """One change of the desired state.

    Attributes:
        slot: field of the hash `desired`, as `stop:agent:editor`.
        mark: second letter of its value: `r` refuses new tasks, `n` interrupts what runs, `b` does both, `s` ends the
            process, `-` none of it; empty: the slot is emptied, what was active ends.
    """

    slot: str
    mark: str


def _name(kind: str) -> AfterValidator:
    return AfterValidator(lambda value: check_name(kind, value))


def _check_session(value: str) -> str:
    encode_foreign("session", value)
    return value


def _check_queue(value: str) -> str:
    kind, _, name = value.partition(":")
    if kind not in {"skill", "agent"}:
        raise ValueError("must be skill:NAME or agent:NAME, as `orc queues list` shows it")
    check_name(kind, name)
    return value


def _check_limit(value: str) -> str:
    # The own limit of an agent is called `@AGENT`.
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


AgentName: TypeAlias = Annotated[str, _name("agent")]
SkillName: TypeAlias = Annotated[str, _name("skill")]
WorkerName: TypeAlias = Annotated[str, _name("worker")]
LimitName: TypeAlias = Annotated[str, AfterValidator(_check_limit)]
ScheduleName: TypeAlias = Annotated[str, _name("schedule")]
SessionId: TypeAlias = Annotated[str, AfterValidator(_check_session)]
QueueName: TypeAlias = Annotated[str, AfterValidator(_check_queue)]
RateText: TypeAlias = Annotated[str, AfterValidator(_check_rate)]
TaskId: TypeAlias = Annotated[str, AfterValidator(check_task_id)]
ConfigKey: TypeAlias = Annotated[str, _name("config key")]
JsonText: TypeAlias = Annotated[str, AfterValidator(_check_json)]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]


class _Command(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    job: ClassVar[bool] = False
    """Whether the supervisor carries it out, on the tasks that were selected for it."""

    audience: ClassVar[Literal["everybody", "supervisor", "worker", "nobody"]] = "supervisor"
    """Who is to answer: every worker and the supervisor, that one alone, the worker that it names, or nobody."""

    kind: str

    @property
    def changes(self) -> tuple[DesiredChange, ...]:
        """The changes of the desired state."""
        return ()

    @property
    def words(self) -> str:
        """The command on one line, for people: `stop agent=editor now`."""
        said = self.model_dump(mode="json", exclude={"kind", "digest"}, exclude_defaults=True)
        parts = [name if value is True else f"{name}={value}" for name, value in said.items()]
        return " ".join([self.kind, *parts])


class _Scoped(_Command):
    """What holds for everything, or for one agent, session or skill."""

    audience = "everybody"

    agent: AgentName | None = Field(default=None, description="Only this agent.")
    session: SessionId | None = Field(default=None, description="Only tasks of this session.")
    skill: SkillName | None = Field(default=None, description="Only tasks of this skill.")

    @model_validator(mode="after")
    def _one_scope(self) -> _Scoped:
        if sum(part is not None for part in (self.agent, self.session, self.skill)) > 1:
            raise ValueError("name one of agent, session and skill, or none of them for everything")
        return self

    @property
    def scope(self) -> str:
        """What it holds for, as it stands in a slot: `all`, `agent:A`, `session:S` or `skill:S`."""
        for kind in ("agent", "session", "skill"):
            if (name := getattr(self, kind)) is not None:
                return f"{kind}:{name}"
        return "all"


class Stop(_Scoped):
    """Start nothing more, until `start`. What runs goes on, unless it is interrupted."""

    kind: Literal["stop"] = "stop"
    now: bool = Field(
        default=False, description="Interrupt what runs; it goes back to its queue, no attempt is counted."
    )
    refuse: bool = Field(default=False, description="Refuse new tasks too; otherwise they are accepted and wait.")

    @property
    def changes(self) -> tuple[DesiredChange, ...]:
        """Fill the slot of its scope."""
        mark = {(False, False): "-", (True, False): "n", (False, True): "r", (True, True): "b"}[self.now, self.refuse]
        return (DesiredChange(f"stop:{self.scope}", mark),)


class Start(_Scoped):
    """End the stop of the same scope."""

    kind: Literal["start"] = "start"

    @property
    def changes(self) -> tuple[DesiredChange, ...]:
        """Empty the slot of its scope."""
        return (DesiredChange(f"stop:{self.scope}", ""),)


class PauseAgent(_Command):
    """Give an agent nothing more. What it has been given, it does."""

    kind: Literal["pause-agent"] = "pause-agent"
    agent: AgentName

    @property
    def changes(self) -> tuple[DesiredChange, ...]:
        """Fill its slot."""
        return (DesiredChange(f"pause:agent:{self.agent}", "-"),)


class ResumeAgent(_Command):
    """End the pause of an agent."""

    kind: Literal["resume-agent"] = "resume-agent"
    agent: AgentName

    @property
    def changes(self) -> tuple[DesiredChange, ...]:
        """Empty its slot."""
        return (DesiredChange(f"pause:agent:{self.agent}", ""),)


class PauseQueue(_Command):
    """Take nothing more out of a queue. New tasks are accepted and wait."""

    kind: Literal["pause-queue"] = "pause-queue"
    queue: QueueName

    @property
    def changes(self) -> tuple[DesiredChange, ...]:
        """Fill its slot."""
        return (DesiredChange(f"pause:queue:{self.queue}", "-"),)


class DrainQueue(_Command):
    """Refuse new tasks for a queue; what waits in it is worked off."""

    kind: Literal["drain-queue"] = "drain-queue"
    queue: QueueName

    @property
    def changes(self) -> tuple[DesiredChange, ...]:
        """Fill its slot."""
        return (DesiredChange(f"drain:queue:{self.queue}", "r"),)


class ResumeQueue(_Command):
    """End the pause and the drain of a queue."""

    kind: Literal["resume-queue"] = "resume-queue"
    queue: QueueName

    @property
    def changes(self) -> tuple[DesiredChange, ...]:
        """Empty both slots."""
        return (DesiredChange(f"pause:queue:{self.queue}", ""), DesiredChange(f"drain:queue:{self.queue}", ""))


class SetLimit(_Command):
    """Give a limit another rate, from the next start on."""

    kind: Literal["set-limit"] = "set-limit"
    limit: LimitName
    rate: RateText

    @property
    def changes(self) -> tuple[DesiredChange, ...]:
        """Fill its slot; `append` puts the rate over the one that agents or settings define."""
        return (DesiredChange(f"limit:{self.limit}", "-"),)


class ResetLimit(_Command):
    """Let a limit have the rate again that agents or settings define."""

    kind: Literal["reset-limit"] = "reset-limit"
    limit: LimitName

    @property
    def changes(self) -> tuple[DesiredChange, ...]:
        """Empty its slot."""
        return (DesiredChange(f"limit:{self.limit}", ""),)


class DrainWorker(_Command):
    """Give a worker nothing more; it finishes what it has, and stays."""

    audience = "worker"

    kind: Literal["drain-worker"] = "drain-worker"
    worker: WorkerName

    @property
    def changes(self) -> tuple[DesiredChange, ...]:
        """Fill its slot."""
        return (DesiredChange(f"drain:worker:{self.worker}", "-"),)


class ResumeWorker(_Command):
    """End the drain of a worker."""

    audience = "worker"

    kind: Literal["resume-worker"] = "resume-worker"
    worker: WorkerName

    @property
    def changes(self) -> tuple[DesiredChange, ...]:
        """Empty its slot."""
        return (DesiredChange(f"drain:worker:{self.worker}", ""),)


class StopWorker(_Command):
    """Let a worker finish what it has, as after SIGTERM, and end; its host starts no other in its place."""

    audience = "worker"

    kind: Literal["stop-worker"] = "stop-worker"
    worker: WorkerName

    @property
    def changes(self) -> tuple[DesiredChange, ...]:
        """Fill the slot of its drain."""
        return (DesiredChange(f"drain:worker:{self.worker}", "s"),)


class SetLogLevel(_Command):
    """Let all supervisors and workers log from this level on."""

    audience = "everybody"

    kind: Literal["set-log-level"] = "set-log-level"
    level: LogLevel

    @property
    def changes(self) -> tuple[DesiredChange, ...]:
        """Fill the slot."""
        return (DesiredChange("log:level", "-"),)


class ResetLogLevel(_Command):
    """Let every process log from the level on that its settings say."""

    audience = "everybody"

    kind: Literal["reset-log-level"] = "reset-log-level"

    @property
    def changes(self) -> tuple[DesiredChange, ...]:
        """Empty the slot."""
        return (DesiredChange("log:level", ""),)


class PublishConfig(_Command):
    """Let a configuration value be known to all programs: what handlers read with `ctx.config`."""

    audience = "everybody"

    kind: Literal["publish-config"] = "publish-config"
    key: ConfigKey
    value: JsonText = Field(max_length=8192, description="As JSON text.")

    @property
    def changes(self) -> tuple[DesiredChange, ...]:
        """Fill its slot."""
        return (DesiredChange(f"config:{self.key}", "-"),)


class WithdrawConfig(_Command):
    """Let a configuration value be known no more."""

    audience = "everybody"

    kind: Literal["withdraw-config"] = "withdraw-config"
    key: ConfigKey

    @property
    def changes(self) -> tuple[DesiredChange, ...]:
        """Empty its slot."""
        return (DesiredChange(f"config:{self.key}", ""),)


class RenewEpoch(_Command):
    """Refuse from now on what was signed before, as after a restore from a backup that has forgotten commands."""

    kind: Literal["renew-epoch"] = "renew-epoch"

    @property
    def changes(self) -> tuple[DesiredChange, ...]:
        """Raise the epoch."""
        return (DesiredChange("epoch", "+"),)


# ----------------------------------------------------------------------------------------------------------------- jobs


class Job(_Command):
    """Something done to tasks that were selected before; `changes` keeps it in `desired` until it is done."""

    job: ClassVar[bool] = True

    count: int = Field(ge=0, description="How many tasks were selected.")
    filter: str = Field(default="", max_length=2000, description="How they were selected, in words.")
    digest: str = Field(
        default="", max_length=64, description="SHA-256 of their ids, one a line: the signature covers them."
    )

    def selecting(self, tasks: Sequence[str]) -> Self:
        """The command for these tasks."""
        return self.model_copy(update={"count": len(tasks), "digest": _digest(tasks)})

    def means(self, tasks: Sequence[str]) -> bool:
        """Whether these are the tasks that it was given for."""
        return self.digest == _digest(tasks)


def _digest(tasks: Sequence[str]) -> str:
    return sha256("\n".join(tasks).encode()).hexdigest()


class CancelTasks(Job):
    """Cancel the selected tasks."""

    kind: Literal["cancel-tasks"] = "cancel-tasks"


class RetryTasks(Job):
    """Let the selected dead letters run again."""

    kind: Literal["retry-tasks"] = "retry-tasks"


class DeleteTasks(Job):
    """Delete the selected tasks, which have ended, for good."""

    kind: Literal["delete-tasks"] = "delete-tasks"


class PurgeQueue(Job):
    """Cancel all that waited in a queue when it was asked for."""

    kind: Literal["purge-queue"] = "purge-queue"
    queue: QueueName


# -------------------------------------------------------------------------------------------------------------- records


class _Record(_Command):
    """Something that the one who asked has done already; it is kept with who and why."""

    audience = "nobody"


class RecordTasks(_Record):
    """Tasks named by their ids were cancelled, requeued or deleted."""

    kind: Literal["tasks"] = "tasks"
    action: Literal["cancel", "retry", "delete"]
    tasks: tuple[TaskId, ...] = Field(min_length=1, max_length=500)


class RecordAnswer(_Record):
    """A task that waited for a person was answered."""

    kind: Literal["answer"] = "answer"
    task: TaskId
    question: int = Field(ge=1, description="Which of its questions, counted from 1.")


class RecordSchedule(_Record):
    """A schedule was changed or triggered."""

    kind: Literal["schedule"] = "schedule"
    action: Literal["add", "replace", "pause", "resume", "trigger", "delete"]
    schedule: ScheduleName
    detail: str = Field(default="", max_length=2000, description="What it says from now on, in words.")


class RecordLock(_Record):
    """A lock was taken from its holder."""

    kind: Literal["release-lock"] = "release-lock"
    lock: str = Field(min_length=1, max_length=1000)
    holder: str = Field(default="", max_length=1000)


Command: TypeAlias = Annotated[
    Stop
    | Start
    | PauseAgent
    | ResumeAgent
    | PauseQueue
    | DrainQueue
    | ResumeQueue
    | SetLimit
    | ResetLimit
    | DrainWorker
    | ResumeWorker
    | StopWorker
    | SetLogLevel
    | ResetLogLevel
    | PublishConfig
    | WithdrawConfig
    | RenewEpoch
    | CancelTasks
    | RetryTasks
    | DeleteTasks
    | PurgeQueue
    | RecordTasks
    | RecordAnswer
    | RecordSchedule
    | RecordLock,
    Field(discriminator="kind"),
]

_adapter: Final[TypeAdapter[Command]] = TypeAdapter(Command)
_models: Final[tuple[type[_Command], ...]] = get_args(get_args(Command)[0])
KINDS: Final[Mapping[str, type[_Command]]] = {model.model_fields["kind"].default: model for model in _models}
"""Every kind of command, with its model."""


def encode_command(command: Command) -> bytes:
    """The command as JSON: its kind and what was said, not the defaults."""
    return msgspec.json.encode({"kind": command.kind, **command.model_dump(mode="json", exclude_defaults=True)})


def decode_command(data: bytes) -> Command:
    """Read a command.

    Raises:
        InvalidInput: it is none that this version knows, or does not say what it must.
    """
    try:
        return _adapter.validate_json(data)
    except ValidationError as invalid:
        raise InvalidInput(f"not a command: {_first(invalid)}") from None


def make_command(kind: str, values: Mapping[str, Any]) -> Command:
    """Make a command from what a person typed.

    Raises:
        InvalidInput: it does not fit; the message says what and why.
    """
    try:
        return _adapter.validate_python(
            {"kind": kind, **{key: value for key, value in values.items() if value is not None}}
        )
    except ValidationError as invalid:
        raise InvalidInput(_first(invalid)) from None


def _first(invalid: ValidationError) -> str:
    error = invalid.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in error["loc"] if str(part) not in KINDS)
    message = error["msg"].removeprefix("Value error, ")
    return f"{place}: {message}" if place else message


def commands_schema() -> dict[str, Any]:
    """The JSON schema of all commands."""
    schema = _adapter.json_schema()
    schema["title"] = "Control commands"
    return schema
