"""What the scripts promise, once more, in plain Python: lists and dictionaries, no Redis, no cleverness.

Every method takes what the script takes and answers what it must answer. Entry ids and the jitter after a death are the
server's choice; `learn_entries` and `learn_due` tell the model what was chosen, after the caller has checked it.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from orchestrator.tasks.model import (
    AnswerStatus,
    CancelStatus,
    DeleteStatus,
    EmitStatus,
    FinishStatus,
    LeaseStatus,
    Promoted,
    RequeueStatus,
    TaskState,
    Verdict,
    VerdictKind,
    WatchStatus,
)
from orchestrator.tasks.questions import StoredQuestion
from orchestrator.tasks.scripts import CancelledChildren
from tests.lua.pool import LEASE_MS, Assigned

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orchestrator.tasks.model import Delivery
    from orchestrator.tasks.scripts import EmitRow
    from tests.lua.pool import Row

FINAL = {"succeeded", "dead", "cancelled", "expired"}
_AGAIN = {
    VerdictKind.RETRY: "retried",
    VerdictKind.SNOOZE: "snoozed",
    VerdictKind.REQUEUE: "given_back",
    VerdictKind.RELEASED: "given_back",
    VerdictKind.AWAIT_LOCK: "given_back",
    VerdictKind.ASK: "asked",
    VerdictKind.JOIN: "joining",
}
_OUTCOMES = {
    VerdictKind.RETRY: "failed",
    VerdictKind.DEAD: "failed",
    VerdictKind.SNOOZE: "snoozed",
    VerdictKind.REQUEUE: "interrupted",
    VerdictKind.ASK: "asked",
    VerdictKind.JOIN: "joining",
    VerdictKind.INVALID: "refused",
    VerdictKind.CANCELLED: "cancelled",
}
_UNSTARTED = {VerdictKind.RELEASED, VerdictKind.AWAIT_LOCK, VerdictKind.INVALID}
ASKED: Final = StoredQuestion("Which?", ('"a"', '"b"'))
"""What every task asks, whenever it asks."""
MAX_DEATHS = 3
PATIENCE_MS: Final = 60_000
"""How long a task waits for a process that runs nothing else before it shares one with tasks that are no suspects."""
CREW_MS: Final = 60_000
"""How long the counts of a dead worker are kept."""


@dataclass
class Task:
    """One accepted task.

    Attributes:
        score: where it stands in its queue.
        forgiven: failures and deaths from before it was requeued.
        begun: the generation that a worker has begun; noted of tasks with a death only.
        blamed: deaths as the only suspect, since it was requeued.
        group: with how many suspects it may share a process; None: with any number.
        witnessed: whether its host saw the worker die with which it died last.
        alone: when it began to wait for a process that runs nothing else; None: it has not.
        suspect: whether it stands among the suspects of its queue.
        token: of the call that requeued it last.
        original_score: the score that it had when it was assigned last.
        left: how its last attempt ended, if it is scheduled again.
        woken: generation of the attempt that need not wait for its lock.
        due: when it leaves `scheduled`, or the deadline of its question (0: none).
        asks: the number of its latest question.
        answers: by question; None: its deadline has passed.
        out: its output stream as (kind, generation, attempt); None: it does not emit and nobody follows it.
        emitted: generation and number of the last row that was emitted.
        progress: the latest, as it is stored.
        ran: how its attempts ended, if any did not succeed.
        snoozes: how often its handler put it off.
        effect: the stored value of its effect `pay`, if it has one.
        join: the join that it has registered: generation, tasks that may be left, whether a failure ends it.
        joins: the tasks of this join that have not ended.
        joined: the tasks that join it, or did.
        join_until: deadline of its join (0: none); None before its first verdict `join`.
        need: what its start takes of its budget, while it waits for room; None: it does not.
        before: the tasks of its flow after which it runs, and whether it runs also after their failure.
        after: those of them that have not ended.
        followers: the tasks that run after it, in their order.
    """

    id: str
    row: Row
    state: str
    gen: int
    score: int = 0
    original_score: int | None = None
    left: str = ""
    woken: int = 0
    due: int = 0
    by: int = 0
    was: int = 0
    fails: int = 0
    deaths: int = 0
    parked: bool = False
    cancel: bool = False
    deleted: bool = False
    asks: int = 0
    answers: dict[int, str | None] = field(default_factory=dict)
    forgiven: tuple[int, int] = (0, 0)
    begun: int = 0
    blamed: int = 0
    group: int | None = None
    witnessed: bool = False
    alone: int | None = None
    suspect: bool = False
    token: str = ""
    out: list[tuple[str, int, int]] | None = None
    emitted: tuple[int, int] = (0, 0)
    progress: str = ""
    ran: list[str] = field(default_factory=list)
    snoozes: int = 0
    effect: bytes = b""
    join: tuple[int, int, bool] | None = None
    joins: set[str] = field(default_factory=set)
    joined: list[str] = field(default_factory=list)
    join_until: int | None = None
    need: int | None = None
    before: dict[str, bool] = field(default_factory=dict)
    after: set[str] = field(default_factory=set)
    followers: list[str] = field(default_factory=list)


RESERVED: Final = 2
"""Dollars that each start of the skill `a` takes from the budget of its task."""


@dataclass
class Fund:
    """One budget, in dollars.

    Attributes:
        holds: what attempts hold, by task and generation, and by number of the call; 0 for a start.
        settled: calls that are settled.
    """

    limit: int
    spent: int = 0
    holds: dict[tuple[str, int], dict[int, int]] = field(default_factory=dict)
    settled: set[tuple[str, int, int]] = field(default_factory=set)

    @property
    def held(self) -> int:
        """What all attempts hold."""
        return sum(sum(calls.values()) for calls in self.holds.values())

    def lacks(self, need: int, *, drawn: int = 0, starts: bool = False, more: int = 0) -> str:
        """Why it has no room for an amount, or an empty string; `more` is promised to others."""
        used = self.spent + self.held + more
        if need > self.limit:
            return "above"
        if used > self.limit:
            return "overspent"
        return "room" if used + need - drawn > self.limit or (starts and not need and used >= self.limit) else ""

    def book(self, task: Task, *, died: bool = False) -> None:
        """An attempt ends: its start is free, unless it died, and calls that it has not settled are lost."""
        calls = self.holds.pop((task.id, task.gen), {})
        self.spent += sum(amount for number, amount in calls.items() if number or died)


class Crew(NamedTuple):
    """What a worker ran when it died: tasks without a death, tasks with one, suspects, and the deepest suspects."""

    fresh: int
    prior: int
    limited: int
    deepest: int
    at_deepest: int


@dataclass
class Entry:
    """One inbox entry.

    Attributes:
        consumer: who has read it; None: nobody has.
        aged: nobody has renewed it for a lease.
        group: group and depth of its task, as its worker learned them.
    """

    task: str
    gen: int
    attempt: int
    deaths: int
    forgiven: int = 0
    id: str = ""
    consumer: str | None = None
    aged: bool = False
    group: tuple[int | None, int] = (None, 0)


@dataclass
class Limit:
    """One limit: what it allows, which grants it remembers, and when it granted last, returned or not."""

    count: int
    window_us: int
    grants: list[tuple[int, str]] = field(default_factory=list)
    last_us: int = 0

    def clock(self, now_us: int) -> int:
        """Time never runs behind the last grant."""
        return max(now_us, self.last_us)

    def stored(self) -> list[tuple[float, str]]:
        """What is stored: the grants, and the time of the last one when that was returned."""
        returned = self.last_us not in {0, *[us for us, _ in self.grants]}
        return [*sorted(self.grants), *([(math.inf, str(self.last_us))] if returned else [])]

    def inside(self, now_us: int) -> list[tuple[int, str]]:
        """Grants inside the window that ends now."""
        return sorted(grant for grant in self.grants if grant[0] > self.clock(now_us) - self.window_us)


@dataclass
class Agent:
    """What the registry derives for one agent, and what adopt remembers of its inbox."""

    name: str
    slots: int
    backlog: int
    skills: frozenset[str]
    limits: tuple[str, ...] = ()
    workers: int = 1
    inbox: list[Entry] = field(default_factory=list)
    looked: int = 0
    grace: int = 0
    swept: int = 0
    rest: bool = False
    unparking: bool = False

    @property
    def queues(self) -> list[str]:
        """The queues that it serves."""
        return [f"agent:{self.name}", *[f"skill:{skill}" for skill in sorted(self.skills)]]

    @property
    def room(self) -> int:
        """Entries that still fit."""
        return self.slots * (1 + self.backlog) - len(self.inbox)

    @property
    def ring_below(self) -> int:
        """A marked agent rings when it has fewer entries than this."""
        return math.ceil(self.slots * (1 + self.backlog / 2))


def reserved(agent: Agent, task: Task) -> int:
    """What the start of a task takes."""
    skill = task.row.skill or task.row.queue.removeprefix("skill:")
    return RESERVED if skill == "a" and "a" in agent.skills else 0


class Model:
    """A pool."""

    def __init__(self, agents: Iterable[Agent], limits: dict[str, Limit], now_us: int) -> None:
        self.agents = {agent.name: agent for agent in agents}
        self.limits = limits
        self.now_us = now_us
        self.fund = Fund(3 * RESERVED)
        self.tasks: dict[str, Task] = {}
        self.keys: dict[str, tuple[str, str]] = {}
        self.expiring: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.ends: list[tuple[str, str]] = []
        self.blocked_ms: dict[str, int] = {}
        self.history: dict[str, list[int]] = {}
        self.lanes: dict[str, list[str]] = {}
        self.children: dict[str, list[str]] = {}
        self.cancelling: list[tuple[str, int]] = []
        self.interrupted: list[str] = []
        self.turns: set[str] = set()
        self.looked = 0
        self.buried = 0
        self.crews: dict[str, tuple[int, int, Crew]] = {}
        self.leaving: list[tuple[str, str, bool]] = []
        self.followed: list[tuple[str, str]] = []

    @property
    def now_ms(self) -> int:
        """The time in milliseconds."""
        return self.now_us // 1000

    # Places -----------------------------------------------------------------------------------------------------------

    def queue(self, name: str) -> list[Task]:
        """Ready tasks of a queue, best first."""
        found = [t for t in self._ready(name) if not (t.parked or t.suspect)]
        return sorted(found, key=lambda task: (task.score, task.id))

    def suspects(self, name: str) -> list[Task]:
        """Tasks of a queue that wait for a worker process with room, best first."""
        return sorted([t for t in self._ready(name) if t.suspect], key=lambda task: (task.score, task.id))

    def any_suspects(self) -> bool:
        """Whether any task waits for a worker process with room."""
        return any(task.suspect and task.state == "ready" for task in self.tasks.values())

    def _ready(self, queue: str) -> list[Task]:
        return [
            task
            for task in self.tasks.values()
            if task.state == "ready" and task.row.queue == queue and task.need is None
        ]

    def unfunded(self) -> list[Task]:
        """Tasks that wait for room of the budget, best first."""
        found = [task for task in self.tasks.values() if task.state == "ready" and task.need is not None]
        return sorted(found, key=lambda task: (task.score, task.id))

    def parked(self, agent: str) -> list[Task]:
        """Tasks addressed to an agent that lacks their skill."""
        return sorted([t for t in self._ready(f"agent:{agent}") if t.parked], key=lambda task: (task.score, task.id))

    def tagged(self, tag: str) -> list[Task]:
        """The tasks that a tag lists."""
        return [task for task in self.tasks.values() if tag in task.row.tags and not task.deleted]

    def scheduled(self) -> list[Task]:
        """Scheduled tasks, the next due first."""
        return sorted([t for t in self.tasks.values() if t.state == "scheduled"], key=lambda task: (task.due, task.id))

    def asking(self) -> list[Task]:
        """Tasks that wait for a person, the first deadline first."""
        found = [t for t in self.tasks.values() if t.state == "awaiting_input"]
        return sorted(found, key=lambda task: (task.due or math.inf, task.id))

    def joining(self) -> list[Task]:
        """Tasks that wait for tasks that they join, the first deadline first."""
        found = [t for t in self.tasks.values() if t.state == "joining"]
        return sorted(found, key=lambda task: (task.join_until or math.inf, task.id))

    def entry_of(self, task_id: str) -> tuple[Agent, Entry] | None:
        """The inbox entry of a task's present attempt."""
        for agent in self.agents.values():
            for entry in agent.inbox:
                if entry.task == task_id:
                    return agent, entry
        return None

    # Scripts ----------------------------------------------------------------------------------------------------------

    def submit(self, rows: Sequence[Row], max_tasks: int) -> list[tuple[str, str]]:
        """lua/tasks/submit.lua."""
        lengths: dict[str, int] = {}
        accepted: dict[str, Row] = {}
        answers = [self._judge(row, max_tasks, lengths, accepted) for row in rows]
        if rows[0].after is not None and {status for status, _ in answers} != {"created"}:
            if ("duplicate", rows[0].id) in answers:
                return [("duplicate", row.id) for row in rows]
            first = next(row.id for row, (status, _) in zip(rows, answers, strict=True) if status != "created")
            return [("withheld", first) if status == "created" else (status, told) for status, told in answers]
        for row in accepted.values():
            self._accept(row)
        if rows[0].after is not None:
            self._link(rows)
        for task_id in self.interrupted:
            self._note_children(task_id)
        self.interrupted.clear()
        self._end_joins()
        return answers

    def _link(self, rows: Sequence[Row]) -> None:
        """Let the tasks of a flow know of each other."""
        for row in rows:
            before = {rows[abs(number) - 1].id: number < 0 for number in row.after or ()}
            self.tasks[row.id].before, self.tasks[row.id].after = before, set(before)
            for id_ in before:
                self.tasks[id_].followers.append(row.id)

    def _judge(self, row: Row, max_tasks: int, lengths: dict[str, int], accepted: dict[str, Row]) -> tuple[str, str]:
        if row.id in self.tasks or row.id in accepted:
            return "duplicate", row.id
        if refusal := self._judge_key(row) or self._judge_parent(row):
            return refusal
        place, lane = "scheduled" if self._due(row) > self.now_ms else row.queue, f"lane:{row.lane}"
        place = "after" if row.after else place
        if (
            row.lane
            and place not in {"scheduled", "after"}
            and lengths.setdefault(lane, len(self.lanes.get(row.lane, [])))
        ):
            place = lane
            if row.on_busy == "reject":
                behind = [one.id for one in accepted.values() if one.lane == row.lane]
                return "busy", [*self.lanes.get(row.lane, []), *behind][0]
            if row.on_busy == "replace" and lengths[lane] < max_tasks:
                lengths[lane] = 1
        if place not in lengths:
            lengths[place] = self._length(place)
        if lengths[place] >= max_tasks:
            return "full", place
        lengths[place] += 1
        if row.lane and place == row.queue:
            lengths[lane] = 1
        accepted[row.id] = row
        if row.idem:
            self.keys[row.idem] = (row.id, row.digest)
        return "created", ""

    def _judge_key(self, row: Row) -> tuple[str, str] | None:
        if row.idem not in self.keys:
            return None
        owner, digest = self.keys[row.idem]
        return ("duplicate" if digest == row.digest else "conflict"), owner

    def _judge_parent(self, row: Row) -> tuple[str, str] | None:
        if not row.parent:
            return None
        parent = self.tasks.get(row.parent)
        if parent is None or parent.state != "assigned" or str(parent.gen) != row.parent_generation:
            return "stale", row.parent
        return ("cancelling", row.parent) if parent.cancel else None

    def _length(self, place: str) -> int:
        if place == "scheduled":
            return len(self.scheduled())
        if place == "after":
            return len([task for task in self.tasks.values() if task.state == "awaiting_tasks"])
        return len(self._ready(place))

    def _due(self, row: Row) -> int:
        return max(self.now_ms + row.delay_ms if row.delay_ms else 0, row.at_ms)

    def _accept(self, row: Row) -> None:
        due = 0 if row.after else self._due(row)
        later = due > self.now_ms
        if row.parent and self.tasks[row.parent].row.budget:
            # A child spends the budget of its parent.
            row = replace(row, budget=self.tasks[row.parent].row.budget)
        task = Task(row.id, row, "scheduled" if later else "ready", self.now_ms, by=row.start_by_ms)
        if row.after:
            task.state = "awaiting_tasks"
        task.due, task.score = due, row.rank + self.now_ms
        self.tasks[row.id] = task
        if row.start_by_ms:
            self.expiring.add(row.id)
        self.counts["submitted"] += 1
        if row.parent:
            self.children.setdefault(row.parent, []).append(row.id)
        if row.lane and not later and not row.after:
            self._meet_lane(task)

    def _meet_lane(self, task: Task) -> None:
        """A new task takes its place in its lane, and ends whom it may."""
        others = list(self.lanes.get(task.row.lane, []))
        if not others or task.row.on_busy != "interrupt":
            self._join(task)
        else:
            self.lanes[task.row.lane].insert(1, task.id)
            task.state = "waiting"
            self._cancel(self.tasks[others[0]])
            self.interrupted.append(others[0])
        if task.row.on_busy == "replace":
            for other in reversed(others):
                if not self._has_begun(self.tasks[other]):
                    self._cancel(self.tasks[other])

    def _join(self, task: Task) -> None:
        """A task that becomes ready stands behind its lane, if it has one and no place there."""
        if not task.row.lane:
            return
        members = self.lanes.setdefault(task.row.lane, [])
        if task.id not in members:
            members.append(task.id)
        task.state = "ready" if members[0] == task.id else "waiting"

    def _has_begun(self, task: Task) -> bool:
        found = self.entry_of(task.id)
        return bool(task.was or task.fails or task.deaths or (found and found[1].consumer))

    def promote(self, limit: int) -> Promoted:
        """lua/tasks/promote.lua."""
        late = sorted((self.tasks[i].by, i) for i in self.expiring if self.tasks[i].by <= self.now_ms)[:limit]
        expired = 0
        for _, task_id in late:
            if self.tasks[task_id].state in {"ready", "waiting", "scheduled", "awaiting_tasks"}:
                self._end(self.tasks[task_id], "expired")
                expired += 1
            self.expiring.discard(task_id)
        due = [task for task in self.scheduled() if task.due <= self.now_ms][:limit]
        for task in due:
            asks_again = task.left == VerdictKind.AWAIT_LOCK
            task.state, task.score = "ready", task.row.rank + task.due
            if asks_again and task.original_score is not None:
                task.score = task.original_score
            self._join(task)
        overdue = [task for task in self.asking() if 0 < task.due <= self.now_ms][:limit]
        for task in overdue:
            assert task.original_score is not None
            task.state, task.score, task.answers[task.asks] = "ready", task.original_score, None
            self.counts["unanswered"] += 1
            self._tell(task, "unanswered")
        late_joins = [task for task in self.joining() if 0 < (task.join_until or 0) <= self.now_ms][:limit]
        for task in late_joins:
            self._end_join(task, "join_timeout")
        self._end_joins()
        waits = [task.due for task in self.scheduled()] + [self.tasks[task_id].by for task_id in self.expiring]
        waits += [task.due for task in self.asking() if task.due] + [
            t.join_until for t in self.joining() if t.join_until
        ]
        wait_ms = max(0, min(waits) - self.now_ms) if waits else None
        return Promoted(
            len(due) + len(overdue) + len(late_joins),
            expired,
            None if wait_ms is None else wait_ms / 1000,
            left=wait_ms == 0,
            cancels=bool(self.cancelling),
        )

    def assign(self, names: Sequence[str], limit: int) -> dict[str, Assigned]:
        """lua/tasks/assign.lua. Agents that the call does not come to are the first of the answer."""
        self.turns.clear()
        self.looked = 0
        missed: dict[str, Assigned] = {}
        served: dict[str, Assigned] = {}
        unparked = False
        for name in names:
            agent, count = self.agents[name], sum(done.count for done in served.values())
            if count >= limit or self.looked >= limit:
                missed[name] = Assigned(0, left=True, wait_us=0)
                continue
            if agent.unparking and not unparked:
                unparked = True
                self._unpark(agent)
            done = self._fill(agent, limit - count)
            served[name] = replace(done, left=done.left or agent.unparking)
        self._end_joins()
        return missed | served

    def _fill(self, agent: Agent, limit: int) -> Assigned:
        # Whose turn comes in this call is put into its queue at the end of it.
        ready = {queue: [t for t in self.queue(queue) if t.id not in self.turns] for queue in agent.queues}
        filled = [queue for queue in agent.queues if ready[queue]]
        if not agent.slots or not filled:
            return Assigned(0, left=False, wait_us=0)
        room = self._room(agent)
        want, next_free = min(room, limit), 0
        if want > 0:
            half = math.ceil(agent.slots / 2)
            want, next_free = self._limit_room(agent, min(want, half) if agent.limits else want)
        if want <= 0:
            return Assigned(0, left=False, wait_us=max(1, next_free - self.now_us) if next_free else 0)
        each = want if len(filled) == 1 else max(1, min(want, 1000 // len(filled)))
        best = sorted((t for queue in filled for t in ready[queue]), key=lambda task: (task.score, task.id))
        count = 0
        for at, task in enumerate(best):
            if count >= want or at >= each:
                break
            self.looked += 1
            count += self._start(agent, task)
            # The tasks behind it do not wait for the next call.
            each += task.need is not None
        self.counts["assigned"] += count
        remain = any(task.id not in self.turns for queue in filled for task in self.queue(queue))
        return Assigned(count, left=remain and count < room, wait_us=0)

    def _start(self, agent: Agent, task: Task) -> bool:
        """Assign a task, unless it ends, or belongs elsewhere; whether it was assigned."""
        if task.by and task.by <= self.now_ms:
            self._end(task, "expired")
            self.expiring.discard(task.id)
        elif task.row.skill and task.row.skill not in agent.skills:
            task.parked = True
        elif task.group is not None:
            task.suspect = True
            if task.group == 0 and task.alone is None:
                task.alone = self.now_ms
        elif self._has_funds(agent, task):
            self._deliver(agent, task)
            return True
        return False

    def _has_funds(self, agent: Agent, task: Task) -> bool:
        """Whether the budget of a task, if it has one, has room for its start; without room it waits."""
        if task.row.budget and self.fund.lacks(reserved(agent, task), starts=True):
            task.suspect, task.need = False, reserved(agent, task)
            return False
        return True

    def _unpark(self, agent: Agent) -> None:
        if agent.unparking:
            agent.unparking = False
            for task in self.parked(agent.name):
                task.parked = task.row.skill not in agent.skills

    def _room(self, agent: Agent) -> int:
        """While suspects wait, an agent has no backlog, and a slot stays free for each worker that may take one."""
        suspects = sum(len(self.suspects(queue)) for queue in agent.queues)
        return agent.room - (agent.slots * agent.backlog + min(suspects, agent.workers) if suspects else 0)

    def take_suspects(
        self, name: str, worker: str, limit: int, running: Iterable[tuple[int, int]], *, idle: bool
    ) -> tuple[bool, list[Entry]]:
        """lua/tasks/take_suspects.lua."""
        agent, running, taken = self.agents[name], list(running), list[Entry]()
        found = [task for queue in agent.queues for task in self.suspects(queue)]
        if not found or any(entry.consumer is None for entry in agent.inbox):
            return bool(found), []
        want = self._limit_room(agent, limit)[0]
        for task in sorted(found, key=lambda task: (-(task.group or 0), task.blamed, task.score, task.id)):
            if len(taken) >= want:
                break
            if task.row.skill and task.row.skill not in agent.skills:
                task.suspect = False
                continue
            most, depth = task.group or 0, task.row.depth
            alone = most == 0 and idle and not running
            if most == 0 and task.alone is not None and self.now_ms - task.alone >= PATIENCE_MS:
                most = 1
            beside = [group for other, group in running if other >= depth]
            if (alone or len(beside) < min([most, *beside])) and self._has_funds(agent, task):
                most = 0 if alone else most
                self._deliver(agent, task)
                entry = agent.inbox[-1]
                entry.consumer, entry.group = worker, (most, depth)
                running.append((depth, most))
                taken.append(entry)
                if alone:
                    break
        self.counts["assigned"] += len(taken)
        return True, taken

    def begin(self, entries: Iterable[Entry]) -> None:
        """lua/tasks/begin.lua, for the attempts with a death before them."""
        for entry in entries:
            if entry.deaths:
                self.tasks[entry.task].begun = entry.gen

    def _deliver(self, agent: Agent, task: Task) -> None:
        task.state, task.original_score, task.suspect = "assigned", task.score, False
        self._raise(task)
        if task.row.budget and (need := reserved(agent, task)):
            self.fund.holds[task.id, task.gen] = {0: need}
        self._tell(task, "assigned")
        self.expiring.discard(task.id)
        entry = Entry(task.id, task.gen, task.fails + task.deaths + 1, task.deaths, task.forgiven[0])
        agent.inbox.append(entry)
        self._take_slots(agent, task)

    def learn_entries(self, name: str, ids: Sequence[str]) -> None:
        """Tell the ids of an inbox, in order."""
        for entry, entry_id in zip(self.agents[name].inbox, ids, strict=True):
            assert entry.id in {"", entry_id}
            entry.id = entry_id

    def read(self, name: str, worker: str, limit: int, *, begin: bool = True) -> list[Entry]:
        """XREADGROUP; then the worker begins, unless the reply is lost."""
        unread = [entry for entry in self.agents[name].inbox if entry.consumer is None][:limit]
        for entry in unread:
            entry.consumer = worker
        self.begin(unread if begin else [])
        return unread

    def finish(self, rows: Sequence[tuple[Delivery, Verdict]]) -> list[FinishStatus]:
        """lua/tasks/finish.lua."""
        answers = [self._finish(delivery, verdict) for delivery, verdict in rows]
        self._end_joins()
        return answers

    def _finish(self, delivery: Delivery, verdict: Verdict) -> FinishStatus:
        task, gen = self.tasks[delivery.task_id], int(delivery.generation)
        if task.deleted:
            return FinishStatus.STALE
        if task.gen != gen:
            return FinishStatus.ALREADY if task.was == gen else FinishStatus.STALE
        if task.state in FINAL:
            return FinishStatus.ALREADY
        if task.state != "assigned":
            return FinishStatus.STALE
        found = self.entry_of(task.id)
        assert found is not None
        agent, entry = found
        agent.inbox.remove(entry)
        self.fund.book(task)
        if verdict.kind in _UNSTARTED:
            self._return_slots(agent, task)
        self._note_attempt(task, verdict.kind)
        spent = verdict.kind == VerdictKind.SNOOZE and not task.cancel and 0 < verdict.number <= task.snoozes
        if verdict.kind in _AGAIN and not task.cancel and not spent:
            self._leave(task, verdict)
        elif verdict.kind == VerdictKind.SUCCEEDED:
            self._end(task, "succeeded")
        elif verdict.kind == VerdictKind.DEAD or spent or (verdict.kind == VerdictKind.INVALID and not task.cancel):
            # No version of a skill is registered here, so arguments that do not fit end the task.
            task.fails += 1
            self._end(task, "dead", counted=True)
        else:
            self._end(task, "cancelled")
        return FinishStatus.OK

    def _note_attempt(self, task: Task, kind: VerdictKind) -> None:
        if kind in _OUTCOMES:
            stays = kind not in _AGAIN and kind != VerdictKind.INVALID
            task.ran.append(_OUTCOMES[kind] if stays or not task.cancel else "cancelled")
        elif kind == VerdictKind.SUCCEEDED and task.ran:
            task.ran.append("succeeded")

    def _leave(self, task: Task, verdict: Verdict) -> None:
        self._tell(task, _AGAIN[verdict.kind])
        delay_ms = verdict.delay_ms
        if verdict.kind == VerdictKind.AWAIT_LOCK and task.woken == task.gen:
            delay_ms = 0
        task.was = task.gen
        self._raise(task)
        due = max(self.now_ms + delay_ms if delay_ms else 0, verdict.at_ms)
        if verdict.kind == VerdictKind.RETRY:
            task.fails += 1
        elif verdict.kind == VerdictKind.SNOOZE:
            task.snoozes += verdict.number != 0
        if task.by and verdict.kind in _UNSTARTED:
            self.expiring.add(task.id)
        else:
            task.by = 0
        if verdict.kind == VerdictKind.ASK:
            task.state, task.due, task.asks = "awaiting_input", due, verdict.number
        elif verdict.kind == VerdictKind.JOIN:
            self._wait_for_joined(task, due if verdict.delay_ms else verdict.at_ms)
        elif due > self.now_ms:
            task.state, task.due, task.left = "scheduled", due, verdict.kind
        else:
            task.state = "ready"
            if verdict.kind in {VerdictKind.RETRY, VerdictKind.SNOOZE}:
                task.score = task.row.rank + self.now_ms
        self.counts[_AGAIN[verdict.kind]] += 1

    def _wait_for_joined(self, task: Task, until: int) -> None:
        if task.join_until is None:
            task.join_until = until
        waits = task.join is not None and task.join[0] == task.was and len(task.joins) > task.join[1]
        task.state, task.due = "joining" if waits else "ready", 0
        if not waits:
            task.joins.clear()
            self.counts["joined"] += 1

    def wake(self, task_id: str) -> bool:
        """lua/tasks/wake.lua."""
        task = self.tasks[task_id]
        if task.deleted or task.state not in {"ready", "assigned", "scheduled"}:
            return False
        if task.state == "assigned":
            task.woken = task.gen
        elif task.state == "scheduled":
            if task.left != VerdictKind.AWAIT_LOCK:
                return False
            assert task.original_score is not None
            task.state, task.score = "ready", task.original_score
        return True

    def answer(self, task_id: str, number: int, value: str) -> AnswerStatus:
        """lua/tasks/answer.lua."""
        task = self.tasks.get(task_id)
        if task is None or task.deleted:
            return AnswerStatus.UNKNOWN
        given = task.answers.get(number, "")
        if given:
            return AnswerStatus.ALREADY if given == value else AnswerStatus.OTHER
        if given is None:
            return AnswerStatus.LATE
        if task.state != "awaiting_input" or task.asks != number:
            return AnswerStatus.NOT_ASKING
        if value not in ASKED.options:
            return AnswerStatus.INVALID
        assert task.original_score is not None
        task.state, task.score, task.answers[number] = "ready", task.original_score, value
        self.counts["answered"] += 1
        self._tell(task, "answered")
        return AnswerStatus.ANSWERED

    def cancel(self, ids: Sequence[str], *, only_this: bool = False) -> list[tuple[CancelStatus, TaskState | None]]:
        """lua/tasks/cancel.lua."""
        answers = []
        for task_id in ids:
            answers.append(self._cancel(self.tasks.get(task_id)))
            if not only_this:
                self._note_children(task_id)
        self._end_joins()
        return answers

    def _cancel(self, task: Task | None) -> tuple[CancelStatus, TaskState | None]:
        if task is None or task.deleted:
            return CancelStatus.UNKNOWN, None
        if task.state in FINAL:
            return CancelStatus.ALREADY, TaskState(task.state)
        found = self.entry_of(task.id)
        if found:
            agent, entry = found
            if entry.consumer:
                task.cancel = True
                return CancelStatus.SIGNALLED, TaskState.ASSIGNED
            agent.inbox.remove(entry)
            self.fund.book(task)
            self._return_slots(agent, task)
        if task.state == "joining":
            task.joins.clear()
        task.after.clear()
        self._end(task, "cancelled")
        self.expiring.discard(task.id)
        return CancelStatus.ENDED, TaskState.CANCELLED

    def _note_children(self, task_id: str) -> None:
        if self.children.get(task_id):
            self.cancelling.append((task_id, 0))

    def cancel_children(self, limit: int) -> CancelledChildren:
        """lua/tasks/cancel_children.lua."""
        done: Counter[CancelStatus] = Counter()
        while limit > 0 and self.cancelling:
            parent, first = self.cancelling.pop()
            ids = self.children.get(parent, [])[first : first + limit]
            if len(ids) == limit:
                self.cancelling.append((parent, first + limit))
            for id_ in ids:
                done[self._cancel(self.tasks.get(id_))[0]] += 1
                self._note_children(id_)
            limit -= max(1, len(ids))
        self._end_joins()
        return CancelledChildren(done[CancelStatus.ENDED], done[CancelStatus.SIGNALLED], bool(self.cancelling))

    def delete(self, ids: Sequence[str]) -> list[tuple[DeleteStatus, TaskState | None]]:
        """lua/tasks/delete.lua."""
        return [self._delete(self.tasks.get(task_id)) for task_id in ids]

    def _delete(self, task: Task | None) -> tuple[DeleteStatus, TaskState | None]:
        if task is None:
            return DeleteStatus.UNKNOWN, None
        if task.deleted:
            return DeleteStatus.DELETED, None
        if task.state not in FINAL:
            return DeleteStatus.REFUSED, TaskState(task.state)
        task.deleted, task.out = True, None
        self.children.pop(task.id, None)
        parents = [self.tasks[one] for one in task.joined]
        waited_for = any(parent.state not in FINAL for parent in parents)
        if self.keys.get(task.row.idem, ("", ""))[0] == task.id and not waited_for:
            del self.keys[task.row.idem]
        return DeleteStatus.DELETED, TaskState(task.state)

    def retry(self, ids: Sequence[str], token: str) -> list[tuple[RequeueStatus, TaskState | None]]:
        """lua/tasks/retry.lua."""
        return [self._retry(self.tasks.get(task_id), token) for task_id in ids]

    def _retry(self, task: Task | None, token: str) -> tuple[RequeueStatus, TaskState | None]:
        if task is None or task.deleted:
            return RequeueStatus.UNKNOWN, None
        state = TaskState(task.state)
        if task.token == token:
            return RequeueStatus.REQUEUED, state
        if task.state == "succeeded":
            return RequeueStatus.REFUSED, state
        if task.state not in FINAL:
            return RequeueStatus.ALREADY, state
        task.was, task.token, task.forgiven = task.gen, token, (task.fails, task.deaths)
        self._raise(task)
        self._tell(task, "requeued")
        task.state, task.score = "ready", task.row.rank + self.now_ms
        open_ = [one for one in task.before if not self.tasks[one].deleted and self.tasks[one].state not in FINAL]
        task.after = set(open_)
        if open_:
            task.state = "awaiting_tasks"
        else:
            self._join(task)
        task.cancel, task.by, task.due, task.original_score, task.left = False, 0, 0, None, ""
        task.blamed, task.group, task.alone, task.snoozes, task.need = 0, None, None, 0, None
        if task.join:
            task.join_until = None
        if not task.answers.get(task.asks):
            task.answers.pop(task.asks, None)
        self.expiring.discard(task.id)
        self.counts["requeued"] += 1
        return RequeueStatus.REQUEUED, state

    def renew(self, name: str, worker: str, rows: Sequence[Delivery]) -> tuple[int, list[LeaseStatus]]:
        """lua/tasks/renew.lua."""
        mine = {entry.id: entry for entry in self.agents[name].inbox if entry.consumer == worker}
        answers = []
        for delivery in rows:
            entry, task = mine.get(delivery.entry), self.tasks[delivery.task_id]
            if entry is None or task.state != "assigned" or task.gen != int(delivery.generation):
                answers.append(LeaseStatus.LOST)
            else:
                entry.aged = False
                answers.append(LeaseStatus.CANCELLED if task.cancel else LeaseStatus.KEPT)
        return len(mine), answers

    def adopt(self, name: str, worker: str, held: Iterable[str], limit: int, *, own: bool) -> list[Entry]:
        """lua/tasks/adopt.lua. Tasks that go back through `scheduled` have due -1 until `learn_due`."""
        agent, held = self.agents[name], set(held)
        stepped_back, gap = self.now_ms < agent.looked, self.now_ms - agent.looked
        search = agent.rest or stepped_back or gap >= LEASE_MS / 5
        if search:
            if stepped_back or gap > LEASE_MS / 3:
                agent.grace = self.now_ms + LEASE_MS
            agent.looked = self.now_ms
        mine = [entry for entry in agent.inbox if entry.consumer == worker]
        for entry in mine:
            entry.aged = entry.aged and entry.id not in held
        lost = [entry for entry in mine if entry.id not in held]
        chosen: list[tuple[Entry, str | None]] = [(entry, None) for entry in lost[:limit]] if own else []
        if search and self.now_ms >= agent.grace:
            expired = [entry for entry in agent.inbox if entry.aged and entry.consumer != worker]
            room = limit - len(chosen)
            chosen += [(entry, entry.consumer) for entry in expired[:room]]
            agent.rest = len(expired) > room or (not own and any(entry.aged for entry in lost))
        # A call counts once what a dead worker ran; entries that it removes are counted until its end.
        crews = {dead: self.crew(agent, dead) for _, dead in chosen if dead}
        taken = [entry for entry, dead in chosen if self._adopt(agent, entry, worker, crews[dead] if dead else None)]
        self.begin(taken)
        self._end_joins()
        self.counts["adopted"] += len(taken)
        return taken

    def _adopt(self, agent: Agent, entry: Entry, worker: str, crew: Crew | None) -> bool:
        task = self.tasks[entry.task]
        goes_on, died = self._take_back(task, crew)
        if not goes_on:
            agent.inbox.remove(entry)
            return False
        if not died:
            self._return_slots(agent, task)
        gen = task.gen
        self._raise(task)
        if (died and task.group is not None) or task.row.budget or self._limit_room(agent, 1)[0] < 1:
            agent.inbox.remove(entry)
            self._go_back(task, died=died)
            if not died:
                self._tell(task, "given_back", gen=gen)
            return False
        if died:
            self._tell(task, "assigned")
        self._take_slots(agent, task)
        entry.consumer, entry.aged, entry.gen = worker, False, task.gen
        entry.attempt, entry.deaths = task.fails + task.deaths + 1, task.deaths
        entry.forgiven, entry.group = task.forgiven[0], (task.group, task.row.depth)
        return True

    def abandon(self, name: str, worker: str, limit: int) -> tuple[int, list[tuple[str, str]]]:
        """lua/tasks/abandon.lua."""
        agent = self.agents[name]
        mine = [entry for entry in agent.inbox if entry.consumer == worker][:limit]
        going_on = []
        crew = self.crew(agent, worker)
        for entry in mine:
            task, gen = self.tasks[entry.task], self.tasks[entry.task].gen
            agent.inbox.remove(entry)
            goes_on, died = self._take_back(task, crew, witnessed=True)
            if goes_on:
                going_on.append((task.id, str(gen)))
                if not died:
                    self._return_slots(agent, task)
                self._raise(task)
                self._go_back(task, died=died)
                if not died:
                    self._tell(task, "given_back", gen=gen)
        self._end_joins()
        self.counts["abandoned"] += len(mine)
        return len(mine), going_on

    def return_unseen(self, name: str, worker: str, held: Iterable[str], limit: int) -> list[str]:
        """lua/tasks/return_unseen.lua, with entries of any age."""
        agent, held = self.agents[name], set(held)
        unseen = [entry for entry in agent.inbox if entry.consumer == worker and entry.id not in held][:limit]
        self.counts["given_back"] += sum([self._recover(agent, entry, None) for entry in unseen])
        self._end_joins()
        return [entry.id for entry in unseen]

    def recover(self, name: str, limit: int, *, every_ms: int) -> tuple[int, bool]:
        """lua/tasks/recover.lua. An aged entry is one that is overdue."""
        agent = self.agents[name]
        seen = max(agent.swept, agent.looked)
        if self.now_ms < agent.swept or self.now_ms - seen > every_ms + LEASE_MS / 3:
            agent.grace = max(agent.grace, self.now_ms + LEASE_MS)
        agent.swept = self.now_ms
        overdue = [entry for entry in agent.inbox if entry.aged][:limit] if self.now_ms >= agent.grace else []
        chosen: list[tuple[Entry, str | None]] = [(entry, entry.consumer) for entry in overdue]
        unread = []
        if sum(entry.consumer is not None for entry in agent.inbox) >= agent.slots:
            unread = [entry for entry in agent.inbox if entry.consumer is None][:limit]
            chosen += [(entry, None) for entry in unread if self._others_could(entry)]
        crews = {dead: self.crew(agent, dead) for _, dead in chosen if dead}
        given_back = sum([self._recover(agent, entry, crews[dead] if dead else None) for entry, dead in chosen])
        self.counts["recovered"] += given_back
        self._end_joins()
        return given_back, limit in {len(overdue), len(unread)}

    def _others_could(self, entry: Entry) -> bool:
        task = self.tasks[entry.task]
        skill = task.row.queue.removeprefix("skill:")
        elsewhere = sum(skill in agent.skills for agent in self.agents.values()) > 1 and skill != task.row.queue
        waited_ms = self.now_ms - int(entry.id.partition("-")[0])
        return (0 < task.by <= self.now_ms) or (waited_ms > 1000 and elsewhere)

    def _recover(self, agent: Agent, entry: Entry, crew: Crew | None) -> bool:
        task = self.tasks[entry.task]
        agent.inbox.remove(entry)
        goes_on, died = self._take_back(task, crew)
        if not goes_on:
            return False
        if not died:
            self._return_slots(agent, task)
        gen = task.gen
        self._raise(task)
        self._go_back(task, died=died)
        if not died:
            self._tell(task, "given_back", gen=gen)
        return True

    def lose_and_repair(self, task_id: str) -> list[str]:
        """The place of a task is lost, and lua/tasks/repair.lua looks at it; the codes that it finds."""
        task = self.tasks[task_id]
        names = {"assigned": "entry", "awaiting_input": "asking", "awaiting_tasks": "following"}
        codes = ["lost-" + names.get(task.state, task.state)]
        if task.state == "ready":
            ranked = task.row.rank + max(task.gen, task.due)
            task.parked = task.suspect = False
            task.need = None
            task.score = ranked if task.original_score is None else task.original_score
        elif task.state == "assigned":
            held = self.entry_of(task_id)
            assert held is not None
            held[0].inbox.remove(held[1])
            if self._take_back(task, None)[0]:
                gen = task.gen
                self._raise(task)
                self._go_back(task, died=False)
                self._tell(task, "given_back", gen=gen)
        self._end_joins()
        self.counts["repaired"] += 1
        return codes

    def watch(self, ids: Sequence[str]) -> list[WatchStatus]:
        """lua/tasks/watch.lua."""
        return [self._watch(self.tasks.get(task_id)) for task_id in ids]

    def _watch(self, task: Task | None) -> WatchStatus:
        if task is None or task.deleted:
            return WatchStatus.UNKNOWN
        if task.state in FINAL:
            return WatchStatus.SILENT if task.out is None else WatchStatus.ENDED
        if task.out is None:
            task.out = []
            self._tell(task, "ready" if task.state == "waiting" else task.state)
        return WatchStatus.LIVE

    def emit(self, rows: Sequence[EmitRow]) -> list[EmitStatus]:
        """lua/tasks/emit.lua."""
        return [self._emit(row) for row in rows]

    def reserve(self, delivery: Delivery, number: int, amount: int) -> str:
        """lua/budgets/reserve.lua: status, or why it is refused."""
        task, gen = self.tasks[delivery.task_id], int(delivery.generation)
        if task.deleted or task.state != "assigned" or task.gen != gen:
            return "stale"
        if not task.row.budget:
            return "none"
        calls = self.fund.holds.get((task.id, gen), {})
        if number in calls:
            return "granted"
        if (task.id, gen, number) in self.fund.settled:
            return "settled"
        drawn = min(calls.get(0, 0), amount)
        if why := self.fund.lacks(amount, drawn=drawn):
            return why
        calls = self.fund.holds.setdefault((task.id, gen), calls)
        calls[number] = amount
        if drawn:
            calls[0] -= drawn
        return "granted"

    def settle(self, delivery: Delivery, number: int, used: int | None) -> str:
        """lua/budgets/settle.lua; None: it is unknown what was used."""
        task, gen = self.tasks[delivery.task_id], int(delivery.generation)
        if task.deleted or task.state != "assigned" or task.gen != gen:
            return "stale"
        if not task.row.budget:
            return "none"
        calls = self.fund.holds.get((task.id, gen), {})
        if number not in calls:
            return "already" if (task.id, gen, number) in self.fund.settled else "unknown"
        taken = calls.pop(number)
        self.fund.spent += taken if used is None else used
        self.fund.settled.add((task.id, gen, number))
        return "settled"

    def set_budget(self, limit: int) -> str:
        """The command `set-budget`."""
        if limit < self.fund.spent:
            return "below"
        self.fund.limit = limit
        return "accepted"

    def sweep(self) -> int:
        """lua/budgets/sweep.lua, of all waiting tasks: how many fit."""
        promised, moved = 0, 0
        for task in self.unfunded():
            assert task.need is not None
            if not self.fund.lacks(task.need, starts=True, more=promised):
                promised, moved, task.need = promised + task.need, moved + 1, None
        return moved

    def effect(self, delivery: Delivery, before: bytes, value: bytes) -> tuple[str, bytes]:
        """lua/tasks/effect.lua."""
        task = self.tasks[delivery.task_id]
        if task.state != "assigned" or task.gen != int(delivery.generation):
            return "stale", b""
        if task.effect != before:
            repeated = task.effect.partition(b" ")[2] == value
            return ("stored", task.effect) if repeated else ("changed", b"")
        task.effect = b"%d %s" % (self.now_ms, value)
        return "stored", task.effect

    def join(
        self, delivery: Delivery, ids: Sequence[str], *, left: int, stop: bool, begins: bool, most: int
    ) -> tuple[str, str, int, int]:
        """lua/tasks/join.lua."""
        me = self.tasks[delivery.task_id]
        if me.state != "assigned" or me.gen != int(delivery.generation):
            return "stale", "", 0, 0
        waiting: dict[str, list[str]] = {}
        failed = False
        for id_ in ids:
            child = self.tasks.get(id_)
            if child is None or child.deleted or child.state in FINAL:
                failed |= child is None or child.deleted or child.state != "succeeded"
                continue
            if self._would_wait_for_itself(me, child):
                return "cycle", id_, 0, 0
            joined = child.joined
            if me.id not in joined:
                joined = [one for one in joined if id_ in self.tasks[one].joins]
                if len(joined) >= most:
                    return "crowded", id_, 0, 0
                joined = [*joined, me.id]
            waiting[id_] = joined
        if begins:
            me.joins.clear()
            me.join = (me.gen, left, stop)
        me.joins |= waiting.keys()
        for id_, joined in waiting.items():
            self.tasks[id_].joined = joined
        self._name_parent(me, set(ids) - waiting.keys(), most)
        if failed:
            self._note_failure(me)
        return "registered", "", len(ids), len([id_ for id_ in ids if id_ in waiting])

    def _name_parent(self, me: Task, ended: set[str], most: int) -> None:
        for task in [self.tasks[id_] for id_ in ended if id_ in self.tasks]:
            if not task.deleted and me.id not in task.joined and len(task.joined) < most:
                task.joined = [*task.joined, me.id]

    def _would_wait_for_itself(self, me: Task, child: Task) -> bool:
        if child.id == me.id:
            return True
        if child.row.parent == me.id and not child.row.lane:
            return False
        found, rest, lanes = {me.id}, [me.id], set[str]()
        while rest:
            task = self.tasks[rest.pop()]
            if task.deleted or task.state in FINAL:
                continue
            more = [task.row.parent, *(one for one in task.joined if task.id in self.tasks[one].joins)]
            more += [one for one in task.followers if task.id in self.tasks[one].after]
            if task.row.lane:
                lanes.add(task.row.lane)
                more += self.lanes.get(task.row.lane, [])
            rest += {one for one in more if one} - found
            found.update(more)
        return child.id in found or (bool(child.row.lane) and child.row.lane in lanes)

    def _note_failure(self, parent: Task) -> None:
        if parent.join is not None and parent.join[2] and (parent.state == "joining" or parent.join[0] == parent.gen):
            parent.join = (parent.join[0], 10_000, True)

    def _tell_followers(self) -> None:
        """At the end of a call: tasks go on, or are cancelled, behind those that have ended."""
        while self.followed:
            id_, state = self.followed.pop(0)
            for follower in [self.tasks[one] for one in self.tasks[id_].followers]:
                if id_ not in follower.after:
                    continue
                if state != "succeeded" and not follower.before[id_]:
                    self._end(follower, "cancelled")
                    self.expiring.discard(follower.id)
                    follower.after.clear()
                    continue
                follower.after.discard(id_)
                if not follower.after:
                    self._release(follower)

    def _release(self, task: Task) -> None:
        task.due = max(self.now_ms, self._due(task.row))
        if task.due > self.now_ms:
            task.state = "scheduled"
            return
        task.state, task.score = "ready", task.row.rank + self.now_ms
        self._join(task)
        if task.state == "ready":
            self.turns.add(task.id)

    def _end_joins(self) -> None:
        """At the end of a call: parents whose joins are met are ready."""
        self._tell_followers()
        leaving, self.leaving = self.leaving, []
        for parent_id in dict.fromkeys(parent_id for parent_id, _, _ in leaving):
            parent = self.tasks[parent_id]
            gone = {id_: failed for one, id_, failed in leaving if one == parent_id and id_ in parent.joins}
            parent.joins -= gone.keys()
            if not gone:
                continue
            failed = any(gone.values())
            if parent.deleted or parent.state not in {"joining", "assigned"}:
                continue
            if failed:
                self._note_failure(parent)
            if parent.state == "joining" and (parent.join is None or len(parent.joins) <= parent.join[1]):
                self._end_join(parent, "joined")

    def _end_join(self, parent: Task, told: str) -> None:
        assert parent.original_score is not None
        parent.state, parent.score = "ready", parent.original_score
        parent.joins.clear()
        self.counts[told] += 1
        self._tell(parent, told)
        self.turns.add(parent.id)

    def _emit(self, row: EmitRow) -> EmitStatus:
        task, gen = self.tasks[row.id], int(row.generation)
        if task.state != "assigned" or task.gen != gen:
            return EmitStatus.STALE
        if task.emitted[0] == gen and row.seq <= task.emitted[1]:
            return EmitStatus.OK
        task.out = task.out or []
        if row.kind == "progress":
            if task.out and task.out[-1][:2] == ("progress", gen):
                task.out.pop()
            task.progress = f"{gen} {row.data.decode()}"
        task.out.append((row.kind, gen, row.attempt))
        task.emitted = (gen, row.seq)
        return EmitStatus.OK

    def learn_due(self, task_id: str, due: int) -> None:
        """Tell when a task comes back that died alone more than once."""
        task = self.tasks[task_id]
        assert 0 <= due - self.now_ms <= 1000 * 2 ** (task.blamed - 2)
        task.due = due

    def change_skills(self, name: str, skills: frozenset[str]) -> None:
        """All workers of an agent leave and come back with other skills: `assign` examines what was parked."""
        self.agents[name].skills = skills
        self.agents[name].unparking |= bool(self.parked(name))

    # Shared steps -----------------------------------------------------------------------------------------------------

    @staticmethod
    def _recent(task: Task) -> int:
        """Deaths that count."""
        return task.deaths - task.forgiven[1]

    def _raise(self, task: Task) -> None:
        task.gen = max(task.gen + 1, self.now_ms)

    def _tell(self, task: Task, kind: str, *, gen: int = 0, counted: bool = False) -> None:
        """Note a step; `counted`: its attempt is among the failures and deaths already."""
        if task.out is not None:
            task.out.append((kind, gen or task.gen, task.fails + task.deaths + (not counted)))

    def _end(self, task: Task, state: str, *, counted: bool = False) -> None:
        assert task.state not in FINAL
        self._tell(task, state, counted=counted)
        task.state, task.parked, task.suspect = state, False, False
        self.counts[state] += 1
        self.ends.append((task.id, state[0]))
        task.after.clear()
        if task.followers:
            self.followed.append((task.id, state))
        # Joins lose the tasks of a call at its end.
        self.leaving += [(parent, task.id, state != "succeeded") for parent in task.joined]
        if task.id in self.lanes.get(task.row.lane, []):
            self._pass_lane(task)

    def _pass_lane(self, task: Task) -> None:
        members = self.lanes[task.row.lane]
        had_turn = members[0] == task.id
        members.remove(task.id)
        if not members:
            del self.lanes[task.row.lane]
        elif had_turn:
            heir = self.tasks[members[0]]
            heir.state, heir.score = "ready", heir.row.rank + self.now_ms
            self.turns.add(heir.id)

    def crew(self, agent: Agent, worker: str) -> Crew:
        """Count what a dead worker ran, unless its death was counted less than a minute ago."""
        mine = [self.tasks[entry.task] for entry in agent.inbox if entry.consumer == worker]
        since_ms, entries, stored = self.crews.get(worker, (-math.inf, 0, None))
        if stored is not None and self.now_ms - since_ms < CREW_MS and len(mine) <= entries:
            return stored
        ran = [task for task in mine if not task.deaths or task.begun == task.gen]
        fresh = [task for task in ran if not self._recent(task)]
        limited = [task.row.depth for task in ran if self._recent(task) and task.group is not None]
        deepest = max(limited, default=0)
        prior = len(ran) - len(fresh) - len(limited)
        crew = Crew(len(fresh), prior, len(limited), deepest, limited.count(deepest))
        if mine:
            self.crews[worker] = (self.now_ms, len(mine), crew)
        return crew

    def _judge_death(self, task: Task, crew: Crew) -> None:
        """Blame a task that is the only suspect; else limit it to a quarter of the suspects of its worker."""
        recent, allowed = self._recent(task), MAX_DEATHS
        if task.group is not None:
            only = crew.at_deepest == 1 and task.row.depth == crew.deepest
            suspects = 1 if only else crew.limited
        elif recent > 1:
            suspects = crew.limited + crew.prior
        else:
            suspects = 0 if crew.limited + crew.prior else crew.fresh
        if suspects == 1:
            alone = task.group == 0 or crew.fresh + crew.prior + crew.limited == 1
            if alone or task.blamed < allowed - 1:
                task.blamed += 1
            if task.blamed >= allowed - 1:
                task.group = 0
            elif recent > 1:
                task.group = 1
        elif suspects and (recent > 1 or suspects == 2):
            quarter = max(1, suspects // 4)
            task.group = quarter if task.group is None else min(task.group, quarter)

    def _take_back(self, task: Task, crew: Crew | None, *, witnessed: bool = False) -> tuple[bool, bool]:
        """Take a task from its worker; whether it goes on, and whether this was a death of it."""
        died = crew is not None and (not task.deaths or task.begun == task.gen)
        self.fund.book(task, died=died)
        if crew is not None:
            task.by = 0
        if crew is not None and died:
            task.deaths += 1
            task.ran.append("died")
            # One lost host tells nothing, two in a row do.
            if witnessed or (self._recent(task) > 1 and not task.witnessed):
                self._judge_death(task, crew)
            task.witnessed, task.alone = witnessed, None
        if task.cancel:
            self._end(task, "cancelled", counted=died)
        elif died and task.blamed >= MAX_DEATHS:
            self.buried += 1
            self._end(task, "dead", counted=True)
        elif task.by and task.by <= self.now_ms:
            self._end(task, "expired", counted=died)
        else:
            if died:
                self._tell(task, "taken_back", counted=True)
            return True, died
        return False, died

    def _go_back(self, task: Task, *, died: bool) -> None:
        scheduled = died and task.blamed >= 2
        task.state = "scheduled" if scheduled else "ready"
        if scheduled:
            task.due, task.left = -1, "death"
        if task.by:
            self.expiring.add(task.id)

    def _limit_room(self, agent: Agent, want: int) -> tuple[int, int]:
        room, next_free = want, 0
        for name in agent.limits:
            limit = self.limits[name]
            inside = limit.inside(self.now_us)
            free = limit.count - len(inside)
            if free <= 0:
                next_free = max(next_free, inside[-free][0] + limit.window_us)
            room = min(room, max(0, free))
            blocked_us = self.blocked_ms.get(name, 0) * 1000
            if blocked_us // 1000 > self.now_us // 1000:
                room, next_free = 0, max(next_free, blocked_us)
        return room, next_free

    def block(self, limit: str, for_ms: int) -> int:
        """A provider tells to wait; a shorter pause shortens nothing. Return the end in ms."""
        self.blocked_ms[limit] = max(self.blocked_ms.get(limit, 0), self.now_us // 1000 + for_ms)
        return self.blocked_ms[limit]

    def _take_slots(self, agent: Agent, task: Task) -> None:
        for name in agent.limits:
            limit = self.limits[name]
            us = limit.clock(self.now_us)
            limit.grants = [*limit.inside(self.now_us), (us, f"{task.id}:{task.gen}")]
            limit.last_us = us
            self.history.setdefault(name, []).append(us)

    def _return_slots(self, agent: Agent, task: Task) -> None:
        for name in agent.limits:
            limit = self.limits[name]
            for grant in [grant for grant in limit.grants if grant[1] == f"{task.id}:{task.gen}"]:
                limit.grants.remove(grant)
                self.history[name].remove(grant[0])
