"""The agents of a chaos run: every attempt writes its history; skills of every kind, the bad ones too."""

from __future__ import annotations

import os
import secrets
import signal
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import anyio

from orchestrator import Agent, Reject, Retry, Snooze, TaskContext
from orchestrator.core.errors import StoreError, SubmitRefused
from tests.faultkit.checkers.history import (
    EmitConfirmed,
    EmitStarted,
    Recorder,
    RunEnded,
    RunStarted,
    SubmitAccepted,
    SubmitRejected,
    SubmitStarted,
)
from tests.faultkit.checkers.rules import LimitRule, SkillRule

if TYPE_CHECKING:
    from orchestrator.workers.agent import CallNext

HISTORY_VARIABLE: Final = "CHAOS_HISTORY"
LEASE_S: Final = 2.0
CHUNKS: Final = 5
LASTING_SLOTS: Final = 30
"""Slots of a worker for tasks that take seconds: enough of them die together to show what their order costs."""
OWN_PER_S: Final = 15
SHARED_PER_S: Final = 20
LIMITS: Final = {"limited": ("@limited", "shared"), "sharer": ("shared",)}
LIMIT_RULES: Final = {"@limited": LimitRule(OWN_PER_S, 1000), "shared": LimitRule(SHARED_PER_S, 1000)}
MAX_DEATHS: Final = 6
"""Faults kill processes in which a task runs as the only suspect, and these deaths count."""

_MAY_FAIL: Final = frozenset({"succeeded", "dead"})
SKILL_RULES: Final = {
    "fast": SkillRule(max_deaths=MAX_DEATHS),
    "thread": SkillRule(max_deaths=MAX_DEATHS),
    "slow": SkillRule(max_deaths=MAX_DEATHS),
    "steady": SkillRule(),
    "flaky": SkillRule(max_attempts=6, max_deaths=MAX_DEATHS),
    "broken": SkillRule(max_attempts=3, max_deaths=MAX_DEATHS, ends=frozenset({"dead"})),
    "refuse": SkillRule(max_deaths=MAX_DEATHS, ends=frozenset({"dead"})),
    "nap": SkillRule(max_deaths=MAX_DEATHS),
    "poison": SkillRule(max_deaths=3, kills=True),
    "parent": SkillRule(max_attempts=5, max_deaths=MAX_DEATHS, ends=_MAY_FAIL),
    "tell": SkillRule(max_attempts=5, max_deaths=MAX_DEATHS, chunks=CHUNKS),
    # What runs it may be killed alone, which is a failure and not a death.
    "crunch": SkillRule(max_attempts=5, max_deaths=MAX_DEATHS, ends=_MAY_FAIL),
    "ranked": SkillRule(max_deaths=MAX_DEATHS),
    "stamp": SkillRule(max_deaths=MAX_DEATHS),
    "share": SkillRule(max_deaths=MAX_DEATHS),
}

_recorder = Recorder(os.environ.get(HISTORY_VARIABLE, "build/chaos/unnamed"), "worker")
_run: ContextVar[str] = ContextVar("run", default="")
# Workers are forked, so the ordinary generator would throw the same dice in each.
_dice = secrets.SystemRandom()


async def write_history(ctx: TaskContext, call_next: CallNext) -> Any:
    """Write down the attempt before and after; name the execution in its result."""
    run = secrets.token_hex(6)
    _recorder.write(
        RunStarted(
            ctx.task_id,
            ctx._delivery.generation,
            ctx.attempt,
            ctx._delivery.entry,
            ctx.agent,
            ctx.worker,
            run,
            limits=LIMITS.get(ctx.agent, ()),
            pid=os.getpid(),
        )
    )
    _run.set(run)
    how = "raised"
    try:
        value = await call_next(ctx)
        how = "returned"
    except anyio.get_cancelled_exc_class():
        how = "cancelled"
        raise
    finally:
        _recorder.write(RunEnded(ctx.task_id, ctx._delivery.generation, run, how))
    return {"run": run, "value": value}


def _agent(name: str, concurrency: int, **options: Any) -> Agent:
    return Agent(name, concurrency=concurrency, lease=LEASE_S, middleware=[write_history], **options)


