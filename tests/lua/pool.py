"""A pool for script tests: short calls with the wrappers behind them, a clock that a test moves, reads of the truth."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

from orchestrator.agents import scripts as agent_scripts
from orchestrator.agents.model import AgentSpec
from orchestrator.budgets import scripts as budget_scripts
from orchestrator.control import scripts as control_scripts
from orchestrator.control.commands import SetBudget, SetLimit, encode_command
from orchestrator.control.signing import Signer
from orchestrator.core.amounts import Amounts, parse_amounts
from orchestrator.core.command_record import VERSION, Issued, pack_issued
from orchestrator.core.ids import encode_foreign, new_task_id
from orchestrator.core.rates import parse_rate
from orchestrator.core.reading import read_text
from orchestrator.limits import scripts as limit_scripts
from orchestrator.store.calls import opaque
from orchestrator.store.keys import PoolKeys
from orchestrator.store.store import Endpoint, SyncStore
from orchestrator.tasks import model as task_model
from orchestrator.tasks import scripts as task_scripts
from orchestrator.tasks.inbox import GROUP, parse_entries
from orchestrator.tasks.model import (
    CancelStatus,
    DeleteStatus,
    Delivery,
    Dispatched,
    EmitStatus,
    Envelope,
    FinishStatus,
    LeaseStatus,
    Promoted,
    RequeueStatus,
    TaskState,
    Verdict,
    VerdictKind,
    WatchStatus,
    encode_envelope,
)
from orchestrator.tasks.questions import StoredQuestion, pack_question
from orchestrator.why import scripts
from tests.lua.keyspace import clear, names, snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import msgspec

    from orchestrator.agents.model import SkillTerms, SkillVersion
    from orchestrator.control.commands import Command
    from orchestrator.core.rates import Rate
    from orchestrator.store.calls import Argument, Call
    from orchestrator.why.facts import Findings

T = TypeVar("T")

START_US = 1_800_000_000_000_000
"""Where the clock of every test begins: far from now, so that a script which asks the server's clock is found out."""

STRICT_MS = 10**13
DEAD_TTL_S = 2_000_000
MAX_WAIT_S = 1_209_600
LEASE_MS = 15_000


def rank(priority: int, aging_ms: int = STRICT_MS) -> int:
    """What a priority adds to the time in a queue's score."""
    return priority * aging_ms


def envelope(skill: str = "sum", args: bytes = b'{"text":"abc"}') -> bytes:
    """A packed envelope."""
    return encode_envelope(Envelope(skill, args))


USUAL_TTL_S = 3600
USUAL_ENVELOPE = opaque(envelope())


@dataclass(frozen=True)
class Row:
    """A task to submit, with all that is usual in it."""

    id: str
    queue: str = "skill:sum"
    rank: int = rank(2)
    delay_ms: int = 0
    at_ms: int = 0
    start_by_ms: int = 0
    ttl_s: int = 7200
    idem: str = ""
    digest: str = ""
    envelope: msgspec.Raw = field(default_factory=lambda: USUAL_ENVELOPE)
    parent: str = ""
    parent_generation: str = ""
    skill: str = ""
    lane: str = ""
    on_busy: str = ""
    depth: int = 0
    session: str = ""
    tags: tuple[str, ...] = ()
    fair: str = ""
    budget: str = ""
    after: tuple[int, ...] | None = None

    def sent(self) -> task_scripts.SubmitRow:
        """The row as a client sends it: without what is usual."""
        usual_queue = self.queue == "skill:sum" and self.envelope is USUAL_ENVELOPE
        unusual: dict[str, Any] = {
            "rank": None if self.rank == rank(2) else self.rank,
            "ttl_s": None if self.ttl_s == USUAL_TTL_S else self.ttl_s,
            "queue": None if usual_queue else self.queue,
            "skill": self.skill or None,
            "delay_ms": self.delay_ms or None,
            "at_ms": self.at_ms or None,
            "start_by_ms": self.start_by_ms or None,
            "idem": self.idem or None,
            "digest": self.digest or None,
            "parent": self.parent or None,
            "parent_generation": self.parent_generation or None,
            "lane": self.lane or None,
            "on_busy": self.on_busy or None,
            "session": self.session or None,
            "tags": self.tags or None,
            "fair": self.fair or None,
            "budget": self.budget or None,
            "after": self.after,
        }
        if set(unusual.values()) == {None}:
            return task_scripts.SubmitRow(self.id, self.envelope)
        return task_scripts.UnusualRow(self.id, self.envelope, **unusual)


