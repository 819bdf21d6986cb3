"""A story of few tasks that meets every call of a worker and of a supervisor, and what must have come of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import anyio

from orchestrator import Agent, Flow, TaskContext
from orchestrator.core.errors import Fenced, JoinTimeout, SubmitRefused
from tests.helpers.attempt_log import AttemptLog, Note
from tests.helpers.end_state import counters, find_violations, records

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    import redis

    from orchestrator.client.client import Orchestrator
    from orchestrator.client.handle import TaskHandle
    from orchestrator.store.keys import PoolKeys

LEASE_S: Final = 1.0
GRANTS: Final = 3
WINDOW_S: Final = 1.0
LATE_S: Final = 1.2


def make_agents(attempt_log: AttemptLog) -> list[Agent]:
    """Make `actor`, which does many things, and `metered`, which may start `GRANTS` tasks a second."""
    actor = Agent("actor", concurrency=6, lease=LEASE_S)
    metered = Agent("metered", concurrency=4, lease=LEASE_S, rate=f"{GRANTS}/s")

    def note(ctx: TaskContext, what: str = "begun") -> None:
        attempt_log.write(Note(ctx.task_id, ctx._delivery.generation, ctx.attempt, os.getpid(), what))

    @actor.skill(max_deaths=5)
    async def quick(ctx: TaskContext, n: int) -> int:
        note(ctx)
        return n

    @actor.skill(max_deaths=5)
    async def chatty(ctx: TaskContext, n: int) -> int:
        """Run for longer than a renewal, and tell of it."""
        note(ctx)
        try:
            await ctx.progress(1, 2)
            await anyio.sleep(LEASE_S / 2)
            await ctx.emit({"n": n})
        except Fenced:
            note(ctx, "fenced")
            raise
        return n

    @actor.skill(max_deaths=5)
    async def parent(ctx: TaskContext, n: int) -> int:
        note(ctx)
        try:
            return int(await (await ctx.submit("quick", {"n": n})).result())
        except SubmitRefused:
            note(ctx, "refused")
            raise

    _add_joiner(actor, note)
    _add_late_joiners(actor, note)
    _add_planner(actor, note)

    @actor.skill(max_deaths=5, backoff=0.05)
    async def flaky(ctx: TaskContext, n: int) -> int:
        note(ctx)
        if len({one.generation for one in attempt_log.notes("raised", task=ctx.task_id)}) == 0:
            note(ctx, "raised")
            raise ValueError("planted")
        return n

    @metered.skill(max_deaths=5)
    async def stamp(ctx: TaskContext, n: int) -> int:
        note(ctx, "begun")
        # An entry is appended when its start is granted; one that was adopted was granted again, with its generation.
        note(ctx, f"granted-{max(int(ctx._delivery.entry.partition('-')[0]), int(ctx._delivery.generation))}")
        return n

    return [actor, metered]


def _add_joiner(actor: Agent, note: Callable[..., None]) -> None:
    @actor.skill(max_deaths=5)
    async def joiner(ctx: TaskContext, n: int) -> int:
        """Join two children without a slot, of which one takes long, and then such a third one."""
        note(ctx)
        try:
            first = await ctx.join([await ctx.submit("chatty", {"n": n}), await ctx.submit("quick", {"n": 0})])
            (last,) = await ctx.join([await ctx.submit("chatty", {"n": int(first[0].value)})], deadline=60)
            return int(last.value)
        except SubmitRefused:
            note(ctx, "refused")
            raise


def _add_late_joiners(actor: Agent, note: Callable[..., None]) -> None:
    @actor.skill(max_deaths=5)
    async def late(ctx: TaskContext, n: int) -> int:
        """Join a child that ends after the deadline, and go on with the default in each later attempt."""
        note(ctx)
        try:
            child = await ctx.submit("quick", {"n": n}, delay=LATE_S)
            found = await ctx.join([child], deadline=LATE_S / 4, default=None)
            note(ctx, "met" if found else "late")
            (one,) = await ctx.join([child])
            return int(one.value)
        except SubmitRefused:
            note(ctx, "refused")
            raise

    @actor.skill(max_deaths=5)
    async def overdue(ctx: TaskContext, n: int) -> int:
        """Join such a child without a default."""
        note(ctx)
        try:
            child = await ctx.submit("quick", {"n": n}, delay=LATE_S)
            try:
                await ctx.join([child], deadline=LATE_S / 4)
                note(ctx, "met")
            except JoinTimeout:
                note(ctx, "late")
            (one,) = await ctx.join([child])
            return int(one.value)
        except SubmitRefused:
            note(ctx, "refused")
            raise


def _add_planner(actor: Agent, note: Callable[..., None]) -> None:
    @actor.skill(max_deaths=5)
    async def planner(ctx: TaskContext, n: int) -> int:
        """Submit a flow, and join its tasks without a slot."""
        note(ctx)
        try:
            found = await ctx.join((await ctx.submit_flow(flow_of("planned", n))).handles)
            return int(found[-1].value)
        except SubmitRefused:
            note(ctx, "refused")
            raise


def flow_of(name: str, n: int) -> Flow:
    """A diamond whose tasks pass a number on."""
    flow = Flow(name)
    first = flow.task("quick", {"n": n})
    middle = [flow.task(skill, {"n": first.result}) for skill in ("chatty", "quick")]
    flow.task("quick", {"n": middle[1].result}, after=middle)
    return flow


async def submit_all(orc: Orchestrator) -> dict[int, TaskHandle[Any]]:
    """Submit the tasks of the story; each answers its number."""
    skills = ["quick", "chatty", "parent", "joiner", "late", "overdue", "planner", "flaky", *["stamp"] * (GRANTS + 1)]
    found = {n: await orc.submit(skill, {"n": n}) for n, skill in enumerate(skills)}
    found[len(skills)] = (await orc.submit_flow(flow_of("given", len(skills)))).handles[-1]
    return found


def violations_of(
    direct: redis.Redis, keys: PoolKeys, attempt_log: AttemptLog, *, deaths: Counter[str] | None
) -> list[str]:
    """Everything that is not as it should be after the story; an empty list is what a test wants.

    Args:
        direct: to read what is stored.
        keys: of the story's pool.
        attempt_log: what the handlers noted.
        deaths: how often each task must have died; None: that is not known.
    """
    found = find_violations(direct, keys)
    stored = records(direct, keys)
    for id_, record in stored.items():
        if record.get(b"state") != b"succeeded":
            found.append(f"{id_} is {record.get(b'state')!r}: {record.get(b'reason')!r}")
        if deaths is not None and int(record.get(b"deaths", 0)) != deaths[id_]:
            evidence = [value for name, value in record.items() if name.startswith(b"death:")]
            found.append(f"{id_} has {record.get(b'deaths', 0)!r} deaths in place of {deaths[id_]}: {evidence}")
        raised = len(attempt_log.notes("raised", task=id_))
        if int(record.get(b"fails", 0)) > raised:
            found.append(f"{id_} has {record.get(b'fails')!r} failures, its handler raised {raised} times")
    found += [f"{task} began twice in generation {generation}" for task, generation in attempt_log.attempts_run_twice()]
    if counters(direct, keys)["succeeded"] != len(stored):
        found.append(f"{counters(direct, keys)['succeeded']} successes were counted of {len(stored)} tasks")
    found += late_joins(attempt_log, counters(direct, keys)["join_timeout"])
    granted = granted_ms(attempt_log)
    for earlier, later in zip(granted, granted[GRANTS:], strict=False):
        if later - earlier < WINDOW_S * 1000 - 1:
            found.append(f"{GRANTS + 1} grants within {later - earlier} ms: {granted}")
    return found


def late_joins(attempt_log: AttemptLog, ended: int) -> list[str]:
    """What is wrong with joins whose deadline passed: each ended once, and no later attempt found anything else.

    Args:
        attempt_log: what the handlers noted.
        ended: how often a deadline has ended a join.
    """
    outcomes: dict[str, set[str]] = {}
    for note in attempt_log.notes():
        if note.what in {"late", "met"}:
            outcomes.setdefault(note.task, set()).add(note.what)
    late = [task for task, found in outcomes.items() if "late" in found]
    wrong = [f"the join of {task} was both met and late" for task, found in outcomes.items() if len(found) > 1]
    if ended != len(late):
        wrong.append(f"deadlines ended {ended} joins, and {len(late)} tasks saw it")
    return wrong


def granted_ms(attempt_log: AttemptLog) -> list[int]:
    """When the starts of `metered` were granted, by the server's clock, in order."""
    notes = [note.what for note in attempt_log.notes() if note.what.startswith("granted-")]
    return sorted(int(what.removeprefix("granted-")) for what in notes)
