"""Skills: handlers with validated arguments, limits and retries."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import typing
import warnings
from dataclasses import dataclass
from datetime import timedelta  # noqa: TC003 - part of public signatures
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, ParamSpec, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import from_json

from orchestrator.agents.descriptions import SkillDescription
from orchestrator.agents.model import SkillVersion
from orchestrator.core.amounts import NOTHING, Amount, Amounts, parse_amounts
from orchestrator.core.durations import to_seconds
from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import check_name
from orchestrator.core.payload import encode_json
from orchestrator.core.redaction import HIDDEN, name_of
from orchestrator.locks.execution import MODES, LockMode
from orchestrator.tasks.options import MOST_BUDGETS
from orchestrator.workers.context import TaskContext
from orchestrator.workers.retrying import DelayOption, RetryOption, RetryPolicy, make_policy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from pydantic_core import CoreSchema

P = ParamSpec("P")
T = TypeVar("T")

RESULT_DEPTH: Final = 128
"""Deepest nesting of a result; pydantic reads at most 200 levels."""
_SHORT_BYTES: Final = 2048
MAX_SNOOZES: Final = 1000
"""Default of `max_snoozes`: a task that is snoozed every minute lasts for most of a day."""

MAY_FIT_LATER: Final = frozenset(
    {
        "date_future", "date_past", "datetime_future", "datetime_past",
        "parent_does_not_exist", "path_exists", "path_not_directory", "path_not_file", "path_not_socket",
    }
)  # fmt: skip
"""Validation errors that depend on the local clock or files, so that the worker may not see them."""


SCHEMA_TEXTS: Final = frozenset({"title", "description", "examples", "default", "deprecated"})


class HandlerKind(StrEnum):
    """The place where a handler runs."""

    LOOP = "loop"
    """`async def`: in the worker's event loop."""
    THREAD = "thread"
    """`def`: in a thread of the worker."""
    PROCESS = "process"
    """`process=True`: in a separate process."""


@dataclass(frozen=True, slots=True)
class SkillOptions:
    """Limits and retries of a skill.

    Attributes:
        timeout_s: limit of one attempt; None for no limit.
        silence_s: longest time between signs of life; None for no limit.
        max_attempts: failures after which the task becomes a dead letter.
        max_deaths: deaths of workers in which it was the only suspect, after which the task becomes a dead letter.
        retry: which failures are retried, and when.
        max_snoozes: snoozes after which the next one makes the task a dead letter; None for no limit.
        lock: the scope that an attempt locks.
        redact: hide arguments, results, output and the texts of exceptions in logs, errors and displays.
        reserve: what each start takes from the budgets of its task.
        budgets: further budgets that each attempt spends.
    """

    timeout_s: float | None
    silence_s: float | None
    max_attempts: int
    max_deaths: int
    retry: RetryPolicy
    max_snoozes: int | None = MAX_SNOOZES
    lock: LockMode = "task"
    redact: bool = False
    reserve: Amounts = NOTHING
    budgets: tuple[str, ...] = ()