def row(task_id: str | None = None, *, priority: int = 2, reply: str = "", **fields: Any) -> Row:
    """A plain task for skill `sum`, changed by keyword; `reply` is the client that listens for its end.

    It is none of those that count for 16 in the bytes of its queue, so that equal tasks cost as many commands.
    """
    id_ = task_id or next(filter(lambda id_: id_[20] != "0", iter(new_task_id, "")))
    depth, tags = fields.get("depth", 0), fields.get("tags", ())
    if (depth or tags) and "envelope" not in fields:
        fields["envelope"] = opaque(encode_envelope(Envelope("sum", b"{}", tags=tags, depth=depth)))
    return Row(id_[:24] + node(reply) if reply else id_, **{"rank": rank(priority), **fields})


def counted_id() -> str:
    """An id whose task counts for 16 in the bytes of its queue."""
    return next(filter(lambda id_: id_[20] == "0", iter(new_task_id, "")))


def tagged(*tags: str, **fields: Any) -> Row:
    """A task with tags, as a client submits it."""
    envelope = encode_envelope(Envelope("sum", b"{}", session="s 1", tags=tags))
    encoded = tuple(encode_foreign("tag", tag) for tag in tags)
    return row(envelope=opaque(envelope), tags=encoded, **fields)


def seq(changes: int) -> bytes:
    """The number of the desired state after so many changes at the start of the clock."""
    return str(START_US // 1000 + changes - 1).encode()


def node(client: str) -> str:
    """The last group of the ids that a client makes which tests call by a name."""
    return f"8{crc32(client.encode()):011x}"


def chunk(delivery: Delivery, seq: int, data: bytes = b"1", *, kind: str = "output") -> task_scripts.EmitRow:
    """One row for emit; of output, the number of the chunk is that of the row."""
    number = seq if kind == "output" else 0
    return task_scripts.EmitRow(delivery.task_id, delivery.generation, delivery.attempt, seq, kind, number, data)


@dataclass(frozen=True)
class Assigned:
    """What one assign call says of one agent: tasks that it got, whether it can get more, and when a limit opens."""

    count: int
    left: bool
    wait_us: int


@dataclass(frozen=True)
class Team:
    """What `Pool.register` needs to know of an agent."""

    agent: str = "ed"
    skills: frozenset[str] = frozenset({"sum"})
    rate: Rate | None = None
    limits: tuple[str, ...] = ()
    known_limits: tuple[tuple[str, Rate], ...] = ()
    terms: tuple[tuple[str, SkillTerms], ...] = ()
    version: SkillVersion | None = None
    """Of the skill `sum`."""
    lease_ms: int = LEASE_MS
    redacted: frozenset[str] = frozenset()
    funds: tuple[tuple[str, tuple[Amounts, tuple[str, ...]]], ...] = ()
    """By skill, what a start reserves, and the budgets of the agent."""

    def spec(self) -> AgentSpec:
        """The value that registration takes."""
        return AgentSpec(
            self.agent,
            self.skills,
            rate=self.rate,
            limits=self.limits,
            known_limits=dict(self.known_limits),
            lease_ms=self.lease_ms,
            terms=dict(self.terms),
            versions={"sum": self.version} if self.version else {},
            redacted=self.redacted,
            funds=dict(self.funds),
        )


class Pool:
    """One namespace on one server. `now_us` is the time that every call is given; None asks the server."""

    def __init__(self, url: str, prefix: str) -> None:
        self.url = url
        self.keys = PoolKeys(prefix, "p")
        self.store = SyncStore(Endpoint.at(url), self.keys, name="test")
        self.link = self.store._router
        self.now_us: int | None = START_US
        self.dead: list[task_scripts.DeadByDeaths] = []
        """Tasks that calls of abandon, adopt and recover named as dead letters."""

    def start_afresh(self) -> None:
        """Check the lifetimes of the pool's keys, remove them and set the clock back."""
        clear(self.link, self.keys.root)
        self.now_us = START_US
        self.dead = []

    @property
    def now_ms(self) -> int:
        """The pool's time in milliseconds."""
        assert self.now_us is not None
        return self.now_us // 1000

    def sleep(self, ms: float) -> None:
        """Move the clock; a negative time sets it back."""
        assert self.now_us is not None
        self.now_us += int(ms * 1000)

    def set_server_time(self) -> None:
        """Set the clock to that of the server, from which entries have their ids."""
        seconds, us = self.execute("TIME")
        self.now_us = int(seconds) * 1_000_000 + int(us)

    def call(self, call: Call[T]) -> T:
        """Run a script call under the pool's clock."""
        if self.now_us is not None and "now_arg" in call.args:
            call = replace(call, args={**call.args, "now_arg": str(self.now_us)})
        return self.store.call(call)

    # Scripts ----------------------------------------------------------------------------------------------------------

    def submit(
        self,
        *rows: Row,
        max_tasks: int = 10**6,
        max_wait_s: int = MAX_WAIT_S,
        caps: task_scripts.SubmitCaps = task_scripts.NO_CAPS,
    ) -> list[tuple[str, str]]:
        """Submit rows; pairs of status and detail."""
        sent = [each.sent() for each in rows]
        call = task_scripts.submit(self.keys, rows=sent, max_tasks=max_tasks, max_wait_s=max_wait_s, caps=caps)
        return [(answer.status, answer.detail) for answer in self.call(call)]

    def put(self, *rows: Row, **options: Any) -> list[str]:
        """Submit rows that must be accepted; their ids."""
        rows = rows or (row(),)
        assert {status for status, _ in self.submit(*rows, **options)} == {"created"}
        return [each.id for each in rows]

    def promote(self, limit: int = 500) -> Promoted:
        """Run promote."""
        return self.call(task_scripts.promote(self.keys, limit=limit))

    def assign(self, agent: str = "ed", limit: int = 500) -> Assigned:
        """Run assign once, for one agent."""
        done = self.assign_to(agent, limit=limit)
        return Assigned(done.count, left=agent in done.left, wait_us=done.waits_us.get(agent, 0))

    def assign_to(self, *agents: str, limit: int = 500) -> task_model.Assigned:
        """Run assign once, for some agents."""
        return self.call(task_scripts.assign(self.keys, agents=agents, limit=limit))

    def dispatch(self, skill: str = "sum", limit: int = 500, *, without: int = 0) -> Dispatched:
        """Run dispatch once."""
        return self.call(task_scripts.dispatch(self.keys, skill=skill, limit=limit, without=without))

    def dispatch_all(self, skill: str = "sum", limit: int = 500) -> int:
        """Run dispatch until nothing is left for it; the number of calls."""
        done, calls = self.dispatch(skill, limit), 1
        while done.left:
            done, calls = self.dispatch(skill, limit, without=done.without), calls + 1
            assert calls < 1000
        return calls

    def relist(self, *agents: str) -> list[str]:
        """Run relist."""
        return self.call(agent_scripts.relist(self.keys, agents=agents))

    def finish(self, *rows: tuple[Delivery, Verdict], worker: str = "w1") -> list[FinishStatus]:
        """Run finish."""
        return self.call(
            task_scripts.finish(self.keys, rows=rows, worker=worker, dead_ttl_s=DEAD_TTL_S, max_wait_s=MAX_WAIT_S)
        ).statuses

    def end(self, delivery: Delivery, kind: VerdictKind = VerdictKind.SUCCEEDED, **fields: Any) -> FinishStatus:
        """Finish one attempt."""
        return self.finish((delivery, Verdict(kind, **fields)))[0]

    def refuse(self, delivery: Delivery, version: SkillVersion, *names: str) -> FinishStatus:
        """Finish one attempt whose arguments, which have these names, a version of the skill refused."""
        return self.end(
            delivery, VerdictKind.INVALID, payload=b"E", reason="do not fit", version=version.digest, names=names
        )

    def ask(
        self,
        delivery: Delivery,
        number: int = 1,
        question: str = "Really?",
        *,
        options: Iterable[str] = (),
        delay_ms: int = 0,
        at_ms: int = 0,
    ) -> FinishStatus:
        """End one attempt with a question; options are JSON."""
        packed = pack_question(StoredQuestion(question, tuple(options)))
        return self.end(delivery, VerdictKind.ASK, payload=packed, number=number, delay_ms=delay_ms, at_ms=at_ms)

    def join(
        self,
        delivery: Delivery,
        ids: Sequence[str],
        *,
        number: int = 1,
        left: int = 0,
        stop: bool = False,
        part: task_scripts.JoinPart = "first",
        keep_s: int = MAX_WAIT_S,
        most: int = 50,
    ) -> task_scripts.JoinReply:
        """Run join."""
        call = task_scripts.join(
            self.keys,
            id_=delivery.task_id,
            generation=delivery.generation,
            ids=ids,
            part=part,
            terms=task_scripts.JoinTerms(number, left, stop),
            keep_s=keep_s,
            most=most,
        )
        return self.call(call)

    def met(self, delivery: Delivery, how: str, *, number: int = 1) -> task_scripts.JoinReply:
        """Store how a join was met."""
        call = task_scripts.join(
            self.keys,
            id_=delivery.task_id,
            generation=delivery.generation,
            ids=(),
            part="more",
            terms=task_scripts.JoinTerms(number, 0, stop=False),
            keep_s=0,
            most=0,
            met=how,
        )
        return self.call(call)

    def begin_to_join(self, delivery: Delivery, number: int = 1, *, delay_ms: int = 0, at_ms: int = 0) -> FinishStatus:
        """End one attempt with a join."""
        return self.end(delivery, VerdictKind.JOIN, number=number, delay_ms=delay_ms, at_ms=at_ms)

    def wake(self, task_id: str) -> bool:
        """Run wake."""
        return self.call(task_scripts.wake(self.keys, task_id))

    def answer(
        self, task_id: str, value: str = "true", *, number: int = 1, actor: str = "ada", grant: str = ""
    ) -> task_scripts.Answered:
        """Run answer; the value is JSON."""
        call = task_scripts.answer(
            self.keys, id_=task_id, number=number, value=value, actor=actor, max_wait_s=MAX_WAIT_S, grant=grant
        )
        return self.call(call)

    def set_budget(self, name: str = "b", **changes: Any) -> control_scripts.AppendReply:
        """Give the command that sets a budget."""
        return self.append(SetBudget(budget=name, **changes))[0]

    def budget(self, name: str = "b") -> dict[str, tuple[int | None, ...]]:
        """Limit, spent and held of a budget."""
        fields = ("limit", "spent", "held")
        stored = self.execute("HMGET", self.keys.budget(name), *fields)
        return {
            field: tuple(None if word == "-" else int(word) for word in read_text(text).split())
            for field, text in zip(fields, stored, strict=True)
        }

    def reserve(
        self, delivery: Delivery, number: int = 1, *, last: bool = False, **amounts: float
    ) -> budget_scripts.Reserved:
        """Run reserve."""
        call = budget_scripts.reserve(
            self.keys,
            id_=delivery.task_id,
            generation=delivery.generation,
            number=number,
            amounts=parse_amounts(amounts),
            last=last,
        )
        return self.call(call)

    def settle(self, delivery: Delivery, number: int = 1, *, lost: bool = False, **amounts: float) -> str:
        """Run settle."""
        call = budget_scripts.settle(
            self.keys,
            id_=delivery.task_id,
            generation=delivery.generation,
            number=number,
            amounts=None if lost else parse_amounts(amounts),
        )
        return self.call(call).status

    def sweep(
        self,
        name: str = "b",
        first: int = 0,
        limit: int = 100,
        *,
        anew: bool = False,
        behind: str = "",
        cursor: str = "0",
        taken: str = "",
    ) -> budget_scripts.Swept:
        """Run sweep once."""
        call = budget_scripts.sweep(
            self.keys, name=name, first=first, limit=limit, anew=anew, behind=behind, cursor=cursor, taken=taken
        )
        return self.call(call)

    def sweep_all(self, name: str = "b", limit: int = 100, *, anew: bool = False) -> int:
        """Run sweep until nothing is left; the number of tasks that it moved."""
        moved, first, behind, cursor, taken, left, calls = 0, 0, "", "0", "", True, 0
        while left:
            done = self.sweep(name, first, limit, anew=anew, behind=behind, cursor=cursor, taken=taken)
            moved, first, behind, cursor = moved + done.moved, done.next_first, done.next_behind, done.next_cursor
            taken, left, calls = done.next_taken, done.left, calls + 1
            assert calls < 1000
        return moved

    def effect(
        self,
        delivery: Delivery,
        name: str = "pay",
        *,
        before: bytes = b"",
        value: bytes = b"{}",
        most: int = 500,
        told: str = "",
    ) -> tuple[str, bytes]:
        """Run effect."""
        call = task_scripts.effect(
            self.keys,
            id_=delivery.task_id,
            generation=delivery.generation,
            name=name,
            before=before,
            value=value,
            most=most,
            told=told,
        )
        return self.call(call)

    def block(self, limit: str, for_ms: int) -> int:
        """Run limits/block: the provider is throttled."""
        call = limit_scripts.block(self.keys, name=limit, state="throttled", told=b"x", for_ms=for_ms)
        return self.call(call).until_ms

    def once(self, delivery: Delivery, name: str = "pay", value: bytes = b"1") -> tuple[str, bytes]:
        """Run once."""
        call = task_scripts.once(
            self.keys, id_=delivery.task_id, generation=delivery.generation, name=name, value=value
        )
        return self.call(call)

    def emit(self, *rows: task_scripts.EmitRow, max_chunks: int = 1000) -> list[EmitStatus]:
        """Run emit."""
        return self.call(task_scripts.emit(self.keys, rows=rows, max_chunks=max_chunks))

    def watch(self, *ids: str) -> list[tuple[WatchStatus, str]]:
        """Run watch."""
        return self.call(task_scripts.watch(self.keys, ids=ids))

    def why(self, task_id: str, limit: int = 100) -> Findings | None:
        """Run why."""
        return self.call(scripts.why(self.keys, id_=task_id, limit=limit))

    def cancel(
        self, *ids: str, reason: str = "because", only_this: bool = False
    ) -> list[tuple[CancelStatus, TaskState | None]]:
        """Run cancel, and nothing for the children."""
        return self.call(task_scripts.cancel(self.keys, ids=ids, reason=reason, only_this=only_this)).answers

    def cancel_children(self, limit: int = 100) -> task_scripts.CancelledChildren:
        """Run cancel_children once."""
        return self.call(task_scripts.cancel_children(self.keys, limit=limit))

    def delete(self, *ids: str) -> list[tuple[DeleteStatus, TaskState | None]]:
        """Run delete."""
        return self.call(task_scripts.delete(self.keys, ids=ids))

    def retry(
        self, *ids: str, token: str = "t1", said: str = "ann: fixed", max_wait_s: int = MAX_WAIT_S
    ) -> list[tuple[RequeueStatus, TaskState | None]]:
        """Run retry."""
        call = task_scripts.retry(self.keys, ids=ids, token=token, said=said, max_wait_s=max_wait_s)
        return self.call(call)

    def begin(self, *deliveries: Delivery) -> list[LeaseStatus]:
        """Run begin."""
        return self.call(task_scripts.begin(self.keys, rows=[(one.task_id, one.generation) for one in deliveries]))

    def renew(self, rows: Iterable[Delivery], worker: str = "w1", agent: str = "ed") -> tuple[int, list[LeaseStatus]]:
        """Run renew."""
        triples = [(d.entry, d.task_id, d.generation) for d in rows]
        return self.call(task_scripts.renew(self.keys, worker=worker, agent=agent, rows=triples))

    def adopt(
        self,
        worker: str = "w1",
        *,
        agent: str = "ed",
        lease_ms: int = LEASE_MS,
        held: Iterable[str] = (),
        limit: int = 100,
        own: bool = False,
        max_deaths: Mapping[str, int] | None = None,
        begin: bool = True,
    ) -> list[Delivery]:
        """Run adopt; what has a death behind it begins at once, unless `begin` is False."""
        found = self.call(
            task_scripts.adopt(
                self.keys,
                worker=worker,
                agent=agent,
                lease_ms=lease_ms,
                held=held,
                limit=limit,
                own=own,
                max_deaths=max_deaths or {},
                dead_ttl_s=DEAD_TTL_S,
            )
        )
        self.dead += found.dead
        self._begin_those_with_deaths(found.deliveries if begin else [])
        return found.deliveries

    def lend(self, worker: str, *waits: tuple[Delivery, str], **counts: str) -> task_scripts.LendReply:
        """Run lend for attempts and the ids that each waits for; by agent, the slots that are lent."""
        rows = [task_scripts.WaitRow(held.task_id, held.generation, awaited, awaited) for held, awaited in waits]
        agents = [task_scripts.LentRow(agent, lent) for agent, lent in counts.items()]
        return self.call(task_scripts.lend(self.keys, worker=worker, rows=rows, agents=agents))

    def take_suspects(
        self,
        worker: str = "w1",
        *running: tuple[int, int],
        agent: str = "ed",
        limit: int = 100,
        idle: bool = False,
        begin: bool = True,
    ) -> list[Delivery]:
        """Run take_suspects; what it takes begins at once, unless `begin` is False."""
        taken = self.call(
            task_scripts.take_suspects(self.keys, worker=worker, agent=agent, limit=limit, running=running, idle=idle)
        ).deliveries
        self._begin_those_with_deaths(taken if begin else [])
        return taken

    def _begin_those_with_deaths(self, deliveries: list[Delivery]) -> None:
        if died := [one for one in deliveries if one.deaths]:
            self.begin(*died)

    def abandon(
        self, worker: str, *, agent: str = "ed", limit: int = 500, max_deaths: Mapping[str, int] | None = None
    ) -> tuple[int, list[tuple[str, str]]]:
        """Run abandon."""
        done = self.call(
            task_scripts.abandon(
                self.keys,
                worker=worker,
                agent=agent,
                limit=limit,
                max_deaths=max_deaths or {},
                reason="killed",
                dead_ttl_s=DEAD_TTL_S,
            )
        )
        self.dead += done.dead
        return done.removed, done.died

    def return_unseen(
        self, worker: str, *, held: Iterable[str] = (), idle_ms: int = 0, agent: str = "ed", limit: int = 500
    ) -> list[str]:
        """Run return_unseen."""
        return self.call(
            task_scripts.return_unseen(self.keys, worker=worker, agent=agent, held=held, idle_ms=idle_ms, limit=limit)
        )

    def recover(
        self,
        agent: str = "ed",
        *,
        limit: int = 500,
        every_ms: int = 5000,
        heartbeat_ms: int = 5000,
        clean: bool = False,
    ) -> tuple[int, bool]:
        """Run recover; returns how many entries it requeued, and whether there may be more."""
        done = self.call(
            task_scripts.recover(
                self.keys,
                agent=agent,
                limit=limit,
                every_ms=every_ms,
                heartbeat_ms=heartbeat_ms,
                dead_ttl_s=DEAD_TTL_S,
                clean=clean,
            )
        )
        self.dead += done.dead
        return done.requeued, done.left

    def repair(self, *rows: str | tuple[str, str], repair: bool = True) -> list[tuple[str, str]]:
        """Run repair for records, or for (id, place); what was found, as (id or place, code)."""
        pairs = [(each, "") if isinstance(each, str) else each for each in rows]
        call = task_scripts.repair(
            self.keys,
            rows=[(id_.encode(), place.encode()) for id_, place in pairs],
            repair=repair,
            max_wait_s=MAX_WAIT_S,
            dead_ttl_s=DEAD_TTL_S,
        )
        judged = self.call(call)
        assert judged.rows == len(pairs)
        return [(pairs[row][0] or pairs[row][1], code) for row, code, _ in judged.found]

    def check_inbox(
        self, agent: str = "ed", after: str = "0-0", *, limit: int = 50, repair: bool = True
    ) -> list[tuple[str, str]]:
        """Run check_inbox to the end of an inbox; what was found, as (entry, code)."""
        found = []
        while True:
            checked = self.call(
                task_scripts.check_inbox(self.keys, agent=agent, after=after, limit=limit, repair=repair)
            )
            found += [(entry, code) for entry, code, _ in checked.found]
            if not checked.after:
                return found
            after = checked.after

    def check_keys(
        self, *rows: tuple[str, str, int], repair: bool = True, guards: bool = False
    ) -> list[tuple[str, str]]:
        """Run check_keys; what was found, as (suffix of the key, code)."""
        packed = [(suffix.encode(), type_, keep_s, guards) for suffix, type_, keep_s in rows]
        found = self.call(task_scripts.check_keys(self.keys, rows=packed, repair=repair))
        return [(rows[row][0], code) for row, code, _ in found]

    def repair_registry(self, *rows: tuple[str, str], repair: bool = True) -> list[tuple[str, str]]:
        """Run repair of the registry; what was found, as (name, code)."""
        found = self.call(agent_scripts.repair(self.keys, rows=rows, repair=repair))
        return [(rows[row][1], code) for row, code, _ in found]

    def register(
        self, worker: str = "w1", team: Team | None = None, *, slots: int = 10, backlog: int = 0, alive_s: int = 20
    ) -> None:
        """Run register."""
        spec = (team or Team()).spec()
        about: dict[str, str | int] = {"host": "h", "pid": 1}
        self.call(
            agent_scripts.register(
                self.keys, worker=worker, spec=spec, slots=slots, backlog=backlog, about=about, alive_s=alive_s
            )
        )

    def glance(self, *others: str, worker: str = "w1", limits: Iterable[str] = ()) -> agent_scripts.HeartbeatReply:
        """Run heartbeat for agents whose registrations are not checked in full."""
        return self.call(
            agent_scripts.heartbeat(
                self.keys, worker=worker, backlogs=[], others=others, limits=list(limits), alive_s=20
            )
        )

    def heartbeat(self, worker: str = "w1", *backlogs: tuple[str, int], alive_s: int = 20) -> bool:
        """Run heartbeat."""
        return self.call(
            agent_scripts.heartbeat(self.keys, worker=worker, backlogs=backlogs or [("ed", 0)], alive_s=alive_s)
        ).complete

    def count(self, *rows: tuple[str, str, list[int]], worker: str = "w1", batch: int = 1) -> bool:
        """Run count."""
        return self.call(agent_scripts.count(self.keys, worker=worker, batch=batch, rows=rows)).known

    def describe(self, *rows: tuple[str, str, bytes], redact: bool = False) -> bool:
        """Run describe."""
        return self.call(agent_scripts.describe(self.keys, rows=[(*row, redact) for row in rows]))

    def deregister(self, worker: str = "w1") -> None:
        """Run deregister."""
        self.call(agent_scripts.deregister(self.keys, worker=worker))

    def refuse_worker(self, worker: str = "w1") -> bool:
        """Run refuse."""
        return self.call(agent_scripts.refuse(self.keys, worker=worker))

    def expire(self, *, alive_s: int = 20, limit: int = 500) -> list[str]:
        """Run expire."""
        return self.call(agent_scripts.expire(self.keys, alive_s=alive_s, limit=limit))

    def append(
        self,
        command: Command,
        *,
        id_: str | None = None,
        token: str = "t",
        issued_ms: int | None = None,
        valid_ms: int = 60_000,
        epoch: int = 0,
        per_minute: int = 1000,
        secret: str = "",
    ) -> tuple[control_scripts.AppendReply, Issued]:
        """Run append for a command that is issued now, signed if there is a secret."""
        since_ms = self.now_ms if issued_ms is None else issued_ms
        made = encode_command(command)
        issued = Issued(VERSION, id_ or new_task_id(), made, "ann@desk", "why", since_ms, since_ms + valid_ms, epoch)
        packed = pack_issued(issued)
        rate = parse_rate(command.rate) if isinstance(command, SetLimit) else None
        budget = command.definition if isinstance(command, SetBudget) else None
        call = control_scripts.append(
            self.keys,
            issued=issued,
            packed=packed,
            signature=Signer(secret, "", self.keys.root).sign(packed),
            changes=[control_scripts.ChangeRow.of(slot, mark, rate, budget) for slot, mark in command.changes],
            job=command.job,
            per_minute=per_minute,
            token=token,
        )
        return self.call(call), issued

    def desired(self) -> dict[str, bytes]:
        """The desired state."""
        flat = self.execute("HGETALL", self.keys.desired)
        return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}

    # What workers and people do ---------------------------------------------------------------------------------------

    def read(self, worker: str = "w1", *, agent: str = "ed", limit: int = 100, begin: bool = True) -> list[Delivery]:
        """Read the inbox without waiting; what has a death behind it begins at once, unless `begin` is False."""
        reply = self.execute(
            "XREADGROUP", "GROUP", GROUP, worker, "COUNT", limit, "STREAMS", self.keys.inbox(agent), ">"
        )
        found = parse_entries(agent, reply[0][1]) if reply else []
        self._begin_those_with_deaths(found if begin else [])
        return found

    def deliver(self, worker: str = "w1", *, agent: str = "ed", limit: int = 100, begin: bool = True) -> list[Delivery]:
        """Assign what there is and read it; then take the suspects that have room beside each other."""
        while self.assign(agent, limit).left:
            pass
        found = self.read(worker, agent=agent, limit=limit, begin=begin)
        if not self.execute("EXISTS", self.keys.suspected_queues):
            return found
        idle = worker not in {consumer for _, consumer in self.pending(agent)}
        return found + self.take_suspects(worker, agent=agent, limit=limit - len(found), idle=idle, begin=begin)

    def one(self, worker: str = "w1", *, agent: str = "ed") -> Delivery:
        """The one task there is, delivered."""
        (delivery,) = self.deliver(worker, agent=agent)
        return delivery

    def execute(self, *command: Argument) -> Any:
        """Send one plain command."""
        return self.store.execute(*command)

    # The truth --------------------------------------------------------------------------------------------------------

    def task(self, task_id: str) -> dict[str, str]:
        """The task's hash as text (arguments and results that are no text: replaced)."""
        flat = self.execute("HGETALL", self.keys.task(task_id))
        return {k.decode(): v.decode(errors="replace") for k, v in zip(flat[::2], flat[1::2], strict=True)}

    def state(self, task_id: str) -> str:
        """The stored state."""
        return self.task(task_id).get("state", "gone")

    def ttl_s(self, key: str) -> int:
        """Seconds that a key has left; -1 for ever, -2 no such key."""
        return int(self.execute("TTL", key))

    def members(self, key: str) -> list[str]:
        """Members of a sorted set, lowest score first."""
        return [member.decode() for member in self.execute("ZRANGE", key, 0, -1)]

    def queue(self, name: str = "skill:sum") -> list[str]:
        """Ids in a queue, best first."""
        return self.members(self.keys.queue(name))

    def taken(self, key: str) -> list[str]:
        """Ids of the tasks that run for a key."""
        return sorted(id_.decode() for id_ in self.execute("SMEMBERS", self.keys.share_taken(key)))

    def score(self, key: str, member: str) -> int | None:
        """Score of a member."""
        found = self.execute("ZSCORE", key, member)
        return None if found is None else int(found)

    def entries(self, key: str, after: str = "-") -> list[tuple[str, list[str]]]:
        """A whole stream, or what came after an entry."""
        found = self.execute("XRANGE", key, after if after == "-" else f"({after}", "+")
        return [(entry.decode(), [part.decode(errors="replace") for part in flat]) for entry, flat in found]

    def out(self, task_id: str) -> list[tuple[str, str, int, str]]:
        """A task's output stream, as (kind, generation, attempt, data)."""
        found = [fields for _, fields in self.entries(self.keys.out(task_id))]
        named = [dict(zip(flat[::2], flat[1::2], strict=True)) for flat in found]
        return [(entry["k"], entry["g"], int(entry["a"]), entry["d"]) for entry in named]

    def notifications(self) -> list[str]:
        """What the doorbell said since the last look."""
        found = [flat[1] for _, flat in self.entries(self.keys.doorbell)]
        self.execute("DEL", self.keys.doorbell)
        return found

    def replies(self, client: str = "c1") -> list[tuple[str, str]]:
        """All replies for a client, as (task, text)."""
        flat = [part for _, fields in self.entries(self.keys.replies(node(client))) for part in fields]
        return list(zip(flat[::2], flat[1::2], strict=True))

    def events(self) -> list[tuple[str, str]]:
        """All ends of tasks, as (task, letter)."""
        flat = [part for _, fields in self.entries(self.keys.events) for part in fields]
        return list(zip(flat[::2], flat[1::2], strict=True))

    def stats(self) -> dict[str, int]:
        """The counters since the beginning."""
        flat = self.execute("HGETALL", self.keys.stats("TOTAL"))
        return {name.decode(): int(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}

    def agent(self, agent: str = "ed") -> dict[str, str]:
        """What is known of an agent."""
        flat = self.execute("HGETALL", self.keys.agent(agent))
        return {name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)}

    def inbox_length(self, agent: str = "ed") -> int:
        """Entries in an inbox."""
        return int(self.execute("XLEN", self.keys.inbox(agent)))

    def pending(self, agent: str = "ed") -> list[tuple[str, str]]:
        """Delivered entries of an inbox, as (entry, consumer)."""
        found = self.execute("XPENDING", self.keys.inbox(agent), GROUP, "-", "+", 10_000)
        return [(entry.decode(), consumer.decode()) for entry, consumer, _, _ in found]

    def age(self, ms: int, agent: str = "ed") -> None:
        """Let delivered entries look as if nobody had renewed them for so long: idle times follow the real clock."""
        for entry, consumer in self.pending(agent):
            self.execute("XCLAIM", self.keys.inbox(agent), GROUP, consumer, 0, entry, "IDLE", ms, "JUSTID")

    def look(self, worker: str = "watch", agent: str = "ed") -> None:
        """Let a bystander without room look into the inbox, as live workers do, until a grace period is over."""
        for _ in range(6):
            self.adopt(worker, agent=agent, limit=0)
            self.sleep(LEASE_MS / 5)

    def names(self) -> list[str]:
        """Every key of this namespace."""
        return names(self.link, f"{self.keys.prefix}:")

    def snapshot(self) -> dict[str, Any]:
        """Everything that this namespace holds."""
        return snapshot(self.link, f"{self.keys.prefix}:")

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Assert that the block changes nothing in the whole namespace."""
        before = self.snapshot()
        yield
        assert self.snapshot() == before

    def commands(self) -> int:
        """How many commands the server has run so far, those inside scripts included.

        A call of a script that the server did not know yet is none: which test is the first to need it is chance.
        """
        lines: Sequence[str] = self.execute("INFO", "commandstats").decode().splitlines()
        ignored = ("cmdstat_info", "cmdstat_script")
        run = 0
        for line in lines:
            if line.startswith("cmdstat") and not line.startswith(ignored):
                stats = dict(field.split("=") for field in line.partition(":")[2].split(","))
                unknown = int(stats["failed_calls"]) if line.startswith("cmdstat_evalsha:") else 0
                run += int(stats["calls"]) - unknown
        return run

    def close(self) -> None:
        """Close the connection."""
        self.store.close()
