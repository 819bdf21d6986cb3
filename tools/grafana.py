"""Writes the Grafana dashboard, `config/grafana/orchestrator.json`, from the panels below.

Supervisors of a pool export the same values of the pool, so a panel takes the maximum of them by its labels, never the
sum. `python -m tools.grafana` writes the file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

TARGET: Final = Path(__file__).parents[1] / "config" / "grafana" / "orchestrator.json"
WIDTH: Final = 24
"""Columns of Grafana's grid."""
HEIGHT: Final = {"stat": 4, "timeseries": 8}

Kind: TypeAlias = Literal["stat", "timeseries"]


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        title: what it shows.
        unit: Grafana's name of the unit.
        queries: PromQL and legend of each series.
        kind: a number or a chart.
        zero_is_bad: of a number, whether 0 is red; else a number above `red_above` is.
        red_above: of a number; None: it is never red.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: Kind = "timeseries"
    zero_is_bad: bool = False
    red_above: float | None = None


def _max(metric: str, *labels: str, match: str = "") -> str:
    return f"max by ({', '.join(('prefix', 'pool', *labels))}) ({metric}{_selector(match)})"


def _rate(metric: str, *labels: str, match: str = "") -> str:
    return f"max by ({', '.join(('prefix', 'pool', *labels))}) (rate({metric}{_selector(match)}[$__rate_interval]))"


def _selector(match: str) -> str:
    return f'{{prefix=~"$prefix", pool=~"$pool"{", " if match else ""}{match}}}'


def _quantile(share: float, metric: str, match: str = "") -> str:
    """Return a quantile per skill."""
    buckets = _rate(f"{metric}_bucket", "agent", "skill", "le", match=match)
    return f"histogram_quantile({share}, sum by (prefix, pool, skill, le) ({buckets}))"


_AGENT: Final = 'agent=~"$agent"'
_SKILL: Final = 'skill=~"$skill"'
_BOTH: Final = f"{_AGENT}, {_SKILL}"
_ATTEMPTS: Final = _rate("orc_task_attempts_total", "agent", "skill", "outcome", match=_BOTH)
_USED: Final = _max("orc_slots_used", "agent", match=_AGENT)
_SLOTS: Final = _max("orc_slots", "agent", match=_AGENT)
_WRITES: Final = _rate(
    "orc_redis_commands_total",
    "command",
    match='command=~"hset|hsetnx|hdel|hincrby|zadd|zincrby|zrem|sadd|srem|lpush|rpush|lrem|ltrim|xadd|xdel|xackdel|'
    'set|incr|del|unlink|vadd|vrem"',
)
_SCRIPTS: Final = _rate("orc_redis_commands_total", match='command=~"evalsha"')
_LAG: Final = f"rate(orc_loop_lag_seconds_bucket{_selector('')}[$__rate_interval])"

