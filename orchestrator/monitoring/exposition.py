"""Writes the numbers of a pool in Prometheus' text format.

The library renders a sample in 8 us, and a large pool has 9,000. So the text of a pair of agent and skill is made
with one format operation, and kept until its counters change (docs/internals/adr/0032).
"""

from __future__ import annotations

from itertools import accumulate
from operator import add
from typing import TYPE_CHECKING, Final

from anyio.lowlevel import checkpoint

from orchestrator.agents.timings import BUCKETS, OUTCOMES, RAN_MS, RUNS, WAITED_MS, WAITS, unpack_cells
from orchestrator.agents.timings import OTHER as OTHER_PAIR
from orchestrator.core.queue_name import QueueName
from orchestrator.core.reading import read_text
from orchestrator.core.slots import parse_slot
from orchestrator.monitoring.backlog import ActiveStops, RunningTimes, compute_backlogs
from orchestrator.monitoring.catalogue import BUCKETS_S, BY_NAME, LABELLED, OTHER
from orchestrator.monitoring.counter_marks import CounterMarks, raise_cells
from orchestrator.monitoring.scripts import ReadyPlace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from orchestrator.monitoring.backlog import Backlogs
    from orchestrator.monitoring.catalogue import Metric
    from orchestrator.monitoring.pool_reader import PoolReading
    from orchestrator.monitoring.scripts import PoolNumbers

_COMMANDS: Final = "orc_control_commands_total"
_REFUSALS: Final = "orc_control_refusals_total"
_REST: Final = f"{OTHER_PAIR} {OTHER_PAIR}".encode()
_NAMED_OTHER: Final = f"{OTHER} {OTHER}".encode()
_FINISHED: Final = "orc_tasks_finished_total"
COUNTERS: Final = {
    "submitted": ("orc_tasks_submitted_total", ""),
    "assigned": ("orc_tasks_assigned_total", ""),
    "succeeded": (_FINISHED, "succeeded"),
    "dead": (_FINISHED, "dead"),
    "cancelled": (_FINISHED, "cancelled"),
    "expired": (_FINISHED, "expired"),
    "retried": ("orc_task_retries_total", "failed"),
    "snoozed": ("orc_task_retries_total", "snoozed"),
    "requeued": ("orc_task_retries_total", "operator"),
    "adopted": ("orc_task_redeliveries_total", "lease_expired"),
    "abandoned": ("orc_task_redeliveries_total", "worker_died"),
    "recovered": ("orc_task_redeliveries_total", "recovered"),
    "given_back": ("orc_task_redeliveries_total", "given_back"),
    "asked": ("orc_questions_total", "asked"),
    "answered": ("orc_questions_total", "answered"),
    "unanswered": ("orc_questions_total", "unanswered"),
    "joining": ("orc_joins_total", "begun"),
    "joined": ("orc_joins_total", "met"),
    "join_timeout": ("orc_joins_total", "timed_out"),
    "repaired": ("orc_repairs_total", "repaired"),
    "cleaned": ("orc_repairs_total", "cleaned"),
    "fsync:asked": ("orc_durable_submits_total", "fsync"),
    "replicated:asked": ("orc_durable_submits_total", "replicated"),
    "fsync:missed": ("orc_durable_submits_missed_total", "fsync"),
    "replicated:missed": ("orc_durable_submits_missed_total", "replicated"),
    "losses:client": ("orc_write_losses_total", "client"),
    "losses:supervisor": ("orc_write_losses_total", "supervisor"),
    "lost:client": ("orc_lost_submits_total", "client"),
    "lost:supervisor": ("orc_lost_submits_total", "supervisor"),
}
"""Metric and label value of each counter of the scripts (`stats:TOTAL`, `durability`)."""
_EDGES: Final = tuple(round(second * 1000).bit_length() - 1 for second in BUCKETS_S)
"""Last bucket below each upper end: bucket N holds times below 2^N ms."""
PAIRS_AT_ONCE: Final = 50
MOST_OPENINGS: Final = 10_000
"""Agents and skills come and go, so the texts that are kept for them are forgotten at this number."""


