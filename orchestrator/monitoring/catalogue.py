"""Declares every metric: name, type, unit, labels, help, source.

The exporter, the reference page and the tests of dashboards and alerts read `METRICS`. A sample of a metric that is not
declared here, or with other labels, is an error. To add a metric, declare it here; then set its value in the reader of
its source: `pool_metrics` for what Redis stores, `process_metrics` for what a process counts itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

MetricType: TypeAlias = Literal["counter", "gauge", "histogram"]
Source: TypeAlias = Literal["pool", "server", "process", "supervisor", "host"]
"""Origin of the values.

`pool`: Redis, so every supervisor of a pool exports the same values. `server`: INFO of Redis, as this supervisor sees
it. `process`: every process with a health server. `supervisor`: this supervisor. `host`: a worker host, or a worker
that runs alone.
"""

LABELLED: Final = 200
"""Agents, and skills, that are label values of their own."""
OTHER: Final = "other"
"""Label value of the agents and skills beyond them."""
BUCKETS_S: Final = tuple(4**power / 1000 for power in range(1, 12))
"""Upper ends of the buckets of waiting and running times: 4 ms to 4194 s, every second one that Redis stores."""
LAG_BUCKETS_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: as exported; a counter ends in `_total`.
        type: Prometheus' type.
        unit: base unit; empty for a number of things.
        labels: names of the labels, beside `prefix` and `pool`, which all metrics have.
        values: the values of a label that is neither an agent nor a skill.
        help: one sentence.
        source: see `Source`.
    """

    name: str
    type: MetricType
    unit: str
    labels: tuple[str, ...]
    help: str
    source: Source
    values: tuple[str, ...] = ()


_PAIR: Final = ("agent", "skill")