ROWS: Final[tuple[tuple[str, tuple[Panel, ...]], ...]] = (
    (
        "Now",
        (
            Panel("Leader", "bool_yes_no", ((_max("orc_leader"), "{{prefix}} {{pool}}"),), "stat", zero_is_bad=True),
            Panel("Workers", "none", ((_max("orc_workers"), "{{prefix}} {{pool}}"),), "stat", zero_is_bad=True),
            Panel("Agents", "none", ((_max("orc_agents"), "{{prefix}} {{pool}}"),), "stat"),
            Panel("Supervisors", "none", ((_max("orc_supervisors"), "{{prefix}} {{pool}}"),), "stat", zero_is_bad=True),
            Panel(
                "Oldest ready task",
                "s",
                ((_max("orc_queue_oldest_seconds"), "{{prefix}} {{pool}}"),),
                "stat",
                red_above=900,
            ),
            Panel(
                "Work per slot",
                "s",
                ((_max("orc_pool_backlog_seconds"), "{{prefix}} {{pool}}"),),
                "stat",
                red_above=600,
            ),
            Panel("Dead letters", "none", ((_max("orc_dead_letters"), "{{prefix}} {{pool}}"),), "stat"),
            Panel("Redis", "bool_on_off", ((_max("orc_redis_up"), "{{prefix}} {{pool}}"),), "stat", zero_is_bad=True),
        ),
    ),
    (
        "Tasks",
        (
            Panel(
                "Submitted, assigned and ended tasks",
                "ops",
                (
                    (_rate("orc_tasks_submitted_total"), "submitted"),
                    (_rate("orc_tasks_assigned_total"), "assigned"),
                    (_rate("orc_tasks_finished_total", "outcome"), "{{outcome}}"),
                ),
            ),
            Panel(
                "Waiting tasks",
                "none",
                (
                    (_max("orc_queue_waiting", "kind"), "{{kind}}"),
                    (_max("orc_tasks_scheduled"), "scheduled"),
                    (_max("orc_tasks_awaiting_input"), "awaiting input"),
                    (_max("orc_tasks_joining"), "joining"),
                    (_max("orc_tasks_awaiting_tasks"), "awaiting tasks"),
                ),
            ),
            Panel("Oldest ready task by queue", "s", ((_max("orc_queue_oldest_seconds", "kind"), "{{kind}}"),)),
            Panel(
                "Tasks that ran again",
                "ops",
                (
                    (_rate("orc_task_retries_total", "reason"), "retried: {{reason}}"),
                    (_rate("orc_task_redeliveries_total", "reason"), "delivered again: {{reason}}"),
                ),
            ),
        ),
    ),
    (
        "Skills and agents",
        (
            Panel(
                "Waiting time, 95th percentile",
                "s",
                ((_quantile(0.95, "orc_task_wait_seconds", _BOTH), "{{skill}}"),),
            ),
            Panel(
                "Running time, 95th percentile",
                "s",
                ((_quantile(0.95, "orc_task_duration_seconds", _BOTH), "{{skill}}"),),
            ),
            Panel(
                "Attempts by outcome",
                "ops",
                ((f"sum by (prefix, pool, outcome) ({_ATTEMPTS})", "{{outcome}}"),),
            ),
            Panel(
                "Slots in use",
                "percentunit",
                ((f"{_USED} / ({_SLOTS} > 0)", "{{agent}}"),),
            ),
            Panel("Unread inbox entries", "none", ((_max("orc_inbox_unread", "agent", match=_AGENT), "{{agent}}"),)),
            Panel("Ready tasks of a skill", "none", ((_max("orc_skill_waiting", "skill", match=_SKILL), "{{skill}}"),)),
            Panel(
                "Oldest ready task of a skill",
                "s",
                ((_max("orc_skill_oldest_seconds", "skill", match=_SKILL), "{{skill}}"),),
            ),
            Panel(
                "Work per slot of a skill",
                "s",
                ((_max("orc_skill_backlog_seconds", "skill", match=_SKILL), "{{skill}}"),),
            ),
            Panel("Slots of a skill", "none", ((_max("orc_skill_slots", "skill", match=_SKILL), "{{skill}}"),)),
        ),
    ),
    (
        "People, schedules and control",
        (
            Panel(
                "Questions and joins",
                "ops",
                (
                    (_rate("orc_questions_total", "outcome"), "{{outcome}}"),
                    (_rate("orc_joins_total", "outcome"), "join {{outcome}}"),
                ),
            ),
            Panel(
                "Schedules and sessions",
                "none",
                ((_max("orc_schedules"), "schedules"), (_max("orc_sessions"), "sessions")),
            ),
            Panel("Active stops and pauses", "none", ((_max("orc_active_stops", "scope"), "{{scope}}"),)),
            Panel("Latest schedule", "s", ((_max("orc_schedule_lateness_seconds"), "late"),)),
            Panel(
                "Commands and repairs",
                "ops",
                (
                    (_rate("orc_control_commands_total"), "commands"),
                    (_rate("orc_control_refusals_total"), "refused"),
                    (_rate("orc_repairs_total", "kind"), "{{kind}}"),
                ),
            ),
        ),
    ),
    (
        "Redis",
        (
            Panel(
                "Durable submits",
                "ops",
                (
                    (_rate("orc_durable_submits_total", "level"), "{{level}} asked"),
                    (_rate("orc_durable_submits_missed_total", "level"), "{{level}} missed"),
                    (_rate("orc_lost_submits_total", "noticed_by"), "lost, noticed by {{noticed_by}}"),
                    (_rate("orc_write_losses_total", "noticed_by"), "losses that a {{noticed_by}} noticed"),
                ),
            ),
            Panel(
                "Memory",
                "bytes",
                (
                    (_max("orc_redis_memory_bytes"), "used"),
                    (f"{_max('orc_redis_memory_limit_bytes')} > 0", "maxmemory"),
                    (_max("orc_redis_aof_bytes"), "append-only file"),
                ),
            ),
            Panel(
                "Connections",
                "none",
                ((_max("orc_redis_clients"), "open"), (_max("orc_redis_clients_limit"), "maxclients")),
            ),
            Panel(
                "Persistence",
                "none",
                (
                    (_max("orc_redis_aof_enabled"), "append-only file is on"),
                    (f"min by (prefix, pool, kind) (orc_redis_persistence_ok{_selector('')})", "{{kind}} succeeded"),
                ),
            ),
            Panel(
                "Time of Redis by command",
                "percentunit",
                ((f"topk(8, {_rate('orc_redis_command_seconds_total', 'command')})", "{{command}}"),),
            ),
            Panel(
                "Slowest commands of Redis",
                "s",
                (
                    (
                        f"topk(8, {_max('orc_redis_command_quantile_seconds', 'command', 'quantile')})",
                        "{{command}} {{quantile}}",
                    ),
                ),
            ),
            Panel(
                "Commands that write, per script call",
                "none",
                ((f"sum by (prefix, pool) ({_WRITES}) / {_SCRIPTS}", "writes per call"),),
            ),
            Panel("Evicted keys", "ops", ((_rate("orc_redis_evicted_keys_total"), "evicted"),)),
            Panel("Uptime", "s", ((_max("orc_redis_uptime_seconds"), "uptime"),)),
            Panel("Clock skew", "s", ((_max("orc_redis_clock_skew_seconds", "instance"), "{{instance}}"),)),
        ),
    ),
    (
        "Processes",
        (
            Panel(
                "Event loop delay (99th percentile) and scrape",
                "s",
                (
                    (f"histogram_quantile(0.99, sum by (prefix, pool, instance, le) ({_LAG}))", "{{instance}}"),
                    (_max("orc_scrape_seconds", "instance"), "{{instance}} scrape"),
                ),
            ),
            Panel(
                "Silent loops and reconnects",
                "none",
                (
                    (_max("orc_silent_loops", "instance"), "silent loops, {{instance}}"),
                    (_rate("orc_redis_reconnects_total", "instance"), "reconnects per second, {{instance}}"),
                ),
            ),
            Panel(
                "Vectors kept to be compared",
                "bytes",
                ((_max("orc_vector_cache_bytes", "instance"), "bytes, {{instance}}"),),
            ),
            Panel(
                "Reads of all vectors of a memory",
                "none",
                ((_rate("orc_vector_cache_loads_total", "instance"), "per second, {{instance}}"),),
            ),
            Panel(
                "Workers of a host",
                "none",
                (
                    (_max("orc_host_workers", "instance", "state"), "{{instance}} {{state}}"),
                    (_rate("orc_host_restarts_total", "instance"), "{{instance}} restarts per second"),
                ),
            ),
            Panel(
                "Slots of a host",
                "none",
                (
                    (_max("orc_host_slots_used", "instance"), "{{instance}} used"),
                    (_max("orc_host_slots", "instance"), "{{instance}} all"),
                ),
            ),
            Panel("Leading supervisor", "none", ((_max("orc_supervisor_leads", "instance"), "{{instance}}"),)),
            Panel(
                "Versions",
                "none",
                (
                    (
                        f"count by (prefix, pool, role, version, format) (orc_build_info{_selector('')})",
                        "{{role}} {{version}} (format {{format}})",
                    ),
                ),
            ),
        ),
    ),
)


