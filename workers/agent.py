"""An agent: a name, its skills, its limits. Declared once at module level, run by workers."""

from __future__ import annotations

from datetime import timedelta  # noqa: TC003 - part of public signatures
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeVar, overload

from orchestrator.agents.model import AgentSpec
from orchestrator.core.durations import to_ms
from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import check_name
from orchestrator.core.rates import Rate, parse_rate
from workers.skill import Skill, make_options

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_CONCURRENCY: Final = 10
MAX_CONCURRENCY: Final = 500
"""A worker reads, renews and finishes all its slots in one call; scripts take 500 rows."""


class Decorator(Protocol):
    """What `@agent.skill(...)` returns."""

    def __call__(self, handler: Callable[P, Awaitable[T]], /) -> Skill[P, T]:
        """Make the handler a skill."""


class Agent:
    """A named executor.

    Args:
        name: registered name; its workers share one inbox.
        concurrency: tasks that one worker process runs at once.
        rate: starts per sliding window over all workers: `"10/min"` or `(10, timedelta(minutes=1))`; None = no limit.
        limits: names of further limits (settings, `[limits]`) that every start must also fit into.
        lease: seconds or timedelta until a vanished worker's task is given to another.

    Raises:
        InvalidInput: with the option and what it may be.
    """

    def __init__(
        self,
        name: str,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        rate: str | tuple[int, timedelta] | Rate | None = None,
        limits: Sequence[str] = (),
        lease: float | timedelta = 15.0,
    ) -> None:
        self.name = check_name("agent", name)
        if not isinstance(concurrency, int) or isinstance(concurrency, bool) or not 1 <= concurrency <= MAX_CONCURRENCY:
            raise InvalidInput(
                f"concurrency of agent {name!r} must be a whole number from 1 to {MAX_CONCURRENCY}, not "
                f"{concurrency!r}; "
                "for more, run more worker processes"
            )
        self.concurrency = concurrency
        self.rate = None if rate is None else parse_rate(rate)
        if isinstance(limits, str):
            raise InvalidInput(f"limits of agent {name!r} must be a list of names, not the text {limits!r}")
        self.limits = tuple(check_name("limit", limit) for limit in limits)
        self.lease_ms = to_ms("lease", lease)
        if self.lease_ms < 1000:
            raise InvalidInput(f"lease of agent {name!r} must be at least 1 second, not {self.lease_ms / 1000:g}")
        self._skills: dict[str, Skill[Any, Any]] = {}

    def __repr__(self) -> str:
        return f"Agent({self.name!r})"

    @property
    def limited(self) -> bool:
        """Whether a rate limit holds its starts."""
        return self.rate is not None or bool(self.limits)

    @property
    def skills(self) -> Mapping[str, Skill[Any, Any]]:
        """Its skills by name."""
        return self._skills

    @overload
    def skill(self, handler: Callable[P, Awaitable[T]], /) -> Skill[P, T]: ...

    @overload
    def skill(
        self,
        handler: None = None,
        /,
        *,
        name: str | None = None,
        timeout: float | timedelta | None = None,
        max_attempts: int = 3,
        backoff: str | float = "exponential",
        max_deaths: int = 3,
    ) -> Decorator: ...

    def skill(
        self,
        handler: Any = None,
        /,
        *,
        name: str | None = None,
        timeout: float | timedelta | None = None,
        max_attempts: int = 3,
        backoff: str | float = "exponential",
        max_deaths: int = 3,
    ) -> Any:
        """Make an `async def` a skill of this agent; use it bare or called.

        A parameter annotated `TaskContext` receives the context; all others are validated from the task's arguments.

        Args:
            handler: the function, when used bare.
            name: name of the skill; the function's name by default.
            timeout: seconds or timedelta that one attempt may take; None = no limit.
            max_attempts: failures until the task is a dead letter.
            backoff: `"exponential"` with full jitter, or a fixed number of seconds between attempts.
            max_deaths: workers that may die with a task until it is a dead letter.

        Raises:
            InvalidInput: a name twice, a handler or an option that cannot work.
        """
        options = make_options(timeout=timeout, max_attempts=max_attempts, max_deaths=max_deaths, backoff=backoff)

        def decorate(function: Callable[..., Awaitable[Any]]) -> Skill[Any, Any]:
            made = Skill(function, name=name or function.__name__, options=options)
            if made.name in self._skills:
                raise InvalidInput(f"agent {self.name!r} has two skills named {made.name!r}; give one of them name=")
            self._skills[made.name] = made
            return made

        return decorate if handler is None else decorate(handler)

    def spec(self, known_limits: Mapping[str, Rate]) -> AgentSpec:
        """What the registry is told."""
        return AgentSpec(
            name=self.name,
            skills=frozenset(self._skills),
            rate=self.rate,
            limits=self.limits,
            known_limits=known_limits,
            lease_ms=self.lease_ms,
        )