quick = _agent("quick", 4)
mixed = _agent("mixed", 6)
lasting = _agent("lasting", LASTING_SLOTS)
ranked_agent = _agent("ranked", 1)
limited = _agent("limited", 3, rate=f"{OWN_PER_S}/s", limits=["shared"])
sharer = _agent("sharer", 3, limits=["shared"])
agents = [quick, mixed, lasting, ranked_agent, limited, sharer]


def _options(skill: str) -> dict[str, Any]:
    rule = SKILL_RULES[skill]
    return {"max_attempts": rule.max_attempts, "max_deaths": rule.max_deaths}


@quick.skill(**_options("fast"))
async def fast(op: str) -> Any:
    """Answer at once."""
    return op


@quick.skill(**_options("thread"))
def thread(op: str, seconds: float) -> Any:
    """Hold a thread."""
    time.sleep(seconds)
    return op


@lasting.skill(**_options("slow"))
async def slow(op: str, seconds: float) -> Any:
    """Take time, most of them more than a lease."""
    await anyio.sleep(seconds)
    return op


@lasting.skill(**_options("steady"))
async def steady(op: str, seconds: float) -> Any:
    """Take time while one thing alone goes wrong, so that no death counts but those of poisons."""
    await anyio.sleep(seconds)
    return op


@mixed.skill(backoff=0.1, **_options("flaky"))
async def flaky(ctx: TaskContext, op: str, fails: int) -> Any:
    """Fail so often."""
    if ctx.attempt <= fails:
        raise Retry(0.05, reason=f"planted run={_run.get()}")
    return op


@mixed.skill(backoff=0.1, **_options("broken"))
async def broken(op: str) -> Any:
    """Fail always."""
    raise ValueError(f"planted in {op} run={_run.get()}")


@mixed.skill(**_options("refuse"))
async def refuse(op: str) -> Any:
    """Give up at once."""
    raise Reject(f"planted in {op} run={_run.get()}")


@mixed.skill(**_options("nap"))
async def nap(op: str) -> Any:
    """Come back later, two times in three."""
    if _dice.random() < 0.66:
        raise Snooze(0.1)
    return op


@lasting.skill(**_options("poison"))
async def poison(ctx: TaskContext, op: str, deaths: int, seconds: float) -> Any:
    """Take the worker along after a time, so often."""
    if ctx.attempt <= deaths:
        await anyio.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)
    return op


@mixed.skill(backoff=0.1, **_options("parent"))
async def parent(ctx: TaskContext, op: str, children: int) -> Any:
    """Submit children and wait for them."""
    handles = []
    for number in range(children):
        child = f"{op}/{number}"
        _recorder.write(SubmitStarted(child))
        try:
            handle = await ctx.submit("fast", {"op": child})
        except SubmitRefused as refused:
            _recorder.write(SubmitRejected(child, str(refused)))
            raise
        except StoreError as failure:
            if not failure.outcome_unknown:
                _recorder.write(SubmitRejected(child, str(failure)))
            raise
        _recorder.write(SubmitAccepted(child, handle.id))
        handles.append(handle)
    return [(await handle.result())["value"] for handle in handles]


@lasting.skill(backoff=0.1, **_options("tell"))
async def tell(ctx: TaskContext, op: str, seconds: float) -> Any:
    """Emit chunks over a time, with progress in between."""
    for number in range(1, CHUNKS + 1):
        _recorder.write(EmitStarted(ctx.task_id, ctx._delivery.generation, number))
        await ctx.emit({"run": _run.get(), "number": number})
        _recorder.write(EmitConfirmed(ctx.task_id, ctx._delivery.generation, number))
        await ctx.progress(number, CHUNKS)
        await anyio.sleep(_dice.random() * 2 * seconds / CHUNKS)
    return op


@mixed.skill(process=True, backoff=0.1, **_options("crunch"))
def crunch(op: str) -> Any:
    """Compute in a process of its own."""
    sum(range(100_000))
    return op


@ranked_agent.skill(**_options("ranked"))
async def ranked(op: str) -> Any:
    """Wait for nothing but its turn."""
    await anyio.sleep(0.03)
    return op


@limited.skill(**_options("stamp"))
async def stamp(op: str) -> Any:
    """Be one of so many a second."""
    return op


@sharer.skill(**_options("share"))
async def share(op: str) -> Any:
    """Be one of those that two agents share."""
    return op