METRICS: Final = (
    # ------------------------------------------------------------------------------------------ counters of the scripts
    Metric("orc_tasks_submitted_total", "counter", "", (), "Tasks that were accepted.", "pool"),
    Metric("orc_tasks_assigned_total", "counter", "", (), "Tasks that were put into the inbox of an agent.", "pool"),
    Metric(
        "orc_tasks_finished_total",
        "counter",
        "",
        ("outcome",),
        "Tasks that ended.",
        "pool",
        ("succeeded", "dead", "cancelled", "expired"),
    ),
    Metric(
        "orc_task_retries_total",
        "counter",
        "",
        ("reason",),
        "Tasks that were put back: after a failure, by their handler, by an operator after their end.",
        "pool",
        ("failed", "snoozed", "operator"),
    ),
    Metric(
        "orc_task_redeliveries_total",
        "counter",
        "",
        ("reason",),
        "Attempts that ended without a verdict: their lease ran out, their host saw the worker die, the supervisor "
        "took them from an agent without room, or the worker gave them back.",
        "pool",
        ("lease_expired", "worker_died", "recovered", "given_back"),
    ),
    Metric(
        "orc_questions_total",
        "counter",
        "",
        ("outcome",),
        "Questions of tasks: asked, answered, or past their deadline.",
        "pool",
        ("asked", "answered", "unanswered"),
    ),
    Metric(
        "orc_joins_total",
        "counter",
        "",
        ("outcome",),
        "Joins for which a task waited: begun, met, or past their deadline.",
        "pool",
        ("begun", "met", "timed_out"),
    ),
    Metric(
        "orc_repairs_total",
        "counter",
        "",
        ("kind",),
        "Damage that the reconciler or `orc repair` has repaired, and leftovers that it has cleaned.",
        "pool",
        ("repaired", "cleaned"),
    ),
    Metric(
        "orc_durable_submits_total",
        "counter",
        "",
        ("level",),
        "Submits that asked for a level of durability; repeated calls count again.",
        "pool",
        ("fsync", "replicated"),
    ),
    Metric(
        "orc_durable_submits_missed_total",
        "counter",
        "",
        ("level",),
        "Submits that were accepted without the durability that they asked for.",
        "pool",
        ("fsync", "replicated"),
    ),
    Metric(
        "orc_write_losses_total",
        "counter",
        "",
        ("noticed_by",),
        "Losses of writes that Redis had confirmed, per client or supervisor that noticed one.",
        "pool",
        ("client", "supervisor"),
    ),
    Metric(
        "orc_last_write_loss_timestamp_seconds",
        "gauge",
        "seconds",
        (),
        "When the last loss of confirmed writes was noticed, as Unix time; 0: never.",
        "pool",
    ),
    Metric(
        "orc_lost_submits_total",
        "counter",
        "",
        ("noticed_by",),
        "Accepted tasks that Redis has lost. Clients count their own tasks, supervisors those of all clients.",
        "pool",
        ("client", "supervisor"),
    ),
    Metric(
        "orc_task_attempts_total",
        "counter",
        "",
        (*_PAIR, "outcome"),
        "Attempts that ended. Workers report them with their heartbeats.",
        "pool",
        ("succeeded", "failed", "dead", "cancelled", "snoozed", "asked", "requeued", "invalid", "lost", "joining"),
    ),
    Metric(
        "orc_task_duration_seconds",
        "histogram",
        "seconds",
        _PAIR,
        "Time from the begin of an attempt to its end.",
        "pool",
    ),
    Metric(
        "orc_task_wait_seconds",
        "histogram",
        "seconds",
        _PAIR,
        "Time from when a task was ready to the begin of an attempt.",
        "pool",
    ),
    Metric("orc_control_commands_total", "counter", "", (), "Commands in the control stream.", "pool"),
    Metric("orc_control_refusals_total", "counter", "", (), "Commands that were refused.", "pool"),
    # ----------------------------------------------------------------------------------------------- state of the pool
    Metric(
        "orc_queue_waiting",
        "gauge",
        "",
        ("kind",),
        "Ready tasks that no agent has: in queues of skills, in queues of agents, suspects that wait for a worker, "
        "parked ones whose agent lacks the skill, held by a stop or a pause.",
        "pool",
        ("skill", "agent", "suspect", "parked", "held"),
    ),
    Metric(
        "orc_queue_oldest_seconds",
        "gauge",
        "seconds",
        ("kind",),
        "Age of the oldest ready task among the first of the highest and of the lowest priority of each queue that no "
        "stop or pause holds.",
        "pool",
        ("skill", "agent", "suspect"),
    ),
    Metric("orc_tasks_scheduled", "gauge", "", (), "Delayed and retrying tasks.", "pool"),
    Metric("orc_tasks_awaiting_input", "gauge", "", (), "Tasks that wait for an answer.", "pool"),
    Metric("orc_tasks_joining", "gauge", "", (), "Tasks that wait for tasks that they join.", "pool"),
    Metric("orc_tasks_awaiting_tasks", "gauge", "", (), "Tasks of flows that wait for their predecessors.", "pool"),
    Metric("orc_dead_letters", "gauge", "", (), "Dead letters that are kept.", "pool"),
    Metric(
        "orc_skill_waiting",
        "gauge",
        "",
        ("skill",),
        "Ready tasks of the queue of a skill, suspects included; 0 while a stop or a pause holds it.",
        "pool",
    ),
    Metric("orc_skill_oldest_seconds", "gauge", "seconds", ("skill",), "As `orc_queue_oldest_seconds`.", "pool"),
    Metric(
        "orc_skill_slots",
        "gauge",
        "",
        ("skill",),
        "Slots of the live agents that have the skill and that no stop or pause holds.",
        "pool",
    ),
    Metric(
        "orc_skill_backlog_seconds",
        "gauge",
        "seconds",
        ("skill",),
        "Work that waits per slot: ready tasks x recent mean running time / slots, at least 1 slot. Scale on this.",
        "pool",
    ),
    Metric(
        "orc_pool_backlog_seconds",
        "gauge",
        "seconds",
        (),
        "As `orc_skill_backlog_seconds`, for the queues of all skills and agents, and all slots.",
        "pool",
    ),
    Metric("orc_slots", "gauge", "", ("agent",), "Slots of the live workers of an agent.", "pool"),
    Metric("orc_slots_used", "gauge", "", ("agent",), "Entries that workers of an agent have read: running.", "pool"),
    Metric("orc_inbox_unread", "gauge", "", ("agent",), "Entries that no worker of an agent has read yet.", "pool"),
    Metric(
        "orc_active_stops",
        "gauge",
        "",
        ("scope",),
        "Active stops and pauses: of the whole pool, of agents, skills, queues and sessions.",
        "pool",
        ("pool", "agent", "skill", "queue", "session"),
    ),
    Metric("orc_agents", "gauge", "", (), "Agents that are registered.", "pool"),
    Metric("orc_workers", "gauge", "", (), "Workers that are registered.", "pool"),
    Metric("orc_supervisors", "gauge", "", (), "Supervisors that run.", "pool"),
    Metric("orc_leader", "gauge", "", (), "1 if a supervisor leads, else 0.", "pool"),
    Metric("orc_schedules", "gauge", "", (), "Schedules, paused and finished ones included.", "pool"),
    Metric(
        "orc_schedule_lateness_seconds", "gauge", "seconds", (), "Delay of the schedule that is due longest.", "pool"
    ),
    Metric("orc_sessions", "gauge", "", (), "Sessions that are listed; at most about 10,000.", "pool"),
    # ------------------------------------------------------------------------------------------------------ the server
    Metric("orc_redis_up", "gauge", "", (), "1 if Redis answered this scrape, else 0.", "server"),
    Metric("orc_redis_uptime_seconds", "gauge", "seconds", (), "Time since the start of Redis.", "server"),
    Metric("orc_redis_memory_bytes", "gauge", "bytes", (), "Memory that Redis uses.", "server"),
    Metric("orc_redis_memory_limit_bytes", "gauge", "bytes", (), "`maxmemory`; 0: unlimited.", "server"),
    Metric("orc_redis_clients", "gauge", "", (), "Connections to Redis.", "server"),
    Metric("orc_redis_clients_limit", "gauge", "", (), "`maxclients`.", "server"),
    Metric("orc_redis_evicted_keys_total", "counter", "", (), "Keys that Redis has evicted.", "server"),
    Metric(
        "orc_redis_commands_total",
        "counter",
        "",
        ("command",),
        "Calls of a Redis command, also of those inside scripts.",
        "server",
    ),
    Metric(
        "orc_redis_command_seconds_total",
        "counter",
        "seconds",
        ("command",),
        "Time of the server in a Redis command. That of EVALSHA has the commands inside scripts.",
        "server",
    ),
    Metric(
        "orc_redis_command_quantile_seconds",
        "gauge",
        "seconds",
        ("command", "quantile"),
        "Median and 99th percentile of the time of a Redis command since the start of the server.",
        "server",
    ),
    Metric("orc_redis_aof_enabled", "gauge", "", (), "1 if the append-only file is on, else 0.", "server"),
    Metric("orc_redis_aof_bytes", "gauge", "bytes", (), "Size of the append-only file.", "server"),
    Metric(
        "orc_redis_persistence_ok",
        "gauge",
        "",
        ("kind",),
        "1 if the last one succeeded, else 0.",
        "server",
        ("aof_write", "aof_rewrite", "snapshot"),
    ),
    Metric(
        "orc_redis_clock_skew_seconds",
        "gauge",
        "seconds",
        (),
        "Clock of Redis minus the clock of this machine.",
        "server",
    ),
    # --------------------------------------------------------------------------------------------------- one process
    Metric(
        "orc_build_info",
        "gauge",
        "",
        ("version", "python", "format", "role"),
        "1; the labels have the version of the program.",
        "process",
    ),
    Metric("orc_loop_lag_seconds", "histogram", "seconds", (), "Delay of a timer in the event loop.", "process"),
    Metric("orc_redis_reconnects_total", "counter", "", (), "Connections that were opened again.", "process"),
    Metric(
        "orc_vector_cache_bytes",
        "gauge",
        "bytes",
        (),
        "Vectors of memories that are kept to compare them; `memory.vector_cache_bytes` bounds it per process.",
        "process",
    ),
    Metric(
        "orc_vector_cache_loads_total",
        "counter",
        "",
        (),
        "Reads of all vectors of a memory. A count that rises with the searches means that the cache is too small.",
        "process",
    ),
    Metric("orc_silent_loops", "gauge", "", (), "Loops that have not turned for longer than their limit.", "process"),
    Metric("orc_supervisor_leads", "gauge", "", (), "1 if this supervisor leads, else 0.", "supervisor"),
    Metric("orc_scrape_seconds", "gauge", "seconds", (), "Time that the last read of the pool took.", "supervisor"),
    Metric(
        "orc_host_workers",
        "gauge",
        "",
        ("state",),
        "Worker processes of this host.",
        "host",
        ("starting", "running", "draining"),
    ),
    Metric("orc_host_restarts_total", "counter", "", (), "Workers that died and were replaced.", "host"),
    Metric("orc_host_slots", "gauge", "", (), "Slots of the workers of this host.", "host"),
    Metric("orc_host_slots_used", "gauge", "", (), "Slots that run an attempt.", "host"),
)

BY_NAME: Final = {metric.name: metric for metric in METRICS}
