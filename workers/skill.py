"""A skill: one handler, how its arguments are checked, how its attempts are limited and retried."""

from __future__ import annotations

import inspect
import typing
from dataclasses import dataclass
from datetime import timedelta  # noqa: TC003 - part of public signatures
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model

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

RESULT_DEPTH: Final = 512


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
        self._context_name, fields = _split_context(signature, name)
        self._arguments: type[BaseModel] = create_model(
            f"{name} arguments", __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields
        )
        returned = signature.return_annotation
        self._result: TypeAdapter[Any] = TypeAdapter(Any if returned is inspect.Signature.empty else returned)

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
            checked = self._arguments.model_validate_json(args)
        except ValidationError as refused:
            raise InvalidInput(f"arguments do not fit {self.name!r}: {_readable(refused)}") from None
        values = dict(checked.__dict__)
        if self._context_name is not None:
            values[self._context_name] = context
        return values

    def dump_result(self, value: T, *, max_bytes: int) -> bytes:
        """Serialise what the handler returned.

        Raises:
            InvalidInput: JSON cannot hold it, or it is too large.
        """
        plain = self._result.dump_python(value, mode="json", warnings="error")
        return encode_json(f"result of {self.name!r}", plain, max_bytes=max_bytes, max_depth=RESULT_DEPTH)

    def read_result(self, data: bytes) -> T:
        """Read a result as the type that the handler returns."""
        result: T = self._result.validate_json(data)
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
    return SkillOptions(
        timeout_s=None if timeout is None else to_seconds("timeout", timeout),
        max_attempts=max_attempts,
        max_deaths=max_deaths,
        backoff=backoff if isinstance(backoff, str) else to_seconds("backoff", backoff),
    )


def _readable_signature(handler: Callable[..., object], name: str) -> inspect.Signature:
    if not inspect.iscoroutinefunction(handler):
        raise InvalidInput(f"handler {name!r} must be an `async def`")
    try:
        return inspect.signature(handler, eval_str=True)
    except NameError as unknown:
        raise InvalidInput(
            f"handler {name!r} has an annotation that cannot be read ({unknown}); import its types at module level"
        ) from unknown


def _split_context(signature: inspect.Signature, name: str) -> tuple[str | None, Mapping[str, Any]]:
    context_name, fields = None, dict[str, Any]()
    for parameter in signature.parameters.values():
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY}:
            raise InvalidInput(
                f"handler {name!r} has the parameter {str(parameter)!r}; arguments travel by name, so give each its own"
            )
        if _is_context(parameter.annotation):
            context_name = parameter.name
            continue
        annotation = Any if parameter.annotation is parameter.empty else parameter.annotation
        fields[parameter.name] = (annotation, ... if parameter.default is parameter.empty else parameter.default)
    return context_name, fields


def _is_context(annotation: object) -> bool:
    return annotation is TaskContext or TaskContext in typing.get_args(annotation)


def _readable(refused: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(str(part) for part in error['loc']) or 'arguments'}: {error['msg']}"
        for error in refused.errors(include_url=False, include_input=False)
    )