class Skill(Generic[P, T]):
    """A handler with a name. Calling the skill calls the handler, so that a test needs no server.

    Attributes:
        kind: where the handler runs.
        owner: the agent that has the skill.
    """

    def __init__(
        self, handler: Callable[P, Awaitable[T] | T], *, name: str, options: SkillOptions, process: bool = False
    ) -> None:
        self.name: str = check_name("skill", name)
        self.handler = handler
        self.options = options
        self.owner: object = None
        self.kind: HandlerKind = _kind(handler, name, process=process)
        functools.update_wrapper(self, handler, updated=())
        signature = _readable_signature(handler, name)
        self._context_name, parameters = _split_context(signature, name)
        if process and self._context_name is not None:
            raise InvalidInput(
                f"handler {name!r} has process=True, so it gets no context; remove the parameter "
                f"{self._context_name!r}, or process=True"
            )
        # The names of the fields cannot clash with attributes of a model; the aliases are the parameters' names.
        self._parameters = [(f"argument {number}", parameter) for number, parameter in enumerate(parameters)]
        fields: dict[str, Any] = {
            field: (Annotated[parameters[parameter][0], Field(alias=parameter)], parameters[parameter][1])
            for field, parameter in self._parameters
        }
        returned = signature.return_annotation
        try:
            self._arguments: type[BaseModel] = create_model(
                f"{name} arguments", __config__=ConfigDict(extra="forbid"), **fields
            )
            self._result = _result_adapter(Any if returned is inspect.Signature.empty else returned)
        except PydanticUserError as unusable:
            raise InvalidInput(
                f"handler {name!r} has a type that pydantic cannot validate: {unusable.message}"
            ) from None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, None, T]:
        """Call the handler."""
        # With `Coroutine[Any, Any, T]`, mypy infers Any for `asyncio.gather`.
        return self.handler(*args, **kwargs)  # type: ignore[return-value]  # `PlainSkill` has the other case

    def __repr__(self) -> str:
        return f"Skill({self.name!r})"

    @property
    def takes_context(self) -> bool:
        """True if the handler has a `TaskContext` parameter."""
        return self._context_name is not None

    def check_args(self, args: bytes) -> None:
        """Validate JSON arguments before they are submitted.

        Arguments pass that only the worker can judge, because the user's validators may need its files or services.

        Raises:
            InvalidInput: the arguments are invalid; the message is that of `bind`.
        """
        try:
            self._arguments.__pydantic_validator__.validate_json(args, by_alias=True, by_name=True)
        except ValidationError as refused:
            if not any(error["type"] in MAY_FIT_LATER for error in refused.errors(include_url=False)):
                raise self._invalid(refused) from None
        except Exception:  # noqa: BLE001 - a broken validator does not make the arguments invalid
            return

    def bind(self, args: bytes, context: TaskContext | None) -> dict[str, Any]:
        """Validate JSON arguments and return the keyword arguments of the handler.

        Raises:
            InvalidInput: the arguments are invalid; the message names each.
        """
        try:
            # The validator is called directly, because its wrapper in pydantic costs as much again.
            checked = self._arguments.__pydantic_validator__.validate_json(args, by_alias=True, by_name=True).__dict__
        except ValidationError as refused:
            raise self._invalid(refused) from None
        except Exception as broken:
            # Validators and default factories are user code and may raise anything.
            if self.options.redact:
                raise InvalidInput(f"validation of the arguments of {self.name!r} failed: {name_of(broken)}") from None
            raise InvalidInput(
                f"validation of the arguments of {self.name!r} failed: {type(broken).__name__}: {broken}"
            ) from broken
        values = {parameter: checked[field] for field, parameter in self._parameters}
        if self._context_name is not None:
            values[self._context_name] = context
        return values

    @functools.cached_property
    def version(self) -> SkillVersion:
        """The arguments that the handler takes; workers register it."""
        parameters = [(name, self._arguments.model_fields[field].is_required()) for field, name in self._parameters]
        digest = hashlib.blake2b(digest_size=6, person=b"orc-skill")
        digest.update(json.dumps([self.name, parameters, _schema_of(self._arguments)], sort_keys=True).encode())
        return SkillVersion(
            digest.hexdigest(),
            required=tuple(name for name, required in parameters if required),
            optional=tuple(name for name, required in parameters if not required),
        )

    @property
    def description(self) -> SkillDescription:
        """Docstring and JSON schemas of the handler; workers store them."""
        return SkillDescription(
            doc=inspect.getdoc(self.handler) or "" if inspect.isroutine(self.handler) else "",
            arguments=_json_schema(lambda: self._arguments.model_json_schema(schema_generator=_TolerantSchema)),
            result=_json_schema(
                lambda: self._result.json_schema(schema_generator=_TolerantSchema, mode="serialization")
            ),
        )

    def _invalid(self, refused: ValidationError) -> InvalidInput:
        problems = self._problems_without_values(refused) if self.options.redact else _readable(refused)
        return InvalidInput(f"arguments do not fit {self.name!r}: {problems}")

    def _problems_without_values(self, refused: ValidationError) -> str:
        """Name the parameters and the kinds of problems: the names inside a value, and messages, may be data."""
        names = {name for _, name in self._parameters}
        problems = refused.errors(include_url=False, include_input=False, include_context=False)
        return "; ".join(
            f"{error['loc'][0] if error['loc'] and error['loc'][0] in names else 'arguments'}: {error['type']}"
            for error in problems
        )

    def dump_result(self, value: T, *, max_bytes: int) -> bytes:
        """Encode the value that the handler returned as JSON.

        Raises:
            InvalidInput: JSON cannot represent the value, or it is too large.
        """
        try:
            data: bytes = self._result.serializer.to_json(value, warnings="error")
        except Exception:  # noqa: BLE001 - the slower path below reports it
            data = b""
        if data and len(data) <= max_bytes and _surely_json(data):
            return data
        try:
            plain = self._result.dump_python(value, mode="json", warnings="error")
        except Exception as invalid:
            # Serialisers are user code and may raise anything.
            if self.options.redact:
                raise InvalidInput(f"result of {self.name!r} does not fit its type or JSON: {HIDDEN}") from None
            raise InvalidInput(f"result of {self.name!r} does not fit its type or JSON: {invalid}") from invalid
        try:
            return encode_json(f"result of {self.name!r}", plain, max_bytes=max_bytes, max_depth=RESULT_DEPTH)
        except InvalidInput:
            if self.options.redact:
                # The message may have a key of the result.
                raise InvalidInput(f"result of {self.name!r} is too large or no JSON: {HIDDEN}") from None
            raise

    def read_result(self, data: bytes) -> T:
        """Decode a result as the type that the handler returns."""
        result: T = self._result.validate_json(data, by_alias=True, by_name=True)
        return result