def panels() -> tuple[Panel, ...]:
    """Return all panels in order."""
    return tuple(panel for _, row in ROWS for panel in row)


def rendered() -> str:
    """Return the text of the dashboard file."""
    dashboard = {
        "id": None,
        "uid": "redis-orchestrator",
        "title": "redis-orchestrator",
        "description": "Pools of redis-orchestrator: tasks, skills, agents, Redis, processes.",
        "tags": ["redis-orchestrator"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "panels": _grid(),
    }
    return json.dumps(dashboard, indent=1) + "\n"


def _variables() -> list[dict[str, Any]]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    found: list[dict[str, Any]] = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    ]
    labels = (
        ("prefix", "Prefix", "label_values(orc_redis_up, prefix)"),
        ("pool", "Pool", 'label_values(orc_redis_up{prefix=~"$prefix"}, pool)'),
        ("agent", "Agent", 'label_values(orc_slots{prefix=~"$prefix", pool=~"$pool"}, agent)'),
        ("skill", "Skill", 'label_values(orc_skill_slots{prefix=~"$prefix", pool=~"$pool"}, skill)'),
    )
    for name, label, query in labels:
        found.append(
            {
                "name": name,
                "label": label,
                "type": "query",
                "datasource": source,
                "query": {"query": query, "refId": name},
                "refresh": 2,
                "sort": 1,
                "multi": True,
                "includeAll": True,
                "allValue": ".*",
                "current": {"text": "All", "value": "$__all"},
            }
        )
    return found


def _grid() -> list[dict[str, Any]]:
    grid: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        grid.append(
            {"type": "row", "title": title, "collapsed": False, "gridPos": _place(0, y, WIDTH, 1), "panels": []}
        )
        y += 1
        x = 0
        for panel in row:
            width = 3 if panel.kind == "stat" else 8 if len(row) % 3 == 0 else 12
            if x + width > WIDTH:
                x, y = 0, y + HEIGHT[panel.kind]
            grid.append(_panel(panel, _place(x, y, width, HEIGHT[panel.kind])))
            x += width
        y += HEIGHT[row[-1].kind]
    for number, each in enumerate(grid, 1):
        each["id"] = number
    return grid


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.kind == "stat":
        steps: list[dict[str, Any]] = [{"color": "red" if panel.zero_is_bad else "green", "value": None}]
        if panel.zero_is_bad:
            steps.append({"color": "green", "value": 1})
        elif panel.red_above is not None:
            steps.append({"color": "red", "value": panel.red_above})
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    else:
        defaults["custom"] = {"fillOpacity": 8, "lineWidth": 1, "showPoints": "never"}
    if "skew" in str(panel.queries):
        del defaults["min"]  # a clock may also be behind
    return {
        "type": panel.kind,
        "title": panel.title,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}} if panel.kind == "timeseries" else {},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": query, "legendFormat": legend}
            for number, (query, legend) in enumerate(panel.queries)
        ],
    }


if __name__ == "__main__":
    TARGET.write_text(rendered(), encoding="utf-8")
