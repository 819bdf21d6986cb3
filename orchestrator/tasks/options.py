"""Declares the options of a task: types, checks, units, flags of the command line and texts, each once.

`submit`, `Submission`, child tasks, schedules, the blocking client, the command line and the reference page use them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeAlias, TypedDict, get_args, get_type_hints

from orchestrator.core.durability import LEVELS, Level
from orchestrator.core.durations import Duration, instant_ms, to_ms, to_seconds
from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import check_name, encode_foreign

PRIORITIES: Final = {"critical": 0, "high": 1, "normal": 2, "low": 3}
OnBusy: TypeAlias = Literal["enqueue", "reject", "interrupt", "replace"]
Convert: TypeAlias = Callable[[str, Any], Any]
MOST_BUDGETS: Final = 8
"""The most budgets that a task may name."""


@dataclass(frozen=True, slots=True)
class Option:
    """Describes one option.

    Attributes:
        text: the help text and the text of the reference page.
        convert: checks a value, by the option's name, and returns it in the unit of the row or the envelope.
        metavar: the value on the command line.
        default: a value that is not sent.
        flag: the option of the command line, by default the name; `--timeout` is how long to wait.
        envelope: the field of the envelope that has the converted value, or None if only the row has it.
        name: as a keyword argument.
        type: as a type checker sees it.
    """

    text: str
    convert: Convert
    metavar: str
    default: Any = None
    flag: str = ""
    envelope: str | None = None
    name: str = ""
    type: Any = None


def _check_foreign(name: str, value: str) -> str:
    encode_foreign(name, value)
    return value


def _check_level(name: str, value: str | int) -> int:
    if isinstance(value, str) and value in PRIORITIES:
        return PRIORITIES[value]
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 9:
        return value
    raise InvalidInput(f"{name} {value!r} is not known; use critical, high, normal, low or 0 to 9 (lower first)")


def _check_attempts(name: str, value: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1000:
        return value
    raise InvalidInput(f"{name} must be a whole number from 1 to 1000, not {value!r}")


def _check_tags(name: str, value: Sequence[str]) -> tuple[str, ...]:
    if isinstance(value, str):
        raise InvalidInput(f"{name} must be a list of texts, not the text {value!r}")
    for tag in value or ():
        encode_foreign("tag", tag)
    return tuple(value or ())


def _check_budgets(name: str, value: str | Sequence[str] | None) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value or ())
    for one in names:
        check_name(name, one)
    if len(set(names)) > MOST_BUDGETS:
        raise InvalidInput(f"a task has {len(set(names))} budgets; at most {MOST_BUDGETS} are allowed")
    return tuple(dict.fromkeys(names))


def _check_on_busy(name: str, value: str) -> str:
    if value not in get_args(OnBusy):
        raise InvalidInput(f"{name} {value!r} is not known; use {', '.join(get_args(OnBusy))}")
    return value


def _check_durability(name: str, value: str | None) -> str | None:
    if value is not None and value not in LEVELS:
        raise InvalidInput(f"{name} {value!r} is not known; use {', '.join(LEVELS)}")
    return value


def _check_flag(name: str, value: bool) -> bool:  # noqa: FBT001 - a converter, called by position
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} must be True or False, not {value!r}")
    return value


def _positive_seconds(name: str, value: Duration) -> float:
    seconds = to_seconds(name, value)
    if seconds == 0:
        raise InvalidInput(f"{name} must be more than 0 seconds")
    return seconds


def _whole_seconds(name: str, value: Duration) -> int:
    return -(-to_ms(name, value) // 1000)


class RepeatableOptions(TypedDict, total=False):
    """Options that the tasks of a schedule may have, too."""

    agent: Annotated[
        str | None, Option("Send it to this agent; by default any agent with the skill takes it.", check_name, "AGENT")
    ]
    session: Annotated[
        str | None,
        Option("Session that it belongs to; at most 256 bytes.", _check_foreign, "SESSION", envelope="session"),
    ]
    lane: Annotated[
        str | None,
        Option(
            "Run the tasks of this lane one after another, in submission order; at most 256 bytes.",
            encode_foreign,
            "LANE",
        ),
    ]
    fair: Annotated[
        str | None,
        Option(
            "Key whose share it counts for, as a customer: keys with waiting tasks take turns (`orc shares`); at most "
            "256 bytes.",
            _check_foreign,
            "KEY",
            envelope="fair",
        ),
    ]
    budget: Annotated[
        str | Sequence[str] | None,
        Option(
            "Budget that it and its children spend, or several (`orc budgets`); a child adds its own to those of its "
            "parent.",
            _check_budgets,
            "NAME",
        ),
    ]
    priority: Annotated[
        str | int,
        Option(
            "critical, high, normal, low, or 0 to 9 (lower first).",
            _check_level,
            "LEVEL",
            default="normal",
            envelope="priority",
        ),
    ]
    tags: Annotated[
        Sequence[str],
        Option("Label; at most `queue.max_tags`.", _check_tags, "TAG", default=(), flag="--tag", envelope="tags"),
    ]
    timeout: Annotated[
        Duration | None,
        Option(
            "Time limit of one attempt.",
            _positive_seconds,
            "DURATION",
            flag="--attempt-timeout",
            envelope="timeout_s",
        ),
    ]
    max_attempts: Annotated[
        int | None,
        Option("Failures until it is a dead letter; 1 to 1000.", _check_attempts, "N", envelope="max_attempts"),
    ]
    result_ttl: Annotated[
        Duration | None,
        Option("How long to keep the task after its end; at least 5 minutes.", _whole_seconds, "DURATION"),
    ]


class TaskOptions(RepeatableOptions, total=False):
    """Options of a task, as keyword arguments of a submit."""

    delay: Annotated[Duration | None, Option("Do not start before this time has passed.", to_ms, "DURATION")]
    at: Annotated[
        datetime | None,
        Option("Do not start before this time; the later of `at` and `delay` counts.", instant_ms, "TIME"),
    ]
    start_by: Annotated[datetime | None, Option("Do not start after this time; the task expires.", instant_ms, "TIME")]
    key: Annotated[
        str | None,
        Option(
            "Idempotency key, at most 256 bytes: a second submit with the same key and body returns the same task.",
            encode_foreign,
            "KEY",
        ),
    ]
    on_busy: Annotated[
        OnBusy,
        Option(
            "When the lane has a task that has not ended: enqueue (run after it), reject (refuse this one), interrupt "
            "(cancel it and run this one next) or replace (cancel all that have not begun).",
            _check_on_busy,
            "POLICY",
            default="enqueue",
        ),
    ]
    durability: Annotated[
        Level | None,
        Option(
            "What must be confirmed before the submit returns: fsync (the task is on the disk of Redis), replicated (a "
            "replica has it) or default (neither). By default `queue.durability`.",
            _check_durability,
            "LEVEL",
        ),
    ]
    require_agent: Annotated[
        bool,
        Option(
            "Refuse the task when no live agent has the skill, or when the agent that it is addressed to lacks it. "
            "Costs a round trip.",
            _check_flag,
            "",
            default=False,
        ),
    ]


def options_of(declared: type[Any]) -> dict[str, Option]:
    """Return the options that a TypedDict declares, by name."""
    found: dict[str, Option] = {}
    for name, hint in get_type_hints(declared, include_extras=True).items():
        type_, option = get_args(hint)
        flag = option.flag or f"--{name.replace('_', '-')}"
        found[name] = replace(option, name=name, type=type_, flag=flag)
    return found


TASK_OPTIONS: Final = options_of(TaskOptions)
REPEATABLE: Final = frozenset(options_of(RepeatableOptions))


_DEFAULTS: Final = {name: option.default for name, option in TASK_OPTIONS.items()}


def without_defaults(options: TaskOptions) -> dict[str, Any]:
    """Return the options whose values differ from the default."""
    return {name: value for name, value in options.items() if value != _DEFAULTS[name]}