class PlainSkill(Skill[P, T]):
    """A skill whose handler is a plain `def`: calling it returns the value."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:  # type: ignore[override]
        """Call the handler."""
        return self.handler(*args, **kwargs)  # type: ignore[return-value]


def make_skill(
    handler: Callable[..., Any], *, name: str | None, options: SkillOptions, process: bool
) -> Skill[Any, Any]:
    """Create a skill, by default with the name of the function.

    Raises:
        InvalidInput: the function cannot be a handler.
    """
    name = name or getattr(handler, "__name__", None)
    if not name:
        raise InvalidInput(f"{handler!r} has no name; give the skill one: @agent.skill(name=…)")
    if isinstance(handler, Skill):
        handler = handler.handler  # a function may be a skill of several agents
    kind = Skill if _is_async(handler) else PlainSkill
    return kind(handler, name=name, options=options, process=process)


def make_options(
    *,
    timeout: float | timedelta | None,
    silence: float | timedelta | None,
    max_attempts: int,
    max_deaths: int,
    backoff: DelayOption,
    retry_on: RetryOption = None,
    give_up_on: RetryOption = None,
    max_snoozes: int | None = MAX_SNOOZES,
    lock: LockMode = "task",
    redact: bool = False,
    reserve: Mapping[str, Amount] | None = None,
    budget: str | Sequence[str] | None = None,
) -> SkillOptions:
    """Validate the options of a skill.

    Raises:
        InvalidInput: an option is invalid.
    """
    _check_count("max_attempts", max_attempts, 1000)
    _check_count("max_deaths", max_deaths, 1000)
    if max_snoozes is not None:
        _check_count("max_snoozes", max_snoozes, 1_000_000)
    if lock not in MODES:
        raise InvalidInput(f"lock must be one of {', '.join(MODES)}, not {lock!r}")
    return SkillOptions(
        timeout_s=_limit_s("timeout", timeout),
        silence_s=_limit_s("silence", silence),
        max_attempts=max_attempts,
        max_deaths=max_deaths,
        retry=make_policy(backoff, retry_on, give_up_on),
        max_snoozes=max_snoozes,
        lock=lock,
        redact=redact,
        reserve=parse_amounts(reserve or {}),
        budgets=check_budgets(budget),
    )


def check_budgets(budget: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of budgets that an agent or a skill names.

    Raises:
        InvalidInput: a name is no name, or there are too many.
    """
    names = (budget,) if isinstance(budget, str) else tuple(budget or ())
    if len(names) > MOST_BUDGETS:
        raise InvalidInput(f"budget= names {len(names)} budgets; at most {MOST_BUDGETS} are allowed")
    return tuple(dict.fromkeys(check_name("budget", name) for name in names))


def _check_count(name: str, count: object, most: int) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= most:
        raise InvalidInput(f"{name} must be a whole number from 1 to {most}, not {count!r}")


def _surely_json(data: bytes) -> bool:
    """Return whether the output of pydantic is certainly valid: no NaN or Infinity, and not nested too deep."""
    if len(data) <= _SHORT_BYTES:
        if b"NaN" in data or b"Infinity" in data:
            return False  # maybe within a string; the slower path finds out
        return data.count(b"[") + data.count(b"{") <= RESULT_DEPTH
    # `count`, and a search for more than one byte, would take longer than the encoding.
    left = RESULT_DEPTH
    for mark in (b"[", b"{"):
        at = data.find(mark)
        while at >= 0 and left >= 0:
            left -= 1
            at = data.find(mark, at + 1)
    if left < 0:
        return False
    try:
        from_json(data, allow_inf_nan=False, cache_strings=False)
    except ValueError:
        return False
    return True


