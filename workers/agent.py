"""Declares agents: a name, skills and limits, at module level; workers run them."""

from __future__ import annotations

from datetime import timedelta  # noqa: TC003 - part of public signatures
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeVar, overload

from orchestrator.agents.model import AgentSpec, SkillTerms
from orchestrator.core.amounts import Amount  # noqa: TC001 - part of public signatures
from orchestrator.core.durations import to_ms
from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import check_name
from orchestrator.core.rates import Rate, parse_rate
from orchestrator.extraction.model import EXTRACT
from orchestrator.locks.execution import LockMode  # noqa: TC001 - part of public signatures
from orchestrator.workers.retrying import DelayOption, RetryOption  # noqa: TC001 - part of public signatures
from orchestrator.workers.skill import MAX_SNOOZES, PlainSkill, Skill, check_budgets, make_options, make_skill

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from orchestrator.embedding.model import Embedder
    from orchestrator.extraction.model import Extraction, Extractor
    from orchestrator.memory.model import Tier
    from orchestrator.workers.context import TaskContext

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_CONCURRENCY: Final = 10
MAX_CONCURRENCY: Final = 500
"""A worker reads, renews and finishes all its slots in one call; scripts take 500 rows."""


class Decorator(Protocol):
    """The decorator that `@agent.skill(...)` returns."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # an awaitable is meant as an `async def`
        self, handler: Callable[P, Awaitable[T]], /
    ) -> Skill[P, T]: ...

    @overload
    def __call__(self, handler: Callable[P, T], /) -> PlainSkill[P, T]: ...


class CallNext(Protocol):
    """The next middleware, or the handler after the last one."""

    async def __call__(self, context: TaskContext | None = None, /) -> Any:
        """Call the next handler once and return its value. A middleware may pass the context on."""


class Middleware(Protocol):
    """Wraps every attempt of an agent, after its arguments are validated: `async def middleware(ctx, call_next)`."""

    async def __call__(self, ctx: TaskContext, call_next: CallNext, /) -> Any:
        """Return the result of the attempt, usually that of `await call_next(ctx)`."""


class Agent:
    """A named set of skills that workers run.

    Args:
        name: registered name; its workers share one inbox.
        concurrency: tasks that one worker process runs at once.
        rate: starts per sliding window over all workers: `"10/min"` or `(10, timedelta(minutes=1))`; None for no limit.
        limits: names of further limits (settings, `[limits]`) that apply to every start.
        lease: seconds or timedelta after which another worker adopts the tasks of a vanished worker.
        lifespan: `lifespan(agent)` is an async context manager that each worker enters before its first task and leaves
            after its last; `ctx.state` is the value that it yields.
        middleware: wraps every attempt; the first one is the outermost.
        display: `display(skill, part, value)` returns what operators see of a value; `part` is `args` or `result`. The
            dashboard runs it in a process of its own, for at most a few seconds. Everywhere else, and if it fails,
            operators see the sizes of the values, as of skills with `redact`.
        budget: budget that all its attempts spend beside those of their tasks, or several.

    Raises:
        InvalidInput: an option is invalid.
    """

    def __init__(
        self,
        name: str,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        rate: str | tuple[int, timedelta] | Rate | None = None,
        limits: Sequence[str] = (),
        lease: float | timedelta = 15.0,
        lifespan: Callable[[Agent], AbstractAsyncContextManager[Any]] | None = None,
        middleware: Sequence[Middleware] = (),
        display: Callable[[str, str, Any], Any] | None = None,
        budget: str | Sequence[str] | None = None,
    ) -> None:
        self.name: str = check_name("agent", name)
        if not isinstance(concurrency, int) or isinstance(concurrency, bool) or not 1 <= concurrency <= MAX_CONCURRENCY:
            raise InvalidInput(
                f"concurrency of agent {name!r} must be a whole number from 1 to {MAX_CONCURRENCY}, not "
                f"{concurrency!r}; run more worker processes for more"
            )
        self.concurrency: int = concurrency
        self.rate: Rate | None = None if rate is None else parse_rate(rate)
        if isinstance(limits, str):
            raise InvalidInput(f"limits of agent {name!r} must be a list of names, not the text {limits!r}")
        self.limits: tuple[str, ...] = tuple(check_name("limit", limit) for limit in limits)
        self.lease_ms: int = to_ms("lease", lease)
        if self.lease_ms < 1000:
            raise InvalidInput(f"lease of agent {name!r} must be at least 1 second, not {self.lease_ms / 1000:g}")
        if lifespan is not None and not callable(lifespan):
            raise InvalidInput(
                f"lifespan of agent {name!r} must be a function that takes the agent and returns an async context "
                "manager: decorate an async generator with contextlib.asynccontextmanager"
            )
        self.lifespan = lifespan
        self.middleware: tuple[Middleware, ...] = tuple(middleware)
        for one in self.middleware:
            if not callable(one):
                raise InvalidInput(f"middleware of agent {name!r} must be `async def mw(ctx, call_next)`, not {one!r}")
        if display is not None and not callable(display):
            raise InvalidInput(
                f"display of agent {name!r} must be a function `display(skill, part, value)`, not {display!r}"
            )
        self.display = display
        self.budgets: tuple[str, ...] = check_budgets(budget)
        self._skills: dict[str, Skill[Any, Any]] = {}

    def __repr__(self) -> str:
        return f"Agent({self.name!r})"

    @property
    def limited(self) -> bool:
        """True if a rate limit applies to its starts."""
        return self.rate is not None or bool(self.limits)

    @property
    def skills(self) -> Mapping[str, Skill[Any, Any]]:
        """Its skills by name."""
        return self._skills

    @overload
    def skill(  # type: ignore[overload-overlap]  # an awaitable is meant as an `async def`
        self, handler: Callable[P, Awaitable[T]], /
    ) -> Skill[P, T]: ...

    @overload
    def skill(self, handler: Callable[P, T], /) -> PlainSkill[P, T]: ...

    @overload
    def skill(
        self,
        handler: None = None,
        /,
        *,
        name: str | None = None,
        timeout: float | timedelta | None = None,
        silence: float | timedelta | None = None,
        max_attempts: int = 3,
        backoff: DelayOption = "exponential",
        retry_on: RetryOption = None,
        give_up_on: RetryOption = None,
        max_snoozes: int | None = MAX_SNOOZES,
        max_deaths: int = 3,
        lock: LockMode = "task",
        process: bool = False,
        redact: bool = False,
        reserve: Mapping[str, Amount] | None = None,
        budget: str | Sequence[str] | None = None,
    ) -> Decorator: ...

    def skill(
        self,
        handler: Any = None,
        /,
        *,
        name: str | None = None,
        timeout: float | timedelta | None = None,
        silence: float | timedelta | None = None,
        max_attempts: int = 3,
        backoff: DelayOption = "exponential",
        retry_on: RetryOption = None,
        give_up_on: RetryOption = None,
        max_snoozes: int | None = MAX_SNOOZES,
        max_deaths: int = 3,
        lock: LockMode = "task",
        process: bool = False,
        redact: bool = False,
        reserve: Mapping[str, Amount] | None = None,
        budget: str | Sequence[str] | None = None,
    ) -> Any:
        """Register a function as a skill of this agent; works with and without parentheses.

        An `async def` runs in the event loop of the worker, a `def` in a thread. A parameter annotated `TaskContext`
        gets the context; the others get the validated arguments of the task.

        Args:
            handler: the function, when used bare.
            name: name of the skill; the function's name by default.
            timeout: seconds or timedelta that one attempt may take; None for no limit.
            silence: seconds or timedelta that an attempt may take between signs of life (`ctx.heartbeat`, `progress`,
                `emit`, `extend`); None for no limit.
            max_attempts: failures after which the task becomes a dead letter.
            backoff: delays between attempts: `Backoff(base=…, cap=…)` with full jitter, `"exponential"` for that of the
                settings, or a fixed number of seconds.
            retry_on: exceptions that are retried, with their subclasses; others make the task a dead letter at once. A
                mapping gives each its own delays. None retries all.
            give_up_on: exceptions, with their subclasses, that make the task a dead letter at once.
            max_snoozes: how often the handler may raise `Snooze`; the next one makes the task a dead letter. None for
                no limit.
            max_deaths: worker deaths after which the task becomes a dead letter.
            lock: the scope that an attempt locks. `"task"`: no other attempt of its task changes shared state.
                `"session"`: one task of the session runs at a time. `"agent"`: one task of the agent runs at a time, on
                all workers. An attempt that waits for longer than a second is snoozed, and no attempt is counted.
            process: run the handler in a separate process, for code that holds the interpreter lock or may crash. It
                takes no context and must be defined at the top of a module.
            redact: hide the arguments, results, output and texts of exceptions of its tasks: the log, stored errors
                and `orc` show sizes and types instead. The handler and the callers of `result()` get the data.
            reserve: amounts by unit, as `{"usd": 0.05}`, that each start takes from the budgets of its task, so that a
                task does not start without room for its first call.
            budget: further budget that each attempt spends, or several.

        Raises:
            InvalidInput: the name is taken, or the handler or an option is invalid.
        """
        options = make_options(
            timeout=timeout,
            silence=silence,
            max_attempts=max_attempts,
            max_deaths=max_deaths,
            backoff=backoff,
            retry_on=retry_on,
            give_up_on=give_up_on,
            max_snoozes=max_snoozes,
            lock=lock,
            redact=redact,
            reserve=reserve,
            budget=budget,
        )
        if silence is not None and process:
            raise InvalidInput("silence= needs a context for signs of life, and a process=True handler has none")

        def decorate(function: Callable[..., Any]) -> Skill[Any, Any]:
            made: Skill[Any, Any] = make_skill(function, name=name, options=options, process=process)
            if made.name in self._skills:
                raise InvalidInput(f"agent {self.name!r} has two skills named {made.name!r}; give one of them name=")
            self._skills[made.name] = made
            made.owner = self
            return made

        return decorate if handler is None else decorate(handler)

    def extracts(
        self,
        extractor: Extractor,
        *,
        name: str = EXTRACT,
        tier: Tier = "im",
        batch: int = 50,
        embedder: Embedder | None = None,
        timeout: float | timedelta | None = None,
        max_attempts: int = 3,
        backoff: DelayOption = "exponential",
        redact: bool = False,
    ) -> Skill[Any, Extraction]:
        """Register a skill that stores what an extractor finds in chats in the memory of this agent.

        `orc.extract` submits its tasks.

        Args:
            extractor: finds the facts, as `RuleExtractor()`.
            name: name of the skill.
            tier: tier of the records; facts from chats outlive the session in `im`.
            batch: maximum number of messages that the extractor gets at once, 1 to 500; they are whole turns, if a turn
                is not longer.
            embedder: makes vectors of the records, so that `memory.with_embedder(embedder).similar(text)` finds them.
            timeout: as in `skill`.
            max_attempts: as in `skill`.
            backoff: as in `skill`.
            redact: as in `skill`, for extractors whose exceptions have texts of messages.

        Raises:
            InvalidInput: the name is taken, or an option is invalid.
        """
        from orchestrator.workers.extracting import make_extraction_handler

        handler = make_extraction_handler(extractor, skill=name, tier=tier, batch=batch, embedder=embedder)
        decorate = self.skill(name=name, timeout=timeout, max_attempts=max_attempts, backoff=backoff, redact=redact)
        return decorate(handler)

    def spec(self, known_limits: Mapping[str, Rate]) -> AgentSpec:
        """Return the spec that workers register."""
        return AgentSpec(
            name=self.name,
            skills=frozenset(self._skills),
            rate=self.rate,
            limits=self.limits,
            known_limits=known_limits,
            lease_ms=self.lease_ms,
            terms={
                name: SkillTerms(skill.options.max_attempts, skill.options.max_deaths)
                for name, skill in self._skills.items()
            },
            versions={name: skill.version for name, skill in self._skills.items()},
            redacted=frozenset(
                name for name, skill in self._skills.items() if skill.options.redact or self.display is not None
            ),
            funds={
                name: (skill.options.reserve, tuple(dict.fromkeys(self.budgets + skill.options.budgets)))
                for name, skill in self._skills.items()
                if any(skill.options.reserve) or self.budgets or skill.options.budgets
            },
        )
