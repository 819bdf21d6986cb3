"""The scripts against a model in plain Python, under random operations: after each step both agree on everything."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from orchestrator.core.amounts import MICRO, Amounts
from orchestrator.core.rates import Rate
from orchestrator.store.calls import opaque
from orchestrator.tasks import scripts as task_scripts
from orchestrator.tasks.model import (
    DeleteStatus,
    Envelope,
    RequeueStatus,
    TaskState,
    Verdict,
    VerdictKind,
    encode_envelope,
)
from orchestrator.tasks.questions import pack_question
from orchestrator.tasks.states import STEPS
from orchestrator.why.explanation import explain
from orchestrator.why.model import Cause
from tests.lua.keyspace import without_lifetime
from tests.lua.model import ASKED, FINAL, RESERVED, Agent, Limit, Model, Task
from tests.lua.pool import LEASE_MS, START_US, USUAL_TTL_S, Assigned, Pool, Team, chunk, counted_id, rank, row
from tests.lua.watched_pool import WatchedPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from orchestrator.tasks.model import Delivery
    from tests.faultkit.servers import RedisServer

pytestmark = pytest.mark.every_server

MAX_TASKS = 12
SKILLS = ("a", "b", "c")
QUEUES = (("skill:a", ""), ("skill:b", ""), ("skill:c", ""), ("agent:ed", "a"), ("agent:ed", "b"), ("agent:ann", "b"))
WORKERS = (("ed", "e1"), ("ed", "e2"), ("ann", "n1"), ("bob", "b1"), ("bob", "b2"))
# Windows are long, so that the lifetime of a limit's key, which follows the server's clock, never decides.
RATES = {"@ann": Rate(2, 60_000_000), "shared": Rate(3, 100_000_000)}

TROUBLES = [
    *["crash", "lease_expires", "adopt", "own", "abandon", "recover"],
    *["take", "die_together", "finish_old", "cancel", "repeat", "promote"],
]

FUND = "fund"
"""The budget of the tasks that have one."""
MAX_SNOOZES = 1
"""How many snoozes every task may have."""
EVERY_MS = 5000
OVERDUE_MS = LEASE_MS + 2 * min(5000, LEASE_MS // 3)
"""Nobody has renewed for so long: everybody takes such an entry back, `adopt` and `recover`."""

FRESH_S = LEASE_MS / 5000

FEW, EXAMPLES = 12, int(os.environ.get("ORC_TEST_EXAMPLES", "40"))
MUST_FIRE = [
    *[
        "submit",
        "submit_known",
        "submit into a lane",
        "submit, busy",
        "cancel",
        "deleted",
        "snoozed too often",
        "requeued",
        "promote",
        "assign",
        "supervise",
        "read",
        "read, reply lost",
        "suspects taken",
        "suspects taken, several",
        "suspects taken, alone",
        "suspects taken, reply lost",
        "suspects, no room",
        "crash",
    ],
    *[f"finish {kind.value}" for kind in VerdictKind],
    *["child, created", "child, parent told to stop", "child cancelled", "cancel_children, more"],
    *["woken", "finish, stale generation", "renew", "lease_expires", "adopted", "abandoned", "return_unseen"],
    *["change_skills", "repeat"],
    *[
        "recovered",
        "lost",
        "answer answered",
        "answer, too late",
        "answer not_asking",
        "time_jumps",
        "time_steps_back",
        "watch",
        "emit",
        "emit, stale generation",
        "dead by deaths",
    ],
    *["join, registered", "join, stale", "join, cycle", "joining"],
    *["unfunded", "freed", "set_budget, accepted", "reserve, granted", "reserve, room", "settle, settled"],
]

fired: Counter[str] = Counter()


@dataclass
class Worker:
    """What one worker believes to hold."""

    agent: str
    name: str
    holds: dict[str, Delivery] = field(default_factory=dict)


class Machine(RuleBasedStateMachine):
    """Clients, supervisors and workers that do anything at any time, crash between calls, and repeat themselves."""

    url: str
    prefixes: Iterator[str]

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool(self.url, next(self.prefixes))
        self.model = Model(
            [
                Agent("ed", 5, 1, frozenset("ab"), workers=2),
                Agent("ann", 3, 0, frozenset("bc"), ("@ann", "shared")),
                Agent("bob", 4, 0, frozenset("c"), ("shared",), workers=2),
            ],
            {name: Limit(rate.count, rate.window_us) for name, rate in RATES.items()},
            START_US,
        )
        self.workers = [Worker(agent, name) for agent, name in WORKERS]
        self.slots = {"e1": 3, "e2": 2, "n1": 3, "b1": 2, "b2": 2}
        self.past: list[Delivery] = []
        self.again: Callable[[], None] | None = None
        self.generations: dict[str, int] = {}
        self.ended: dict[str, str] = {}
        self.todo: dict[str, int] = {}
        self.heard = "-"
        self.emitted: Counter[tuple[str, str]] = Counter()
        self.effects = self.calls = 0
        self.told: set[str] = set()
        self.reserved: set[str] = set()
        self.freshened_s = time.monotonic()
        self.looks = self.requeues = 0

    @initialize()
    def start(self) -> None:
        """Register everybody."""
        self.pool.set_budget(FUND, usd=self.model.fund.limit)
        for worker in self.workers:
            self.register(worker)

    def register(self, worker: Worker) -> None:
        """Tell the registry of a worker."""
        agent = self.model.agents[worker.agent]
        team = Team(
            worker.agent,
            agent.skills,
            rate=RATES.get(f"@{worker.agent}"),
            limits=("shared",) if "shared" in agent.limits else (),
            known_limits=tuple(RATES.items()),
            funds=(("a", (Amounts(usd=RESERVED * MICRO), ())),) if "a" in agent.skills else (),
        )
        self.pool.register(worker.name, team, slots=self.slots[worker.name], backlog=agent.backlog)

    def act(self, name: str, step: Callable[[], None]) -> None:
        """Do a step, and keep it for `repeat`."""
        fired[name] += 1
        self.again = step
        step()

    @rule()
    @precondition(lambda self: self.again)
    def repeat(self) -> None:
        """The very same call is sent once more."""
        fired["repeat"] += 1
        assert self.again is not None
        self.again()

    # Clients ----------------------------------------------------------------------------------------------------------

    @rule(
        places=st.lists(st.sampled_from(QUEUES), min_size=1, max_size=5),
        priority=st.integers(0, 3),
        aging_ms=st.sampled_from([10**13, 50]),
        delay_ms=st.sampled_from([0, 0, 0, 30, 500]),
        at_ms=st.sampled_from([0, 0, 100]),
        start_in_ms=st.sampled_from([0, 0, 0, 20, 5000]),
        key=st.sampled_from(["", "", "k1", "k2", "k3"]),
        digest=st.sampled_from(["d", "d", "e"]),
        lane=st.sampled_from(["", "", "x", "y"]),
        on_busy=st.sampled_from(["", "", "reject", "interrupt", "replace"]),
        depth=st.sampled_from([0, 0, 1, 2]),
        tags=st.sampled_from([(), (), ("eu",), ("eu", "us")]),
        budget=st.sampled_from(["", FUND]),
    )
    def submit(  # noqa: PLR0917 - rules are called by keyword
        self,
        places: list[tuple[str, str]],
        priority: int,
        aging_ms: int,
        delay_ms: int,
        at_ms: int,
        start_in_ms: int,
        key: str,
        digest: str,
        lane: str,
        on_busy: str,
        depth: int,
        tags: tuple[str, ...],
        budget: str,
    ) -> None:
        """A client submits a few tasks alike."""
        now = self.model.now_ms
        rows = [
            row(
                counted_id(),
                queue=queue,
                skill=skill,
                rank=rank(priority, aging_ms),
                delay_ms=delay_ms,
                at_ms=at_ms and now + at_ms,
                start_by_ms=start_in_ms and now + start_in_ms,
                reply="c1",
                idem=key,
                digest=digest if key else "",
                lane=lane,
                on_busy=on_busy if lane and not (delay_ms or at_ms) else "",
                depth=depth,
                tags=tags,
                budget=budget,
            )
            for queue, skill in places
        ]

        def step() -> None:
            answers = self.pool.submit(*rows, max_tasks=MAX_TASKS)
            assert answers == self.model.submit(rows, MAX_TASKS)
            fired["submit, busy"] += sum(status == "busy" for status, _ in answers)
            fired["submit into a lane"] += bool(lane)

        self.act("submit", step)

    @rule(
        places=st.lists(st.sampled_from(QUEUES), min_size=1, max_size=5),
        edges=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.booleans()), max_size=8),
        delay_ms=st.sampled_from([0, 0, 0, 30, 500]),
        start_in_ms=st.sampled_from([0, 0, 0, 20, 5000]),
        lane=st.sampled_from(["", "", "x", "y"]),
    )
    def submit_flow(
        self,
        places: list[tuple[str, str]],
        edges: list[tuple[int, int, bool]],
        delay_ms: int,
        start_in_ms: int,
        lane: str,
    ) -> None:
        """A client submits a flow."""
        found: list[dict[int, bool]] = [{} for _ in places]
        for later, earlier, runs_anyway in edges:
            if earlier < later < len(places):
                found[later][earlier] = runs_anyway
        rows = [
            row(
                counted_id(),
                queue=queue,
                skill=skill,
                delay_ms=delay_ms,
                start_by_ms=start_in_ms and self.model.now_ms + start_in_ms,
                reply="c1",
                lane=lane,
                after=tuple(-(at + 1) if runs_anyway else at + 1 for at, runs_anyway in before.items()),
            )
            for (queue, skill), before in zip(places, found, strict=True)
        ]

        def step() -> None:
            answers = self.pool.submit(*rows, max_tasks=MAX_TASKS)
            assert answers == self.model.submit(rows, MAX_TASKS)
            fired["flow, withheld"] += any(status == "withheld" for status, _ in answers)

        self.act("submit_flow", step)

    @rule(i=st.integers(0, 1000))
    @precondition(lambda self: self.model.tasks)
    def wake(self, i: int) -> None:
        """A lock is kept for a task, whatever state it is in; mostly one that waits for it."""
        every = list(self.model.tasks.values())
        waiting = [task for task in every if task.state == "scheduled" and task.left == VerdictKind.AWAIT_LOCK]
        held = [task for task in every if task.state == "assigned"]
        tasks = [waiting, held, every][i % 3] or every
        task = tasks[i % len(tasks)]

        def step() -> None:
            fired["woken"] += task in waiting
            assert self.pool.wake(task.id) == self.model.wake(task.id)

        self.act("wake", step)

    @rule(which=st.lists(st.integers(0, 1000), min_size=1, max_size=3))
    @precondition(lambda self: self.model.tasks)
    def submit_known(self, which: list[int]) -> None:
        """A client that heard nothing submits again what was accepted, however long ago."""
        tasks = [task for task in self.model.tasks.values() if task.row.after is None] or list(
            self.model.tasks.values()
        )[:1]
        which = which if tasks[0].row.after is None else which[:1]
        rows = [tasks[i % len(tasks)].row for i in which]

        def step() -> None:
            answers = self.pool.submit(*rows, max_tasks=0)
            assert answers == self.model.submit(rows, 0) == [("duplicate", each.id) for each in rows]

        self.act("submit_known", step)

    @rule(i=st.integers(0, 1000), places=st.lists(st.sampled_from(QUEUES), min_size=1, max_size=3))
    @precondition(lambda self: self.past or any(worker.holds for worker in self.workers))
    def submit_children(self, i: int, places: list[tuple[str, str]]) -> None:
        """An attempt submits children, one that has its task, was told to stop, or lost it."""
        held = [delivery for worker in self.workers for delivery in worker.holds.values()]
        parent = [*held, *self.past[-5:]][i % (len(held) + len(self.past[-5:]))]
        rows = [
            row(
                counted_id(),
                queue=queue,
                skill=skill,
                reply="c1",
                parent=parent.task_id,
                parent_generation=parent.generation,
                envelope=opaque(encode_envelope(Envelope(queue.partition(":")[2], b"{}", parent=parent.task_id))),
            )
            for queue, skill in places
        ]

        def step() -> None:
            answers = self.pool.submit(*rows, max_tasks=MAX_TASKS)
            assert answers == self.model.submit(rows, MAX_TASKS)
            fired["child, created"] += ("created", "") in answers
            fired["child, parent told to stop"] += ("cancelling", parent.task_id) in answers

        self.act("submit_children", step)

    @rule(which=st.lists(st.integers(0, 1000), min_size=1, max_size=3), only_this=st.sampled_from([False, False, True]))
    @precondition(lambda self: self.model.tasks)
    def cancel(self, which: list[int], *, only_this: bool = False) -> None:
        """A client cancels tasks in whatever state; mostly those that have children."""
        parents = [id_ for id_ in self.model.children if id_ in self.model.tasks]
        every = list(self.model.tasks)
        ids = [
            (parents if i % 2 and parents else every)[i % len(parents if i % 2 and parents else every)] for i in which
        ]

        def step() -> None:
            found = self.pool.cancel(*ids, "unknown", only_this=only_this)
            assert found == self.model.cancel([*ids, "unknown"], only_this=only_this)

        self.act("cancel", step)

    @rule(limit=st.sampled_from([1, 2, 100]))
    def cancel_children(self, limit: int) -> None:
        """A client or a supervisor goes on with a cancel."""

        def step() -> None:
            found = self.pool.cancel_children(limit)
            assert found == self.model.cancel_children(limit)
            fired["child cancelled"] += found.ended + found.told
            fired["cancel_children, more"] += found.left

        self.act("cancel_children", step)

    @rule(
        i=st.integers(0, 1000), off=st.sampled_from([0, 0, 0, -1, 1]), value=st.sampled_from(['"a"', '"a"', '"b"', "1"])
    )
    @precondition(lambda self: self.model.tasks)
    def answer(self, i: int, off: int, value: str) -> None:
        """A person answers a question of a task, whatever state it is in; mostly one that waits for it."""
        every = list(self.model.tasks.values())
        answered = [task for task in every if task.answers and not task.deleted]
        tasks = [self.model.asking(), answered, every][i % 3] or every
        task = tasks[i % len(tasks)]
        number = max(1, task.asks + off)

        def step() -> None:
            found = self.pool.answer(task.id, value, number=number)
            assert found.status == self.model.answer(task.id, number, value)
            fired[f"answer {found.status}"] += 1
            fired["answer, too late"] += found.status in {"already", "other", "late"}

        self.act("answer", step)

    @rule(which=st.lists(st.integers(0, 1000), min_size=1, max_size=3))
    @precondition(lambda self: self.model.tasks)
    def delete(self, which: list[int]) -> None:
        """Somebody deletes tasks, whatever state they are in."""
        ids = [list(self.model.tasks)[i % len(self.model.tasks)] for i in which]

        def step() -> None:
            answers = self.pool.delete(*ids, "unknown")
            assert answers == self.model.delete([*ids, "unknown"])
            fired["deleted"] += sum(status is DeleteStatus.DELETED for status, _ in answers)

        self.act("delete", step)

    @rule(which=st.lists(st.integers(0, 1000), min_size=1, max_size=3), again=st.booleans())
    @precondition(lambda self: self.model.tasks)
    def retry(self, which: list[int], *, again: bool) -> None:
        """Somebody retries tasks, whatever state they are in; `again`: an old call that was under way for long."""
        ids = [list(self.model.tasks)[i % len(self.model.tasks)] for i in which]
        self.requeues += not again
        token = f"r{self.requeues}"

        def step() -> None:
            answers = self.pool.retry(*ids, "unknown", token=token)
            assert answers == self.model.retry([*ids, "unknown"], token)
            for id_, (status, state) in zip(ids, answers, strict=False):
                if status is RequeueStatus.REQUEUED and state is not None and state.final:
                    fired["requeued"] += 1
                    self.ended.pop(id_, None)
                    self.told.discard(id_)

        self.act("retry", step)

    @rule(which=st.lists(st.integers(0, 1000), min_size=1, max_size=3))
    @precondition(lambda self: self.model.tasks)
    def watch(self, which: list[int]) -> None:
        """Somebody begins to follow tasks, in whatever state, or goes on."""
        ids = [list(self.model.tasks)[i % len(self.model.tasks)] for i in which]

        def step() -> None:
            assert [status for status, _ in self.pool.watch(*ids, "unknown")] == self.model.watch([*ids, "unknown"])

        self.act("watch", step)

    # Supervisors ------------------------------------------------------------------------------------------------------

    @rule(limit=st.sampled_from([1, 3, 500]))
    def promote(self, limit: int) -> None:
        """A promoter ticks."""

        def step() -> None:
            assert self.pool.promote(limit) == self.model.promote(limit)

        self.act("promote", step)

    @rule(agent=st.sampled_from(["ed", "ann", "bob"]), limit=st.sampled_from([1, 2, 500]))
    def assign(self, agent: str, limit: int) -> None:
        """A supervisor calls assign once."""

        def step() -> None:
            self.assign_once(agent, limit)

        self.act("assign", step)

    @rule(
        agents=st.lists(st.sampled_from(["ed", "ann", "bob"]), min_size=2, max_size=3, unique=True),
        limit=st.sampled_from([1, 2, 500]),
    )
    def assign_to_some(self, agents: list[str], limit: int) -> None:
        """A supervisor calls assign for several agents."""

        def step() -> None:
            self.assign_all(agents, limit)

        self.act("assign", step)

    @rule(for_ms=st.sampled_from([1, 50, 2000]))
    def block(self, for_ms: int) -> None:
        """The provider behind a limit that agents share tells to wait."""

        def step() -> None:
            assert self.pool.block("shared", for_ms) == self.model.block("shared", for_ms)

        self.act("block", step)

    def assign_once(self, agent: str, limit: int) -> Assigned:
        """Compare one assign call for one agent, order included."""
        return self.assign_all([agent], limit)[agent]

    def assign_all(self, agents: Sequence[str], limit: int) -> dict[str, Assigned]:
        """Compare one assign call, order included."""
        before = {agent: len(self.model.agents[agent].inbox) for agent in agents}
        done = self.pool.assign_to(*agents, limit=limit)
        found = self.model.assign(agents, limit)
        assert done.count == sum(one.count for one in found.values())
        assert done.left == tuple(agent for agent, one in found.items() if one.left)
        assert done.waits_us == {agent: found[agent].wait_us for agent in agents if found[agent].wait_us}
        for agent in agents:
            entries = self.pool.entries(self.pool.keys.inbox(agent))
            expected = [(entry.task, str(entry.gen)) for entry in self.model.agents[agent].inbox]
            given = [(fields[1], fields[3]) for _, fields in entries[before[agent] :]]
            assert given == expected[before[agent] :], "priority order"
            self.model.learn_entries(agent, [entry_id for entry_id, _ in entries])
            if found[agent].left or found[agent].wait_us:
                self.todo[agent] = self.model.now_us + found[agent].wait_us
            (
                self.reserved.add
                if any(self.model.suspects(queue) for queue in self.model.agents[agent].queues)
                else self.reserved.discard
            )(agent)
        return found

    @rule()
    def supervise(self) -> None:
        """A supervisor does what doorbell and timers tell it, and nothing else; then nothing may be left to assign."""
        self.act("supervise", self.supervise_once)

    def rung(self) -> set[str]:
        """Agents that the doorbell named since the last look, or that could serve a queue it named."""
        key, agents = self.pool.keys.doorbell, self.model.agents.values()
        due: set[str] = set()
        for entry, (_, what, *about) in self.pool.entries(key, after=self.heard):
            self.heard = entry
            kind, _, name = what.partition(":")
            if about or kind == "agent":
                due |= set(about[1].split() if about else [name])
            else:
                due |= {agent.name for agent in agents if kind == "agents" or name in agent.queues}
        return due

    def supervise_once(self) -> None:
        """Serve all rings and timers that are due."""
        agents = self.model.agents.values()
        # Room that suspects left is found by the next full pass.
        self.todo |= dict.fromkeys(self.reserved, 0)
        while due := self.rung() | {name for name, us in self.todo.items() if us <= self.model.now_us}:
            for name in sorted(due):
                self.todo.pop(name, None)
                while self.assign_once(name, 500).left:
                    pass
                if self.todo.get(name, 0) <= self.model.now_us:
                    self.todo.pop(name, None)
        for agent in agents:
            waiting = [task.id for queue in agent.queues for task in self.model.queue(queue)]
            full = len(agent.inbox) >= agent.ring_below and "mark" in self.pool.agent(agent.name)
            assert full or agent.name in self.todo or agent.name in self.reserved or not waiting, (
                f"{agent.name} could take {waiting}, but nobody was told"
            )

    @precondition(lambda self: any(task.row.skill for task in self.model.tasks.values()))
    @rule(agent=st.sampled_from(["ed", "ann"]), skills=st.sampled_from(["a", "ab", "bc", "abc"]))
    def change_skills(self, agent: str, skills: str) -> None:
        """All workers of an agent register anew with other skills."""

        def step() -> None:
            self.model.change_skills(agent, frozenset(skills))
            for worker in self.workers:
                if worker.agent == agent:
                    self.pool.deregister(worker.name)
            for worker in self.workers:
                if worker.agent == agent:
                    self.register(worker)

        self.act("change_skills", step)

    # Workers ----------------------------------------------------------------------------------------------------------

    @rule(
        size=st.integers(1, 6), kinds=st.lists(st.sampled_from(list(VerdictKind)), max_size=6), reply_lost=st.booleans()
    )
    def get_to_work(self, size: int, kinds: list[VerdictKind], *, reply_lost: bool) -> None:
        """What usually happens: tasks come, are assigned, read and finished; so that the other rules meet work."""
        fired["get_to_work"] += 1
        rows = [
            row(counted_id(), queue=queue, skill=skill, reply="c1", ttl_s=USUAL_TTL_S, budget=FUND if size % 2 else "")
            for queue, skill in QUEUES[:size]
        ]
        assert self.pool.submit(*rows, max_tasks=MAX_TASKS) == self.model.submit(rows, MAX_TASKS)
        self.supervise_once()
        for i in range(len(self.workers)):
            self.read(i, 4, reply_lost=reply_lost)
            self.take_suspects(i, 4, reply_lost=reply_lost)
        for i, kind in enumerate(kinds):
            if any(worker.holds for worker in self.workers):
                self.finish(i, [kind], delay_ms=size % 2 * 10, at_ms=0, twice=False)

    @rule(i=st.integers(0, 4), limit=st.integers(1, 4), reply_lost=st.booleans())
    def read(self, i: int, limit: int, *, reply_lost: bool) -> None:
        """A worker reads its inbox; the answer may be lost on the way."""
        worker = self.workers[i]

        def step() -> None:
            # A worker that never gets its entries does not begin.
            found = self.pool.read(worker.name, agent=worker.agent, limit=limit, begin=not reply_lost)
            expected = self.model.read(worker.agent, worker.name, limit, begin=not reply_lost)
            self.compare(found, expected)
            if not reply_lost:
                worker.holds |= {delivery.entry: delivery for delivery in found}
            elif found:
                fired["read, reply lost"] += 1

        self.act("read", step)

    @precondition(lambda self: self.model.any_suspects())
    @rule(i=st.integers(0, 4), limit=st.integers(0, 4), reply_lost=st.booleans())
    def take_suspects(self, i: int, limit: int, *, reply_lost: bool) -> None:
        """A worker takes suspects beside those that it runs; the answer may be lost on the way."""
        worker = self.workers[i]

        def step() -> None:
            running = [(one.depth, one.group) for one in worker.holds.values() if one.group is not None]
            idle = not worker.holds
            found = self.pool.take_suspects(
                worker.name, *running, agent=worker.agent, limit=limit, idle=idle, begin=not reply_lost
            )
            left, expected = self.model.take_suspects(worker.agent, worker.name, limit, running, idle=idle)
            entries = self.pool.entries(self.pool.keys.inbox(worker.agent))
            self.model.learn_entries(worker.agent, [entry_id for entry_id, _ in entries])
            self.compare(found, expected)
            fired["suspects taken"] += len(found)
            fired["suspects taken, several"] += len(found) > 1
            fired["suspects taken, alone"] += any(one.group == 0 for one in found)
            fired["suspects, no room"] += bool(left and limit and not found)
            if not reply_lost:
                self.model.begin(expected)
                worker.holds |= {delivery.entry: delivery for delivery in found}
            elif found:
                fired["suspects taken, reply lost"] += 1

        self.act("take_suspects", step)

    @rule(i=st.integers(0, 4), times=st.integers(1, 4))
    def die_together(self, i: int, times: int) -> None:
        """A worker takes as much as it can and dies, as its host sees; then the next one in its place."""
        worker = self.workers[i]
        for _ in range(times):
            fired["die_together"] += 1
            self.promote(500)
            self.supervise_once()
            self.read(i, 10, reply_lost=False)
            self.take_suspects(i, 10, reply_lost=False)
            self.abandon(i, limit=500)
            self.pool.execute("DEL", f"{self.pool.keys.root}:crew:{worker.name}")
            self.model.crews.pop(worker.name, None)
            self.tick(1000)

    @precondition(lambda self: any(worker.holds for worker in self.workers))
    @rule(i=st.integers(0, 4))
    def crash(self, i: int) -> None:
        """A worker forgets all that it holds."""
        fired["crash"] += bool(self.workers[i].holds)
        self.workers[i].holds.clear()

    @rule(
        i=st.integers(0, 4),
        kinds=st.lists(st.sampled_from(list(VerdictKind)), min_size=1, max_size=3),
        delay_ms=st.sampled_from([0, 10, 700]),
        at_ms=st.sampled_from([0, 0, 300]),
        twice=st.booleans(),
    )
    @precondition(lambda self: any(worker.holds for worker in self.workers))
    def finish(self, i: int, kinds: list[VerdictKind], delay_ms: int, at_ms: int, *, twice: bool) -> None:
        """A worker sends verdicts of what it holds, sometimes two of one attempt in one call."""
        busy = [worker for worker in self.workers if worker.holds]
        worker = busy[i % len(busy)]
        rows = [
            (delivery, self.verdict(delivery, kind, delay_ms=delay_ms, at_ms=at_ms and self.model.now_ms + at_ms))
            for delivery, kind in zip(list(worker.holds.values()), kinds, strict=False)
        ]
        if twice:
            rows.append((rows[0][0], self.verdict(rows[0][0], kinds[-1])))
        for delivery, verdict in rows:
            worker.holds.pop(delivery.entry, None)
            fired[f"finish {verdict.kind.value}"] += 1
            fired["snoozed too often"] += (
                verdict.kind is VerdictKind.SNOOZE and self.model.tasks[delivery.task_id].snoozes == MAX_SNOOZES
            )

        def step() -> None:
            assert self.pool.finish(*rows) == self.model.finish(rows)

        self.act("finish", step)

    def verdict(self, delivery: Delivery, kind: VerdictKind, *, delay_ms: int = 0, at_ms: int = 0) -> Verdict:
        """A verdict of this kind; a question is the next one of its task."""
        payload, number = b"r", 0
        if kind is VerdictKind.ASK:
            payload, number = pack_question(ASKED), self.model.tasks[delivery.task_id].asks + 1
        elif kind is VerdictKind.SNOOZE:
            number = MAX_SNOOZES
        elif kind is VerdictKind.JOIN:
            number = 1
        version = "d1" if kind is VerdictKind.INVALID else ""
        return Verdict(kind, payload, delay_ms=delay_ms, at_ms=at_ms, reason="x", number=number, version=version)

    @rule(i=st.integers(0, 10_000), kind=st.sampled_from(list(VerdictKind)))
    @precondition(lambda self: self.past)
    def finish_old(self, i: int, kind: VerdictKind) -> None:
        """A verdict arrives for any attempt that ever was, right or long taken away."""
        delivery = self.past[i % len(self.past)]
        stale = self.model.tasks[delivery.task_id].gen != int(delivery.generation)
        fired["finish, stale generation"] += stale
        rows = [(delivery, self.verdict(delivery, kind, delay_ms=5))]

        def step() -> None:
            before = self.pool.snapshot() if stale else None
            assert self.pool.finish(*rows) == self.model.finish(rows)
            if before is not None:
                assert self.pool.snapshot() == before

        self.act("finish_old", step)

    @rule(i=st.integers(0, 10_000), kinds=st.lists(st.sampled_from(["progress", "output"]), min_size=1, max_size=4))
    @precondition(lambda self: self.past)
    def emit(self, i: int, kinds: list[str]) -> None:
        """An attempt emits, one that has its task or one that it was taken from; `repeat` sends the call again."""
        held = [delivery for worker in self.workers for delivery in worker.holds.values()]
        delivery = [*held, *self.past[-5:]][i % (len(held) + len(self.past[-5:]))]
        fired["emit, stale generation"] += self.model.tasks[delivery.task_id].gen != int(delivery.generation)
        rows = []
        for kind in kinds:
            self.emitted[delivery.task_id, delivery.generation] += 1
            seq = self.emitted[delivery.task_id, delivery.generation]
            rows.append(chunk(delivery, seq, b"[%d]" % seq, kind=kind))

        def step() -> None:
            assert self.pool.emit(*rows) == self.model.emit(rows)

        self.act("emit", step)

    @rule(i=st.integers(0, 10_000), late=st.booleans())
    @precondition(lambda self: self.past)
    def effect(self, i: int, *, late: bool) -> None:
        """An attempt stores a step of its effect; `late`: one that has not read the newest value, as a late repeat."""
        held = [delivery for worker in self.workers for delivery in worker.holds.values()]
        delivery = [*held, *self.past[-5:]][i % (len(held) + len(self.past[-5:]))]
        before = b"" if late else self.model.tasks[delivery.task_id].effect
        self.effects += 1
        value = b"%d" % self.effects

        def step() -> None:
            found = self.pool.effect(delivery, before=before, value=value)
            assert found == self.model.effect(delivery, before, value)
            fired[f"effect, {found[0]}"] += 1

        self.act("effect", step)

    @rule(
        i=st.integers(0, 10_000),
        which=st.lists(st.integers(0, 1000), min_size=1, max_size=4, unique=True),
        left=st.sampled_from([0, 0, 1]),
        own=st.booleans(),
        verdict=st.booleans(),
    )
    @precondition(lambda self: self.past)
    def join(self, i: int, which: list[int], left: int, *, own: bool, verdict: bool) -> None:
        """An attempt registers tasks that it joins, children or others, and mostly ends with the join."""
        held = [(worker, delivery) for worker in self.workers for delivery in worker.holds.values()]
        old: list[tuple[Worker | None, Delivery]] = [(None, delivery) for delivery in self.past[-3:]]
        worker, delivery = [*held, *old][i % (len(held) + len(old))]
        every = self.model.children.get(delivery.task_id, []) if own else []
        every = every or list(self.model.tasks)
        ids = list(dict.fromkeys(every[one % len(every)] for one in which))
        stop, begins = bool(i % 2), bool(i % 5)

        def step() -> None:
            found = self.pool.join(delivery, ids, left=left, stop=stop, part="first" if begins else "more", most=2)
            assert tuple(found) == self.model.join(delivery, ids, left=left, stop=stop, begins=begins, most=2)
            fired[f"join, {found.status}"] += 1

        self.act("join", step)
        if verdict and worker is not None:
            worker.holds.pop(delivery.entry, None)
            rows = [(delivery, self.verdict(delivery, VerdictKind.JOIN, delay_ms=700 * (i % 3)))]

            def end() -> None:
                assert self.pool.finish(*rows) == self.model.finish(rows)

            self.act("join, then finish", end)
            fired["joining"] += self.model.tasks[delivery.task_id].state == "joining"

    @rule(
        i=st.integers(0, 10_000), amount=st.integers(0, 4), used=st.sampled_from([None, 0, 1, 5]), leave=st.booleans()
    )
    @precondition(lambda self: self.past)
    def spend(self, i: int, amount: int, used: int | None, *, leave: bool) -> None:
        """An attempt takes an amount of its budget, and mostly settles it; or one that lost its task does."""
        held = [delivery for worker in self.workers for delivery in worker.holds.values()]
        funded = [delivery for delivery in held if self.model.tasks[delivery.task_id].row.budget]
        every = [*(funded or held), *self.past[-1:]]
        delivery = every[i % len(every)]
        self.calls += 1
        number = self.calls

        def reserve() -> None:
            found = self.pool.reserve(delivery, number, usd=amount)
            assert (found.reason or found.status) == self.model.reserve(delivery, number, amount)
            fired[f"reserve, {found.reason or found.status}"] += 1

        self.act("reserve", reserve)
        if leave:
            return

        def settle() -> None:
            found = self.pool.settle(delivery, number, lost=used is None, usd=used or 0)
            assert found == self.model.settle(delivery, number, used)
            fired[f"settle, {found}"] += 1

        self.act("settle", settle)

    @rule(more=st.integers(-2, 6))
    def set_budget(self, more: int) -> None:
        """An operator changes the limit of the budget."""
        limit = max(0, self.model.fund.limit + more)

        def step() -> None:
            found = self.pool.set_budget(FUND, usd=limit).status
            assert found == self.model.set_budget(limit)
            fired[f"set_budget, {found}"] += 1

        self.act("set_budget", step)

    @rule()
    def sweep(self) -> None:
        """A supervisor looks at the tasks that wait for room."""

        def step() -> None:
            moved = self.pool.sweep_all(FUND, limit=500)
            assert moved == self.model.sweep()
            fired["freed"] += moved

        self.act("sweep", step)

    @rule(i=st.integers(0, 4), forget=st.booleans())
    def renew(self, i: int, *, forget: bool) -> None:
        """A heartbeat renews what its worker holds, and what it may no longer hold."""
        worker = self.workers[i]
        rows = [*worker.holds.values(), *(self.past[-2:] if forget else [])]

        def step() -> None:
            found = self.pool.renew(rows, worker.name, worker.agent)
            assert found == self.model.renew(worker.agent, worker.name, rows)

        self.act("renew", step)

    @precondition(lambda self: any(agent.inbox for agent in self.model.agents.values()))
    @rule(i=st.integers(0, 4))
    def lease_expires(self, i: int) -> None:
        """Nobody has renewed the entries of a worker for a lease."""
        worker = self.workers[i]
        for entry in self.model.agents[worker.agent].inbox:
            if entry.consumer == worker.name:
                fired["lease_expires"] += 1
                entry.aged = True
                command = ("XCLAIM", self.pool.keys.inbox(worker.agent), "workers", worker.name, 0, entry.id)
                self.pool.execute(*command, "IDLE", OVERDUE_MS + 1000, "JUSTID")

    @precondition(lambda self: any(agent.inbox for agent in self.model.agents.values()))
    @rule(i=st.integers(0, 4), limit=st.integers(0, 4), own=st.booleans(), looks=st.booleans())
    def adopt(self, i: int, limit: int, *, own: bool, looks: bool) -> None:
        """A worker adopts, sometimes after regular looks that ended any grace."""
        worker = self.workers[i]
        held = list(worker.holds)
        if looks:
            for _ in range(7):
                self.adopt_once(worker, held, 0, own=False)
                self.tick(LEASE_MS // 5)

        def step() -> None:
            for delivery in self.adopt_once(worker, held, limit, own=own):
                worker.holds[delivery.entry] = delivery

        self.act("adopt", step)

    def keep_fresh(self) -> None:
        """Let no lease run out but those that a rule lets run out: idle times follow the real clock."""
        if time.monotonic() - self.freshened_s < FRESH_S:
            return
        self.freshened_s = time.monotonic()
        for agent in self.model.agents.values():
            for entry in agent.inbox:
                if entry.consumer and not entry.aged:
                    command = ("XCLAIM", self.pool.keys.inbox(agent.name), "workers", entry.consumer, 0, entry.id)
                    self.pool.execute(*command, "IDLE", 0, "JUSTID")

    def adopt_once(self, worker: Worker, held: list[str], limit: int, *, own: bool) -> list[Delivery]:
        """Compare one adopt call."""
        self.keep_fresh()
        found = self.pool.adopt(worker.name, agent=worker.agent, held=held, limit=limit, own=own)
        expected = self.model.adopt(worker.agent, worker.name, held, limit, own=own)
        self.learn_dues()
        self.compare(found, expected)
        fired["adopted"] += len(found)
        return found

    @precondition(lambda self: any(agent.inbox for agent in self.model.agents.values()))
    @rule(i=st.integers(0, 4), limit=st.sampled_from([1, 500]))
    def return_unseen(self, i: int, limit: int) -> None:
        """The heartbeat of a worker returns what its event loop has not seen."""
        worker = self.workers[i]

        def step() -> None:
            found = self.pool.return_unseen(worker.name, held=worker.holds, agent=worker.agent, limit=limit)
            assert found == self.model.return_unseen(worker.agent, worker.name, worker.holds, limit)
            fired["return_unseen"] += len(found)

        self.act("return_unseen", step)

    @precondition(lambda self: any(agent.inbox for agent in self.model.agents.values()))
    @rule(i=st.integers(0, 4), limit=st.sampled_from([1, 500]))
    def abandon(self, i: int, limit: int) -> None:
        """The host saw a worker die."""
        worker = self.workers[i]
        worker.holds.clear()

        def step() -> None:
            found = self.pool.abandon(worker.name, agent=worker.agent, limit=limit)
            assert found == self.model.abandon(worker.agent, worker.name, limit)
            self.learn_dues()
            fired["abandoned"] += found[0]

        self.act("abandon", step)

    @precondition(lambda self: any(agent.inbox for agent in self.model.agents.values()))
    @rule(agent=st.sampled_from(["ed", "ann", "bob"]), limit=st.sampled_from([1, 500]), looks=st.booleans())
    def recover(self, agent: str, limit: int, *, looks: bool) -> None:
        """The recoverer sweeps, sometimes after regular sweeps that ended any grace."""
        if looks:
            for _ in range(5):
                self.recover_once(agent, limit)
                self.tick(EVERY_MS)

        def step() -> None:
            self.recover_once(agent, limit)

        self.act("recover", step)

    def recover_once(self, agent: str, limit: int) -> None:
        """Compare one recover call."""
        self.keep_fresh()
        found = self.pool.recover(agent, limit=limit, every_ms=EVERY_MS)
        assert found == self.model.recover(agent, limit, every_ms=EVERY_MS)
        self.learn_dues()
        fired["recovered"] += found[0]

    @precondition(lambda self: any(task.state not in FINAL | {"waiting"} for task in self.model.tasks.values()))
    @rule(which=st.lists(st.integers(0, 1000), min_size=1, max_size=4, unique=True), deadlines=st.booleans())
    def lose(self, which: list[int], *, deadlines: bool) -> None:
        """Redis loses the places of tasks; a walk puts each back, and the next full pass finds them."""
        # What waits for a turn has only its lane, and the order of a lane is not made again to the letter.
        open_ = [task.id for task in self.model.tasks.values() if task.state not in FINAL | {"waiting"}]
        ids = list(dict.fromkeys(open_[i % len(open_)] for i in which))
        expected = []
        for id_ in ids:
            self.lose_place(self.model.tasks[id_])
            fired["lost"] += 1
            expected += [(id_, code) for code in self.model.lose_and_repair(id_)]
            if deadlines and id_ in self.model.expiring and self.pool.execute("ZREM", self.pool.keys.expiring, id_):
                self.model.counts["repaired"] += 1
                expected.append((id_, "lost-deadline"))
        assert self.pool.repair(*ids) == expected
        self.todo = dict.fromkeys(self.model.agents, 0)

    def lose_place(self, task: Task) -> None:
        """Take a task out of where it is, behind the backs of all scripts."""
        pool, queue = self.pool, task.row.queue
        if task.state == "ready":
            pool.execute("ZREM", pool.keys.queue(queue), task.id)
            pool.execute("ZREM", pool.keys.parked(queue.removeprefix("agent:")), task.id)
            pool.execute("ZREM", pool.keys.suspects(queue), task.id)
            pool.execute("ZREM", pool.keys.held(f"budget:{FUND}"), task.id)
            if not pool.execute("EXISTS", pool.keys.suspects(queue)):
                pool.execute("SREM", pool.keys.suspected_queues, queue)
            if not pool.execute("EXISTS", pool.keys.queue(queue)):
                pool.execute("SREM", pool.keys.queues, queue)
        elif task.state in {"scheduled", "awaiting_input", "joining", "awaiting_tasks"}:
            pool.execute("ZREM", pool.keys.awaiting_tasks, task.id)
            pool.execute("ZREM", pool.keys.joining, task.id)
            pool.execute("ZREM", pool.keys.scheduled, task.id)
            pool.execute("ZREM", pool.keys.asking, task.id)
        else:
            held = self.model.entry_of(task.id)
            assert held is not None
            pool.execute("XACK", pool.keys.inbox(held[0].name), "workers", held[1].id)
            pool.execute("XDEL", pool.keys.inbox(held[0].name), held[1].id)

    @rule(events=st.lists(st.tuples(st.sampled_from(TROUBLES), st.integers(0, 4)), min_size=2, max_size=8))
    @precondition(lambda self: any(agent.inbox for agent in self.model.agents.values()))
    def trouble(self, events: list[tuple[str, int]]) -> None:
        """Several misfortunes at once: rare alone, they are what the rules of taking work back are for."""
        steps: dict[str, Callable[[int], None]] = {
            "crash": self.crash,
            "lease_expires": self.lease_expires,
            "adopt": lambda i: self.adopt(i, limit=4, own=False, looks=True),
            "own": lambda i: self.adopt(i, limit=i, own=True, looks=False),
            "abandon": lambda i: self.abandon(i, limit=500),
            "take": lambda i: self.take_suspects(i, limit=4, reply_lost=False),
            "die_together": lambda i: self.die_together(i, 1 + i % 3),
            "recover": lambda i: self.recover(WORKERS[i][0], limit=500, looks=True),
            "finish_old": lambda i: self.finish_old(-1 - i, list(VerdictKind)[i]) if self.past else None,
            "cancel": lambda i: self.cancel([-1 - i]) if self.model.tasks else None,
            "repeat": lambda _: self.repeat() if self.again else None,
            "promote": lambda _: self.promote(500),
        }
        for what, i in events:
            steps[what](i)
            self.agree()

    # Time -------------------------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 10, 50, 400, 3000]))
    def time_passes(self, ms: int) -> None:
        """Time passes."""
        fired["time_passes"] += 1
        self.tick(ms)

    @precondition(lambda self: self.model.tasks)
    @rule(ms=st.sampled_from([20_000, 100_000, 3_600_000]))
    def time_jumps(self, ms: int) -> None:
        """The clock steps forward, or everything stood still."""
        fired["time_jumps"] += 1
        self.tick(ms)

    @precondition(lambda self: self.model.tasks)
    @rule(ms=st.sampled_from([1, 200, 30_000]))
    def time_steps_back(self, ms: int) -> None:
        """The clock steps back; the next full pass of a supervisor makes up for the timers."""
        fired["time_steps_back"] += 1
        self.tick(-ms)
        self.todo = dict.fromkeys(self.model.agents, 0)

    def tick(self, ms: int) -> None:
        """Move both clocks."""
        self.pool.sleep(ms)
        self.model.now_us += ms * 1000

    # Agreement --------------------------------------------------------------------------------------------------------

    def compare(self, found: list[Delivery], expected: list[Any]) -> None:
        """What was delivered is what the model delivers."""
        got = [(d.entry, d.task_id, int(d.generation), d.attempt, d.deaths, d.forgiven_failures) for d in found]
        assert got == [(e.id, e.task, e.gen, e.attempt, e.deaths, e.forgiven) for e in expected]
        assert [(d.group, d.depth) for d in found] == [e.group for e in expected]
        self.past += found

    def learn_dues(self) -> None:
        """Let the model know of jittered due times."""
        fired["dead by deaths"] = max(self.model.buried, fired["dead by deaths"])
        for task in self.model.tasks.values():
            if task.state == "scheduled" and task.due == -1:
                due = self.pool.score(self.pool.keys.scheduled, task.id)
                assert due is not None
                self.model.learn_due(task.id, due)

    def agree(self) -> None:
        """Check all that must hold, in the middle of a step."""
        self.every_task_in_exactly_one_place()
        self.states_and_generations()
        self.every_task_waits_for_something()
        self.output_tells_each_life()
        self.told_once()
        self.bytes_are_those_of_what_waits()
        self.limits_hold()
        self.nothing_is_to_be_repaired()

    @invariant()
    def families(self) -> None:
        """Parents list their children, and the notes of cancels name what is left of them."""
        keys = self.pool.keys
        for parent, ids in self.model.children.items():
            assert [id_.decode() for id_ in self.pool.execute("LRANGE", keys.children(parent), 0, -1)] == ids
        notes = [note.decode().split(" ", 2) for note in self.pool.execute("LRANGE", keys.cancelling, 0, -1)]
        assert [(parent, int(first)) for parent, first, _ in notes] == self.model.cancelling

    @invariant()
    def every_task_in_exactly_one_place(self) -> None:
        """Queues, `scheduled`, parked sets and inboxes hold each waiting or running task once, and nothing else."""
        pool, model = self.pool, self.model
        queues = {queue for queue, _ in QUEUES}
        for queue in queues:
            found = pool.execute("ZRANGE", pool.keys.queue(queue), 0, -1, "WITHSCORES")
            expected = [part for task in model.queue(queue) for part in (task.id.encode(), b"%d" % task.score)]
            assert found == expected, queue
            found = pool.execute("ZRANGE", pool.keys.suspects(queue), 0, -1, "WITHSCORES")
            expected = [part for task in model.suspects(queue) for part in (task.id.encode(), b"%d" % task.score)]
            assert found == expected, queue
        index = {name.decode() for name in pool.execute("SMEMBERS", pool.keys.queues)}
        assert index == {queue for queue in queues if model.queue(queue)}
        index = {name.decode() for name in pool.execute("SMEMBERS", pool.keys.suspected_queues)}
        assert index == {queue for queue in queues if model.suspects(queue)}
        assert pool.members(pool.keys.scheduled) == [task.id for task in model.scheduled()]
        assert pool.members(pool.keys.asking) == [task.id for task in model.asking()]
        assert pool.members(pool.keys.joining) == [task.id for task in model.joining()]
        for task in model.tasks.values():
            assert set(pool.members(pool.keys.joins(task.id))) == task.joins
            waits = task.state == "awaiting_tasks"
            assert set(pool.members(pool.keys.after(task.id))) == (task.after if waits else set())
            assert not waits or task.after
            fired["awaiting_tasks"] += waits
        following = {task.id for task in model.tasks.values() if task.state == "awaiting_tasks"}
        assert set(pool.members(pool.keys.awaiting_tasks)) == following
        assert set(pool.members(f"{pool.keys.root}:expiring")) == model.expiring
        for agent in model.agents.values():
            assert pool.members(f"{pool.keys.root}:parked:{agent.name}") == [t.id for t in model.parked(agent.name)]
            assert [entry_id for entry_id, _ in pool.entries(pool.keys.inbox(agent.name))] == [
                e.id for e in agent.inbox
            ]
            assert pool.pending(agent.name) == [(e.id, e.consumer) for e in agent.inbox if e.consumer]
        assert pool.members(pool.keys.held(f"budget:{FUND}")) == [task.id for task in model.unfunded()]
        fired["unfunded"] += bool(model.unfunded())
        for lane in ("x", "y"):
            assert pool.members(pool.keys.lane(lane)) == model.lanes.get(lane, [])
        for tag in ("eu", "us"):
            assert pool.members(pool.keys.tag(tag)) == sorted(task.id for task in model.tagged(tag))
        places = Counter(
            [task.id for queue in queues for task in [*model.queue(queue), *model.suspects(queue)]]
            + [task.id for task in [*model.scheduled(), *model.asking(), *model.joining(), *model.unfunded()]]
            + [task.id for agent in model.agents for task in model.parked(agent)]
            + [entry.task for agent in model.agents.values() for entry in agent.inbox]
            + [id_ for members in model.lanes.values() for id_ in members[1:]]
            + list(following)
        )
        assert places == Counter(task.id for task in model.tasks.values() if task.state not in FINAL)

    @invariant()
    def the_budget_is_kept(self) -> None:
        """The stored budget is the model's, and nothing is held but by attempts that run."""
        stored, fund = self.pool.budget(FUND), self.model.fund
        found = [stored[name][0] for name in ("limit", "spent", "held")]
        assert found == [amount * MICRO for amount in (fund.limit, fund.spent, fund.held)]
        for id_, gen in fund.holds:
            task = self.model.tasks[id_]
            assert (task.state, task.gen) == ("assigned", gen)

    @invariant()
    def states_and_generations(self) -> None:
        """Stored states are the model's; an end is for ever unless it is requeued; a generation only rises."""
        for task in self.model.tasks.values():
            if task.id in self.ended:
                assert task.state == self.ended[task.id]
            if task.deleted:
                assert set(self.pool.task(task.id)) == {"deleted", "ended_as"}
                continue
            fields = (
                "state",
                "gen",
                "out",
                "progress",
                "ran",
                f"ran:{len(task.ran)}",
                "effect:pay",
                "blamed",
                "group",
                "alone",
            )
            state, gen, out, progress, ran, last, effect, *blame = self.pool.execute(
                "HMGET", self.pool.keys.task(task.id), *fields
            )
            assert (state.decode(), int(gen)) == (task.state, task.gen)
            assert (out is not None, (progress or b"").decode()) == (task.out is not None, task.progress)
            assert [None if one is None else int(one) for one in blame] == [task.blamed or None, task.group, task.alone]
            assert (effect or b"") == task.effect
            assert int(ran or 0) == len(task.ran)
            assert not task.ran or last.split()[0].decode() == task.ran[-1]
            assert task.gen >= self.generations.get(task.id, 0)
            self.generations[task.id] = task.gen
            if task.state in FINAL:
                assert TaskState(task.state).final
                self.ended[task.id] = task.state

    @invariant()
    def every_task_waits_for_something(self) -> None:
        """What is found of a task is where the model has it, and nothing stands nowhere; one task a step."""
        if not self.model.tasks:
            return
        self.looks += 1
        task = list(self.model.tasks.values())[self.looks % len(self.model.tasks)]
        found = self.pool.why(task.id)
        if found is None:
            assert task.deleted
            return
        held = self.model.entry_of(task.id)
        worker = held[1].consumer if held else None
        runs = TaskState.CANCELLING if task.cancel else TaskState.RUNNING
        assert found.state == (runs if worker else TaskState(task.state))
        assert (found.worker.id if found.worker else None) == worker
        assert found.group == (task.group if task.suspect else None)
        if task.state == "ready" and not (task.parked or task.suspect) and task.need is None:
            assert found.rank == [one.id for one in self.model.queue(task.row.queue)].index(task.id)
        if task.state == "waiting":
            members = self.model.lanes[task.row.lane]
            assert found.lane is not None
            assert (found.lane.owner, found.lane.ahead) == (members[0], members.index(task.id))
        assert explain(found).cause is not Cause.LOST

    @invariant()
    def output_tells_each_life(self) -> None:
        """A stream holds the steps of its task's life and what its attempts emitted, in order; others have none."""
        for task in self.model.tasks.values():
            if task.out is None or task.id in self.told:
                continue
            assert [(kind, int(gen), attempt) for kind, gen, attempt, _ in self.pool.out(task.id)] == task.out
            if task.state in FINAL:
                self.told.add(task.id)  # looked at once more in the end

    @invariant()
    def told_once(self) -> None:
        """Counters, replies and events tell of each end once, in order, and of nothing else."""
        assert self.pool.stats() == {name: count for name, count in self.model.counts.items() if count}
        replies = [(task_id, text[0]) for task_id, text in self.pool.replies()]
        assert sorted(replies) == sorted(self.pool.events()) == sorted(self.model.ends)
        assert len({task_id for task_id, _ in replies}) >= len(replies) - self.model.counts["requeued"]

    @invariant()
    def nothing_is_to_be_repaired(self) -> None:
        """In no state that is reached does a walk find anything."""
        model = self.model
        rows: list[str | tuple[str, str]] = [*model.tasks, *[(id_, "expiring") for id_ in model.expiring]]
        rows += [(task.id, "out") for task in model.tasks.values() if task.out]
        rows += [("", f"idem:{key}") for key in model.keys]
        rows += [(id_, f"lane:{lane}") for lane, members in model.lanes.items() for id_ in members]
        rows += [("", f"lane:{lane}") for lane in model.lanes]
        for task in model.tasks.values():
            if task.state == "joining" or (task.state == "assigned" and task.join and task.join[0] == task.gen):
                rows += [(id_, f"joins:{task.id}") for id_ in task.joins]
            if task.state in {"scheduled", "awaiting_input", "joining", "awaiting_tasks", "dead"}:
                places = {"awaiting_input": "asking", "awaiting_tasks": "after"}
                rows.append((task.id, places.get(task.state, task.state)))
            elif task.state == "ready":
                place = f"{'suspects' if task.suspect else 'queue'}:{task.row.queue}"
                place = "parked:" + task.row.queue.removeprefix("agent:") if task.parked else place
                rows += [(task.id, place), ("", f"queue:{task.row.queue}"), ("", f"suspects:{task.row.queue}")]
        assert self.pool.repair(*rows) == []
        if self.looks % 4 == 0:
            agent = sorted(model.agents)[self.looks % 3]
            assert self.pool.check_inbox(agent) == []
            assert self.pool.repair_registry(("agent", agent), ("skill", "b")) == []

    @invariant()
    def bytes_are_those_of_what_waits(self) -> None:
        """The bytes of each queue are those of its tasks that wait, in any place; none are left over or missing."""
        keys = self.pool.keys
        found = self.pool.call(task_scripts.measure_bytes(keys, ids=[id_.encode() for id_ in self.model.tasks]))
        flat = self.pool.execute("HGETALL", keys.queue_bytes)
        stored = {queue: int(number) for queue, number in zip(flat[::2], flat[1::2], strict=True)}
        assert stored == ({**found, b"*": sum(found.values())} if found else {})

    @invariant()
    def limits_hold(self) -> None:
        """In no window of any limit were more starts granted than allowed, whatever the clock did."""
        for name, limit in self.model.limits.items():
            flat = self.pool.execute("ZRANGE", self.pool.keys.limit(name), 0, -1, "WITHSCORES")
            found = [(float(us), member.decode()) for member, us in zip(flat[::2], flat[1::2], strict=True)]
            assert found == limit.stored()
            times = sorted(self.model.history.get(name, []))
            for first, last in zip(times, times[limit.count :], strict=False):
                assert last - first >= limit.window_us, f"{limit.count + 1} grants of {name} in less than its window"

    # The end ----------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Everything drains: each task ends, and what is left are keys that are meant to stay or have a lifetime."""
        try:
            self.drain()
        finally:
            if names := self.pool.names():
                self.pool.execute("UNLINK", *names)
            self.pool.close()

    def cancel_joining(self) -> None:
        """Cancel what still joins."""
        ids = [task.id for task in self.model.joining()]
        if ids:
            assert self.pool.cancel(*ids, only_this=True) == self.model.cancel(ids, only_this=True)

    def fund_all(self) -> None:
        """Let all start that wait for the budget."""
        if self.model.unfunded():
            limit = self.model.fund.spent + self.model.fund.held + 100
            assert self.pool.set_budget(FUND, usd=limit).status == self.model.set_budget(limit)
            assert self.pool.sweep_all(FUND, limit=500) == self.model.sweep()

    def succeed(self, deliveries: Sequence[Delivery]) -> None:
        """End attempts with a result."""
        rows = [(delivery, Verdict(VerdictKind.SUCCEEDED, b"1")) for delivery in deliveries]
        assert self.pool.finish(*rows) == self.model.finish(rows)

    def drain(self) -> None:
        """Play a well-behaved team until nothing is left."""
        if self.again is None:
            return
        for agent in ("ed", "ann"):
            self.change_skills(agent, "abc")
        for worker in self.workers:
            worker.holds.clear()
        for turn in range(200):
            if all(task.state in FINAL for task in self.model.tasks.values()):
                break
            self.tick(10_000)
            self.pool.promote()
            self.model.promote(500)
            for task in self.model.asking():
                assert self.pool.answer(task.id, '"b"', number=task.asks).status == "answered"
                self.model.answer(task.id, task.asks, '"b"')
            if turn > 100:
                # A cycle that closed over a lane after the joins were registered.
                self.cancel_joining()
            for name in self.model.agents:
                self.assign_once(name, 500)
            self.fund_all()
            for worker in self.workers:
                found = self.pool.read(worker.name, agent=worker.agent)
                self.compare(found, self.model.read(worker.agent, worker.name, 100))
                self.take_suspects(self.workers.index(worker), 500, reply_lost=False)
                self.succeed([*found, *worker.holds.values()])
                worker.holds.clear()
                # What it had lost.
                self.succeed(self.adopt_once(worker, [], 500, own=True))
        assert {task.state for task in self.model.tasks.values()} <= FINAL
        self.told.clear()
        self.agree()
        streams = {name.rpartition(":")[2] for name in self.pool.names() if ":out:" in name}
        assert streams == {task.id for task in self.model.tasks.values() if task.out is not None}
        assert without_lifetime(self.pool.link, f"{self.pool.keys.prefix}:") == []
        places = (":queue", ":suspects", ":parked", ":lane", ":joining", ":after", ":ends")
        assert [name for name in self.pool.names() if any(place in name for place in places)] == []