def escape(value: str) -> str:
    """Escape a label value."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def pool_labels(prefix: str, pool: str) -> str:
    """Return the labels that every sample has: pools of different prefixes often have the same name."""
    return f'prefix="{escape(prefix)}",pool="{escape(pool)}"'


class Page:
    """Collects samples of declared metrics and writes them family by family.

    Args:
        pool: see `pool_labels`.
        openings: texts of samples up to their values, which the next page uses again.
    """

    def __init__(self, pool: str, openings: dict[tuple[str, ...], str]) -> None:
        self._pool, self._openings = pool, openings
        self._families: dict[str, list[str]] = {}

    def add(self, name: str, value: float, *labels: str) -> None:
        """Add one sample; `labels` are the values of the declared labels."""
        opening = self._openings.get((name, *labels))
        if opening is None:
            pairs = [f'{label}="{escape(text)}"' for label, text in zip(BY_NAME[name].labels, labels, strict=True)]
            opening = self._openings[name, *labels] = f"{name}{{{','.join([self._pool, *pairs])}}} "
        self.add_text(name, (f"{opening}{value if value.__class__ is int else round(value, 6)}\n",))

    def add_part(self, name: str, part: str, value: float, label: str = "") -> None:
        """Add one sample of a histogram without labels: `_bucket`, `_sum` or `_count`."""
        labels = f"{self._pool}{',' if label else ''}{label}"
        self.add_text(name, (f"{name}{part}{{{labels}}} {value}\n",))

    def add_text(self, name: str, text: Iterable[str]) -> None:
        """Add samples that are written already."""
        lines = self._families.get(name)
        if lines is None:
            lines = self._families[name] = [head(BY_NAME[name])]
        lines.extend(text)

    def add_page(self, other: Page) -> None:
        """Add the samples of another page; the format wants all samples of a metric together."""
        for name, (_, *samples) in other._families.items():
            self.add_text(name, samples)

    def render(self) -> bytes:
        """Return the text."""
        return "".join(line for lines in self._families.values() for line in lines).encode()


def head(metric: Metric) -> str:
    """Return the lines that open a family."""
    return f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.type}\n"


class _Pair:
    """The samples of one agent and skill, made anew when its counters change."""

    __slots__ = ("_templates", "attempts", "cells", "duration", "packed", "wait")

    def __init__(self, pool: str, agent: str, skill: str) -> None:
        labels = f'{pool},agent="{escape(agent)}",skill="{escape(skill)}"'.replace("%", "%%")
        outcomes = BY_NAME["orc_task_attempts_total"].values
        self._templates = (
            "".join(f'orc_task_attempts_total{{{labels},outcome="{outcome}"}} %d\n' for outcome in outcomes),
            *(
                "".join(f'{name}_bucket{{{labels},le="{end}"}} %d\n' for end in (*BUCKETS_S, "+Inf"))
                + f"{name}_sum{{{labels}}} %s\n{name}_count{{{labels}}} %d\n"
                for name in ("orc_task_duration_seconds", "orc_task_wait_seconds")
            ),
        )
        self.packed = b""
        self.cells: Sequence[int] = ()

    def update(self, packed: bytes) -> None:
        """Take the counters as Redis stores them."""
        if packed == self.packed:
            return
        self.packed = packed
        self.write(raise_cells(self.cells, unpack_cells(packed)))

    def write(self, cells: Sequence[int]) -> None:
        """Write the samples of these cells."""
        self.cells = cells
        attempts, duration, wait = self._templates
        self.attempts = attempts % tuple(cells[: len(OUTCOMES)])
        self.duration = duration % _histogram(cells, RUNS, RAN_MS)
        self.wait = wait % _histogram(cells, WAITS, WAITED_MS)


def _histogram(cells: Sequence[int], first: int, total_ms: int) -> tuple[object, ...]:
    below = list(accumulate(cells[first : first + BUCKETS]))
    return (*[below[edge] for edge in _EDGES], below[-1], cells[total_ms] / 1000, below[-1])


class PoolExposition:
    """Writes the readings of one pool.

    Args:
        pool: see `pool_labels`.
    """

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._pairs: dict[bytes, _Pair] = {}
        self._marks = CounterMarks()
        self._openings: dict[tuple[str, ...], str] = {}

    def page(self) -> Page:
        """Return an empty page of this pool."""
        if len(self._openings) > MOST_OPENINGS:
            self._openings.clear()
        return Page(self._pool, self._openings)

    async def add(self, page: Page, reading: PoolReading, *, supervisor: str) -> None:
        """Add a reading, for the supervisor with this id. Lets the event loop turn in between."""
        numbers, marks = reading.numbers, self._marks
        counts = {counter: numbers.counters.get(counter, 0) for counter in COUNTERS}
        if marks.raise_to(counts | {_COMMANDS: numbers.commands, _REFUSALS: numbers.refusals}):
            self._pairs.clear()
        await self._update_pairs(reading.attempts)
        for counter, (name, label) in COUNTERS.items():
            page.add(name, marks[counter], *([label] if label else []))
        pairs = self._pairs_by_labels()
        page.add_text("orc_task_attempts_total", [pair.attempts for pair in pairs])
        page.add_text("orc_task_duration_seconds", [pair.duration for pair in pairs])
        page.add_text("orc_task_wait_seconds", [pair.wait for pair in pairs])
        page.add(_COMMANDS, marks[_COMMANDS])
        page.add(_REFUSALS, marks[_REFUSALS])
        self._add_queues(page, reading)
        await checkpoint()
        backlogs = compute_backlogs(reading, RunningTimes({key: pair.cells for key, pair in self._pairs.items()}))
        self._add_skills(page, reading, backlogs)
        await checkpoint()
        self._add_agents(page, reading)
        await checkpoint()
        for name, value in (
            ("orc_tasks_scheduled", numbers.scheduled),
            ("orc_tasks_awaiting_input", numbers.asking),
            ("orc_tasks_joining", numbers.joining),
            ("orc_tasks_awaiting_tasks", numbers.awaiting_tasks),
            ("orc_dead_letters", numbers.dead),
            ("orc_pool_backlog_seconds", backlogs.pool.seconds),
            ("orc_agents", len(numbers.agents)),
            ("orc_workers", numbers.workers),
            ("orc_supervisors", numbers.supervisors),
            ("orc_leader", int(bool(numbers.leader))),
            ("orc_supervisor_leads", int(numbers.leader == supervisor)),
            ("orc_schedules", numbers.schedules),
            ("orc_schedule_lateness_seconds", _age_s(numbers.now_ms, numbers.next_fire_ms)),
            ("orc_sessions", numbers.sessions),
            ("orc_last_write_loss_timestamp_seconds", numbers.counters.get("losses:noticed_ms", 0) / 1000),
            ("orc_scrape_seconds", reading.took_s),
        ):
            page.add(name, value)
        _add_server(page, reading)

    async def _update_pairs(self, attempts: Mapping[bytes, bytes]) -> None:
        for key in self._pairs.keys() - attempts.keys():
            del self._pairs[key]
        for number, (key, packed) in enumerate(attempts.items()):
            if number % PAIRS_AT_ONCE == 0:
                await checkpoint()
            pair = self._pairs.get(key)
            if pair is None:
                agent, _, skill = read_text(key).partition(" ")
                names = (OTHER if name == OTHER_PAIR else name for name in (agent, skill))
                pair = self._pairs[key] = _Pair(self._pool, *names)
            pair.update(packed)

    def _pairs_by_labels(self) -> list[_Pair]:
        """Return the pairs. The rest and an agent and a skill that are both named `other` share their samples."""
        pairs = dict(self._pairs)
        rest, named = pairs.get(_REST), pairs.get(_NAMED_OTHER)
        if rest and named:
            del pairs[_NAMED_OTHER]
            both = pairs[_REST] = _Pair(self._pool, OTHER, OTHER)
            both.write(list(map(add, rest.cells, named.cells)))
        return list(pairs.values())

    def _labelled(self, names: Iterable[str], part: int) -> set[str]:
        """Choose the names that are label values: those that have attempts of their own, then others by name."""
        counted = {read_text(key).split(" ")[part] for key in self._pairs} - {OTHER_PAIR}
        rest = sorted(set(names) - counted)
        return counted | set(rest[: max(0, LABELLED - len(counted))])

    def _add_queues(self, page: Page, reading: PoolReading) -> None:
        waiting = dict.fromkeys(BY_NAME["orc_queue_waiting"].values, 0)
        oldest = dict.fromkeys(BY_NAME["orc_queue_oldest_seconds"].values, 0.0)
        stops = ActiveStops(reading)
        for place, queue in reading.queues.items():
            kind = "held" if place.kind == "held" or stops.hold(place) else place.kind
            waiting[kind] += queue.tasks
            if kind in oldest and queue.tasks:
                oldest[kind] = max(oldest[kind], _age_s(reading.numbers.now_ms, queue.since_ms))
        waiting["parked"] = sum(agent.parked for agent in reading.agents.values())
        for label, count in waiting.items():
            page.add("orc_queue_waiting", count, label)
        for label, age_s in oldest.items():
            page.add("orc_queue_oldest_seconds", age_s, label)
        for scope, count in _count_stops(reading.numbers).items():
            page.add("orc_active_stops", count, scope)

    def _add_skills(self, page: Page, reading: PoolReading, backlogs: Backlogs) -> None:
        # A skill may be named `other`, too.
        labelled = self._labelled(backlogs.skills, 1) - {OTHER}
        rest: list[tuple[float, ...]] = []
        for skill, backlog in backlogs.skills.items():
            age_s = 0.0
            for place in (ReadyPlace("skill", skill), ReadyPlace("suspect", str(QueueName("skill", skill)))):
                queue = reading.queues.get(place)
                if backlog.waiting and queue and queue.tasks:
                    age_s = max(age_s, _age_s(reading.numbers.now_ms, queue.since_ms))
            row = (backlog.waiting, age_s, backlog.slots, backlog.seconds)
            if skill in labelled:
                _add_skill(page, skill, row)
            else:
                rest.append(row)
        if rest:
            counts, ages, slots, seconds = zip(*rest, strict=True)
            # Slots of a pool serve several skills; the longest backlog is the one to scale on.
            _add_skill(page, OTHER, (sum(counts), max(ages), max(slots), max(seconds)))

    def _add_agents(self, page: Page, reading: PoolReading) -> None:
        labelled = self._labelled(reading.agents, 0)
        sums: dict[str, list[int]] = {}
        for name, agent in reading.agents.items():
            row = sums.setdefault(name if name in labelled else OTHER, [0, 0, 0])
            row[0] += agent.slots
            row[1] += agent.running
            row[2] += agent.unread
        for name, (slots, running, unread) in sums.items():
            page.add("orc_slots", slots, name)
            page.add("orc_slots_used", running, name)
            page.add("orc_inbox_unread", unread, name)


def _count_stops(numbers: PoolNumbers) -> dict[str, int]:
    counts = dict.fromkeys(BY_NAME["orc_active_stops"].values, 0)
    for slot in numbers.stops:
        kind = parse_slot(slot).kind
        scope = "pool" if kind == "all" else kind
        if scope in counts:  # a later version may stop something else
            counts[scope] += 1
    return counts | {"session": numbers.stopped_sessions}


def _add_skill(page: Page, skill: str, row: Sequence[float]) -> None:
    names = ("orc_skill_waiting", "orc_skill_oldest_seconds", "orc_skill_slots", "orc_skill_backlog_seconds")
    for name, value in zip(names, row, strict=True):
        page.add(name, value, skill)


def _add_server(page: Page, reading: PoolReading) -> None:
    server = reading.server
    for name, value in (
        ("orc_redis_up", 1),
        ("orc_redis_uptime_seconds", server.uptime_s),
        ("orc_redis_memory_bytes", server.memory_bytes),
        ("orc_redis_memory_limit_bytes", server.memory_limit_bytes),
        ("orc_redis_clients", server.clients),
        ("orc_redis_clients_limit", server.max_clients),
        ("orc_redis_evicted_keys_total", server.evicted_keys),
        ("orc_redis_aof_enabled", int(server.append_only)),
        ("orc_redis_aof_bytes", server.aof_bytes),
        ("orc_redis_clock_skew_seconds", reading.skew_s),
    ):
        page.add(name, value)
    for command, counted in sorted(reading.commands.items()):
        page.add("orc_redis_commands_total", counted.calls, command)
        page.add("orc_redis_command_seconds_total", round(counted.seconds, 6), command)
        for quantile, time_s in (("0.5", counted.p50_s), ("0.99", counted.p99_s)):
            if time_s is not None:
                page.add("orc_redis_command_quantile_seconds", time_s, command, quantile)
    for kind, outcome in (
        ("aof_write", server.aof_write),
        ("aof_rewrite", server.aof_rewrite),
        ("snapshot", server.snapshot),
    ):
        page.add("orc_redis_persistence_ok", int(outcome == "ok"), kind)


def _age_s(now_ms: int, since_ms: float | None) -> float:
    return 0.0 if since_ms is None else max(0.0, (now_ms - since_ms) / 1000)
