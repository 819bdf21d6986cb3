"""A skill: one handler, how its arguments are checked, how its attempts are limited and retried."""

from __future__ import annotations

import inspect
import typing
from dataclasses import dataclass
from datetime import timedelta  # noqa: TC003 - part of public signatures
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, ParamSpec, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, create_model

from orchestrator.core.durations import to_seconds
from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import check_name
from orchestrator.core.payload import encode_json
from workers.context import TaskContext

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from orchestrator.core.backoff import Backoff

P = ParamSpec("P")
T = TypeVar("T")

RESULT_DEPTH: Final = 128
"""Levels of lists and objects within a result; pydantic reads no more than 200."""


@dataclass(frozen=True, slots=True)
class SkillOptions:
    """How attempts of a skill are limited and retried.

    Attributes:
        timeout_s: one attempt may take so long; None = no limit.
        max_attempts: failures until the task is a dead letter.
        max_deaths: workers that may die with it until it is a dead letter.
        backoff: `exponential` (full jitter), or a fixed number of seconds.
    """

    timeout_s: float | None
    max_attempts: int
    max_deaths: int
    backoff: str | float


class Skill(Generic[P, T]):
    """A handler with a name. Calling it calls the handler, so that a test needs no server."""

    def __init__(self, handler: Callable[P, Awaitable[T]], *, name: str, options: SkillOptions) -> None:
        self.name = check_name("skill", name)
        self.handler = handler
        self.options = options
        self.__doc__ = handler.__doc__
        signature = _readable_signature(handler, name)
        self._context_name, parameters = _split_context(signature, name)
        # Fields have names that no attribute of a model has; outside they go by the parameter's name.
        self._parameters = {f"argument {number}": parameter for number, parameter in enumerate(parameters)}
        fields: dict[str, Any] = {
            field: (Annotated[parameters[parameter][0], Field(alias=parameter)], parameters[parameter][1])
            for field, parameter in self._parameters.items()
        }
        returned = signature.return_annotation
        try:
            self._arguments: type[BaseModel] = create_model(
                f"{name} arguments", __config__=ConfigDict(extra="forbid"), **fields
            )
            self._result = _result_adapter(Any if returned is inspect.Signature.empty else returned)
        except PydanticUserError as unusable:
            raise InvalidInput(f"handler {name!r} has a type that JSON cannot be read as: {unusable.message}") from None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        """Call the handler itself."""
        return self.handler(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Skill({self.name!r})"

    def bind(self, args: bytes, context: TaskContext) -> dict[str, Any]:
        """Check JSON arguments against the handler's signature; answer what to call it with.

        Raises:
            InvalidInput: they do not fit; the message names each argument.
        """
        try:
            checked = self._arguments.model_validate_json(args, by_alias=True, by_name=True).__dict__
        except ValidationError as refused:
            raise InvalidInput(f"arguments do not fit {self.name!r}: {_readable(refused)}") from None
        except Exception as broken:
            # Validators and default factories are user code.
            raise InvalidInput(
                f"arguments of {self.name!r} could not be checked: {type(broken).__name__}: {broken}"
            ) from broken
        values = {parameter: checked[field] for field, parameter in self._parameters.items()}
        if self._context_name is not None:
            values[self._context_name] = context
        return values

    def dump_result(self, value: T, *, max_bytes: int) -> bytes:
        """Serialise what the handler returned.

        Raises:
            InvalidInput: JSON cannot hold it, or it is too large.
        """
        try:
            plain = self._result.dump_python(value, mode="json", warnings="error")
        except Exception as unfit:
            # Also what serialisers of the user's own raise.
            raise InvalidInput(f"result of {self.name!r} does not fit its type or JSON: {unfit}") from unfit
        return encode_json(f"result of {self.name!r}", plain, max_bytes=max_bytes, max_depth=RESULT_DEPTH)

    def read_result(self, data: bytes) -> T:
        """Read a result as the type that the handler returns."""
        result: T = self._result.validate_json(data, by_alias=True, by_name=True)
        return result

    def retry_after_ms(self, failures: int, backoff: Backoff) -> int:
        """How long to wait after so many failures: the skill's own fixed delay, or `backoff`."""
        fixed = self.options.backoff
        return round((backoff.delay_s(failures) if isinstance(fixed, str) else fixed) * 1000)


def make_options(
    *,
    timeout: float | timedelta | None,
    max_attempts: int,
    max_deaths: int,
    backoff: str | float,
) -> SkillOptions:
    """Check the options of a skill when it is decorated.

    Raises:
        InvalidInput: with the option and what it may be.
    """
    for name, count in (("max_attempts", max_attempts), ("max_deaths", max_deaths)):
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= 1000:
            raise InvalidInput(f"{name} must be a whole number from 1 to 1000, not {count!r}")
    if isinstance(backoff, str) and backoff != "exponential":
        raise InvalidInput(f'backoff must be "exponential" or a number of seconds, not {backoff!r}')
    timeout_s = None if timeout is None else to_seconds("timeout", timeout)
    if timeout_s == 0:
        raise InvalidInput("timeout must be more than 0 seconds; leave it out for no limit")
    return SkillOptions(
        timeout_s=timeout_s,
        max_attempts=max_attempts,
        max_deaths=max_deaths,
        backoff=backoff if isinstance(backoff, str) else to_seconds("backoff", backoff),
    )


def _result_adapter(returned: Any) -> TypeAdapter[Any]:
    try:
        # Without this, NaN would silently become null on its way out.
        return TypeAdapter(returned, config=ConfigDict(ser_json_inf_nan="constants"))
    except PydanticUserError as refused:
        if refused.code != "type-adapter-config-unused":
            raise
        return TypeAdapter(returned)  # a model has its own configuration


def _readable_signature(handler: Callable[..., object], name: str) -> inspect.Signature:
    if not inspect.iscoroutinefunction(handler):
        raise InvalidInput(f"handler {name!r} must be an `async def`")
    try:
        return inspect.signature(handler, eval_str=True)
    except Exception as unknown:
        # Annotations may be any expression.
        raise InvalidInput(
            f"handler {name!r} has an annotation that cannot be read ({unknown}); import its types at module level"
        ) from unknown


def _split_context(signature: inspect.Signature, name: str) -> tuple[str | None, Mapping[str, tuple[Any, Any]]]:
    """The name of the context parameter, and annotation and default of all others."""
    context_name, others = None, dict[str, tuple[Any, Any]]()
    for parameter in signature.parameters.values():
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY}:
            raise InvalidInput(
                f"handler {name!r} has the parameter {str(parameter)!r}; arguments travel by name, so give each its own"
            )
        if _is_context(parameter.annotation):
            if context_name is not None:
                raise InvalidInput(f"handler {name!r} has two parameters for the context; leave one of them out")
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