def machine_on(server: RedisServer, prefix: str) -> type[Machine]:
    """A machine class whose instances each have a namespace of their own."""
    fired.clear()
    return type("Machine", (Machine,), {"url": server.url, "prefixes": (f"{prefix}{number}" for number in count())})


def report(capsys: pytest.CaptureFixture[str]) -> None:
    """Say how often each rule fired."""
    with capsys.disabled():
        print("\nhow often each rule fired:", ", ".join(f"{name} {times}" for name, times in sorted(fired.items())))  # noqa: T201


@pytest.mark.timeout(400)  # a failure is made small first, which takes its time
@pytest.mark.parametrize("examples", [FEW, pytest.param(EXAMPLES, marks=pytest.mark.slow)], ids=["few", "many"])
def test_scripts_follow_the_model(
    redis_server: RedisServer, prefix: str, capsys: pytest.CaptureFixture[str], examples: int
) -> None:
    """Whatever clients, supervisors and workers do, and however often, the scripts keep their promises."""
    run_state_machine_as_test(
        machine_on(redis_server, prefix),
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            report_multiple_bugs=False,
        ),
    )
    report(capsys)


@pytest.mark.slow
def test_long_walk(redis_server: RedisServer, prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Long histories in which every rule fires, so that rare meetings of old and new attempts happen too.

    To compare pool and model takes longer with each task, so that each history ends after some hundred steps.
    """
    make, dice = machine_on(redis_server, prefix), random.Random(1)
    steps: set[tuple[str | None, str, str | None]] = set()
    for walk in range(20):
        machine = make()
        machine.pool.close()
        machine.pool = watched = WatchedPool(redis_server.url, f"{prefix}walk{walk}")
        machine.start()
        for _ in range(400):
            walk_one_step(machine, dice)
            machine.agree()
        machine.teardown()
        steps |= watched.steps
        if walk >= 2 and all(fired[name] for name in MUST_FIRE):
            break
    report(capsys)
    assert [name for name in MUST_FIRE if not fired[name]] == []
    assert steps - {(step.before, step.script, step.after) for step in STEPS} == set()
    assert len(steps) > 20


def walk_one_step(machine: Machine, dice: random.Random) -> None:
    """Choose a rule and its arguments."""
    i, kinds, yes = dice.randrange(5), dice.choices(list(VerdictKind), k=3), dice.random() < 0.5
    steps: list[Callable[[], None]] = [
        lambda: machine.submit(
            places=dice.choices(QUEUES, k=dice.randrange(1, 4)),
            priority=i,
            aging_ms=dice.choice([10**13, 50]),
            delay_ms=dice.choice([0, 0, 0, 30, 500]),
            at_ms=dice.choice([0, 0, 100]),
            start_in_ms=dice.choice([0, 0, 20, 5000]),
            key=dice.choice(["", "", "k1", "k2", f"k{dice.random()}"]),
            digest=dice.choice("dde"),
            lane=dice.choice(["", "x", "x", "y"]),
            on_busy=dice.choice(["", "", "reject", "reject", "reject", "interrupt", "replace"]),
            depth=dice.choice([0, 0, 1, 2]),
            tags=dice.choice([(), (), ("eu",), ("eu", "us")]),
            budget=dice.choice(["", FUND]),
        ),
        lambda: machine.get_to_work(1 + i, kinds[: dice.randrange(3)], reply_lost=dice.random() < 0.2),
        lambda: machine.assign(dice.choice(["ed", "ann", "bob"]), dice.choice([1, 2, 500])),
        lambda: machine.read(i, 1 + i, reply_lost=dice.random() < 0.2),
        lambda: machine.trouble(list(zip(dice.choices(TROUBLES, k=3), dice.choices(range(5), k=3), strict=True))),
        lambda: machine.renew(i, forget=yes),
        lambda: machine.recover(dice.choice(["ed", "ann", "bob"]), dice.choice([1, 500]), looks=dice.random() < 0.8),
        lambda: machine.change_skills(dice.choice(["ed", "ann"]), dice.choice(["a", "ab", "bc", "abc"])),
        lambda: machine.time_passes(dice.choice([1, 10, 50, 400, 3000])),
        lambda: machine.time_passes(dice.choice([1, 10, 50, 400, 3000])),
        lambda: machine.time_jumps(dice.choice([20_000, 100_000])),
        lambda: machine.time_steps_back(dice.choice([1, 200, 30_000])),
        machine.supervise,
        machine.supervise,
        lambda: machine.die_together(i, dice.randrange(1, 3)),
        lambda: machine.return_unseen(i, dice.choice([1, 500])),
        lambda: machine.promote(dice.choice([1, 500])),
        machine.repeat if machine.again else machine.supervise,
        lambda: machine.set_budget(i - 1),
        machine.sweep,
    ]
    if any(worker.holds for worker in machine.workers):
        steps += [lambda: machine.finish(i, kinds, delay_ms=10 * i, at_ms=0, twice=yes)] * 3
        steps += [lambda: machine.finish(i, [VerdictKind.SNOOZE] * 3, delay_ms=0, at_ms=0, twice=False)]
        steps += [lambda: machine.crash(i), lambda: machine.lease_expires(i)]
    if machine.past or any(worker.holds for worker in machine.workers):
        steps += [lambda: machine.submit_children(dice.randrange(1000), dice.choices(QUEUES, k=dice.randrange(1, 4)))]
    steps += [lambda: machine.cancel_children(dice.choice([1, 2, 100]))]
    if machine.model.tasks:
        steps += [lambda: machine.wake(dice.randrange(1000))]
        steps += [lambda: machine.submit_known([-1, -2]), lambda: machine.cancel([-1 - i], only_this=yes)]
        steps += [
            lambda: machine.answer(dice.randrange(1000), dice.choice([0, 0, -1, 1]), dice.choice(['"a"', '"b"', "1"]))
        ]
        steps += [lambda: machine.watch([-1, -1 - i]), lambda: machine.delete([-1, -5 - i])]
        steps += [lambda: machine.retry([-1, -2 - i, dice.randrange(100)], again=dice.random() < 0.2)]
    if machine.model.any_suspects():
        steps += [lambda: machine.take_suspects(i, 1 + kinds.count(kinds[0]), reply_lost=dice.random() < 0.2)] * 3
        steps += [lambda: machine.die_together(i, dice.randrange(1, 4))]
    if dice.random() < 0.3 and any(task.state not in FINAL for task in machine.model.tasks.values()):
        steps += [lambda: machine.lose([i, dice.randrange(100)], deadlines=yes)]
    if machine.past:
        few = [dice.randrange(100) for _ in range(1 + i % 3)]
        steps += [lambda: machine.join(dice.randrange(1000), few, i % 2, own=yes, verdict=dice.random() < 0.8)] * 2
        steps += [
            lambda: machine.spend(dice.randrange(1000), i, dice.choice([None, 0, 1, 5]), leave=yes),
            lambda: machine.spend(dice.randrange(1000), 2, 2, leave=False),
        ]
        steps += [lambda: machine.finish_old(dice.randrange(10_000), kinds[0])]
        steps += [lambda: machine.emit(dice.randrange(10_000), dice.choices(["progress", "output"], k=1 + i % 3))] * 2
    dice.choice(steps)()