def _limit_s(name: str, value: float | timedelta | None) -> float | None:
    seconds = None if value is None else to_seconds(name, value)
    if seconds == 0:
        raise InvalidInput(f"{name} must be more than 0 seconds; omit it for no limit")
    return seconds


class _TolerantSchema(GenerateJsonSchema):
    """Leaves a type without a JSON schema open, such as a function or a class."""

    def handle_invalid_for_json_schema(self, schema: CoreSchema, error_info: str) -> JsonSchemaValue:  # noqa: ARG002
        return {}


def _schema_of(arguments: type[BaseModel]) -> Any:
    """Return the JSON schema of the arguments without texts and defaults, or None if a type refuses to give one."""
    return _without_texts(_json_schema(lambda: arguments.model_json_schema(schema_generator=_TolerantSchema)))


def _json_schema(make: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """Return a JSON schema, or None if a type refuses to give one."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return make()
    except Exception:  # noqa: BLE001 - the schema hooks of users' types may raise anything
        return None


def _without_texts(schema: Any, *, named: bool = False) -> Any:
    """Drop what does not change which arguments are valid; `named` schemas are keyed by names of fields or types."""
    if isinstance(schema, dict):
        return {
            key: _without_texts(value, named=key in {"properties", "$defs"} and not named)
            for key, value in schema.items()
            if named or key not in SCHEMA_TEXTS
        }
    return [_without_texts(value) for value in schema] if isinstance(schema, list) else schema


def _result_adapter(returned: Any) -> TypeAdapter[Any]:
    try:
        # By default pydantic would silently encode NaN as null.
        return TypeAdapter(returned, config=ConfigDict(ser_json_inf_nan="constants"))
    except PydanticUserError as refused:
        if refused.code != "type-adapter-config-unused":
            raise
        return TypeAdapter(returned)  # a model brings its own configuration


def _is_async(handler: Callable[..., object]) -> bool:
    """Return whether the handler is an `async def`, or an object with an async `__call__`."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def _kind(handler: Callable[..., object], name: str, *, process: bool) -> HandlerKind:
    if not callable(handler):
        raise InvalidInput(f"handler {name!r} must be a function, not {handler!r}")
    if inspect.isasyncgenfunction(handler) or inspect.isgeneratorfunction(handler):
        raise InvalidInput(
            f"handler {name!r} is a generator, but a task has one result; return that, and `await ctx.emit(…)` the rest"
        )
    if not process:
        return HandlerKind.LOOP if _is_async(handler) else HandlerKind.THREAD
    if "<" in getattr(handler, "__qualname__", "<") or not getattr(handler, "__module__", None):
        raise InvalidInput(
            f"handler {name!r} has process=True, so its process imports it by name; define it at the top of a module"
        )
    return HandlerKind.PROCESS


def _readable_signature(handler: Callable[..., object], name: str) -> inspect.Signature:
    try:
        return inspect.signature(handler, eval_str=True)
    except Exception as unknown:
        # An annotation is an expression and may raise anything.
        raise InvalidInput(
            f"handler {name!r} has an annotation that cannot be evaluated ({unknown}); import its types at module level"
        ) from unknown


def _split_context(signature: inspect.Signature, name: str) -> tuple[str | None, Mapping[str, tuple[Any, Any]]]:
    """Return the name of the context parameter, and annotation and default of each other parameter."""
    context_name, others = None, dict[str, tuple[Any, Any]]()
    if next(iter(signature.parameters), "") in {"self", "cls"}:
        raise InvalidInput(
            f"handler {name!r} is an unbound method; decorate a function, or pass a bound method: "
            "agent.skill(thing.method)"
        )
    for parameter in signature.parameters.values():
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY}:
            raise InvalidInput(
                f"handler {name!r} has the parameter {str(parameter)!r}; arguments are passed by name, so name each one"
            )
        if _is_context(parameter.annotation):
            if context_name is not None:
                raise InvalidInput(f"handler {name!r} has two context parameters; remove one")
            context_name = parameter.name
            continue
        annotation = Any if parameter.annotation is parameter.empty else parameter.annotation
        others[parameter.name] = (annotation, ... if parameter.default is parameter.empty else parameter.default)
    return context_name, others


def _is_context(annotation: object) -> bool:
    return annotation is TaskContext or TaskContext in typing.get_args(annotation)


def _readable(refused: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(str(part) for part in error['loc']) or 'arguments'}: {error['msg']}"
        for error in refused.errors(include_url=False, include_input=False)
    )
