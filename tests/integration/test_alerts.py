"""Each alert fires on the series of its fault, and none fires on those of a healthy pool. `promtool` evaluates them."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any, Final

import pytest

from tools.alert_rules import SOURCE, rules
from tools.grafana import panels

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PROMTOOL: Final = shutil.which("promtool") or ""

pytestmark = pytest.mark.skipif(not PROMTOOL, reason="promtool is missing; install the package prometheus")

HOURS: Final = 1
LONG: Final = {"OrcTasksWaitForPeople": 25}
"""Hours that an alert needs, if more."""
HEALTHY: Final[Mapping[str, str]] = {
    'orc_redis_up{prefix="x",pool="p"}': "1",
    'orc_leader{prefix="x",pool="p"}': "1",
    'orc_silent_loops{prefix="x",pool="p",instance="a:1"}': "0",
    'orc_loop_lag_seconds_bucket{prefix="x",pool="p",instance="a:1",le="0.01"}': "+60",
    'orc_loop_lag_seconds_bucket{prefix="x",pool="p",instance="a:1",le="2.5"}': "+60",
    'orc_loop_lag_seconds_bucket{prefix="x",pool="p",instance="a:1",le="+Inf"}': "+60",
    'orc_queue_oldest_seconds{prefix="x",pool="p",kind="skill"}': "12",
    'orc_skill_backlog_seconds{prefix="x",pool="p",skill="s"}': "30",
    'orc_skill_waiting{prefix="x",pool="p",skill="s"}': "7",
    'orc_skill_slots{prefix="x",pool="p",skill="s"}': "4",
    'orc_queue_waiting{prefix="x",pool="p",kind="parked"}': "0",
    'orc_tasks_finished_total{prefix="x",pool="p",outcome="succeeded"}': "+600",
    'orc_tasks_finished_total{prefix="x",pool="p",outcome="dead"}': "+2",
    'orc_tasks_awaiting_input{prefix="x",pool="p"}': "0",
    'orc_schedule_lateness_seconds{prefix="x",pool="p"}': "0",
    'orc_repairs_total{prefix="x",pool="p",kind="repaired"}': "0",
    'orc_host_restarts_total{prefix="x",pool="p",instance="b:1"}': "0",
    'orc_task_redeliveries_total{prefix="x",pool="p",reason="lease_expired"}': "0",
    'orc_task_redeliveries_total{prefix="x",pool="p",reason="worker_died"}': "0",
    'orc_control_refusals_total{prefix="x",pool="p"}': "0",
    'orc_last_write_loss_timestamp_seconds{prefix="x",pool="p"}': "0",
    'orc_durable_submits_missed_total{prefix="x",pool="p",level="fsync"}': "0",
    'orc_redis_memory_bytes{prefix="x",pool="p"}': "700",
    'orc_redis_memory_limit_bytes{prefix="x",pool="p"}': "1000",
    'orc_redis_evicted_keys_total{prefix="x",pool="p"}': "0",
    'orc_redis_aof_enabled{prefix="x",pool="p"}': "1",
    'orc_redis_persistence_ok{prefix="x",pool="p",kind="aof_write"}': "1",
    'orc_redis_clients{prefix="x",pool="p"}': "100",
    'orc_redis_clients_limit{prefix="x",pool="p"}': "10000",
    'orc_redis_clock_skew_seconds{prefix="x",pool="p"}': "-0.2",
}
"""Series of a healthy pool: a value that stays, or `+N` per minute; `never` scraped; `ends` half-way."""

FAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    "OrcNoMetrics": {'orc_redis_up{prefix="x",pool="p"}': "never"},
    "OrcPoolNotScraped": {
        'orc_redis_up{prefix="x",pool="p"}': "ends",
        'orc_redis_up{prefix="another",pool="p"}': "1",
    },
    "OrcRedisDown": {'orc_redis_up{prefix="x",pool="p"}': "0"},
    "OrcNoLeader": {'orc_leader{prefix="x",pool="p"}': "0"},
    "OrcSilentLoop": {'orc_silent_loops{prefix="x",pool="p",instance="a:1"}': "1"},
    "OrcEventLoopSlow": {'orc_loop_lag_seconds_bucket{prefix="x",pool="p",instance="a:1",le="0.01"}': "0"},
    "OrcTasksWaitLong": {'orc_queue_oldest_seconds{prefix="x",pool="p",kind="skill"}': "1000"},
    "OrcBacklogGrows": {'orc_skill_backlog_seconds{prefix="x",pool="p",skill="s"}': "+30"},
    "OrcNoSlots": {'orc_skill_slots{prefix="x",pool="p",skill="s"}': "0"},
    "OrcParkedTasks": {'orc_queue_waiting{prefix="x",pool="p",kind="parked"}': "1"},
    "OrcDeadLetters": {'orc_tasks_finished_total{prefix="x",pool="p",outcome="dead"}': "+60"},
    "OrcTasksWaitForPeople": {'orc_tasks_awaiting_input{prefix="x",pool="p"}': "1"},
    "OrcScheduleLate": {'orc_schedule_lateness_seconds{prefix="x",pool="p"}': "90"},
    "OrcRepaired": {'orc_repairs_total{prefix="x",pool="p",kind="repaired"}': "+1"},
    "OrcWorkerRestarts": {'orc_host_restarts_total{prefix="x",pool="p",instance="b:1"}': "+1"},
    "OrcLeasesLost": {'orc_task_redeliveries_total{prefix="x",pool="p",reason="worker_died"}': "+1"},
    "OrcCommandsRefused": {'orc_control_refusals_total{prefix="x",pool="p"}': "+1"},
    "OrcWritesLost": {'orc_last_write_loss_timestamp_seconds{prefix="x",pool="p"}': "3000"},
    "OrcSubmitsNotDurable": {'orc_durable_submits_missed_total{prefix="x",pool="p",level="fsync"}': "+1"},
    "OrcRedisMemoryHigh": {'orc_redis_memory_bytes{prefix="x",pool="p"}': "900"},
    "OrcRedisEvicts": {'orc_redis_evicted_keys_total{prefix="x",pool="p"}': "+1"},
    "OrcRedisNotPersistent": {'orc_redis_aof_enabled{prefix="x",pool="p"}': "0"},
    "OrcRedisCannotWrite": {'orc_redis_persistence_ok{prefix="x",pool="p",kind="aof_write"}': "0"},
    "OrcRedisClientsHigh": {'orc_redis_clients{prefix="x",pool="p"}': "9000"},
    "OrcClockSkew": {'orc_redis_clock_skew_seconds{prefix="x",pool="p"}': "-9"},
}


def _series(values: Mapping[str, str], steps: int) -> list[dict[str, str]]:
    written = {
        "never": f"_x{steps}",
        "ends": f"1x{steps // 2} stale _x{steps}",
        **{value: f"0{value}x{steps}" for value in values.values() if value.startswith("+")},
    }
    return [{"series": name, "values": written.get(value, f"{value}x{steps}")} for name, value in values.items()]


def _firing(values: Mapping[str, str], expected: Mapping[str, int], *, hours: int = HOURS) -> dict[str, Any]:
    """Return a test of promtool: these series, and how many alerts of each name fire in the end."""
    # A long test looks less often, because each look costs the same.
    minutes = 1 if hours == HOURS else 5
    return {
        "interval": f"{minutes}m",
        "input_series": _series(values, hours * 60 // minutes + 1),
        "promql_expr_test": [
            {
                "expr": f'count by (alertname) (ALERTS{{alertname="{name}",alertstate="firing"}})',
                "eval_time": f"{hours}h",
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": count}] if count else [],
            }
            for name, count in expected.items()
        ],
    }


def _promtool(folder: Path, tests: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    file = folder / "tests.yml"
    file.write_text(json.dumps({"rule_files": [str(SOURCE)], "evaluation_interval": "1m", "tests": tests}))
    return subprocess.run([PROMTOOL, "test", "rules", str(file)], capture_output=True, text=True, check=False)


def test_every_alert_is_tested() -> None:
    """The table has a fault for each alert."""
    assert {rule.name for rule in rules() if rule.severity} == FAULTS.keys()


def test_a_healthy_pool_raises_no_alert(tmp_path: Path) -> None:
    """No alert fires; with the first fault planted, the same test fails."""
    done = _promtool(tmp_path, [_firing(HEALTHY, dict.fromkeys(FAULTS, 0))])
    assert done.returncode == 0, done.stdout + done.stderr
    name, fault = next(iter(FAULTS.items()))
    assert _promtool(tmp_path, [_firing({**HEALTHY, **fault}, {name: 0})]).returncode != 0


def test_every_fault_raises_its_alert_alone(tmp_path: Path) -> None:
    """The alert of a fault fires once, and no other one with it."""
    tests = [
        _firing({**HEALTHY, **fault}, {other: int(other == name) for other in FAULTS}, hours=LONG.get(name, HOURS))
        for name, fault in FAULTS.items()
    ]
    done = _promtool(tmp_path, tests)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_panels_are_valid_expressions(tmp_path: Path) -> None:
    """Prometheus parses every expression of the dashboard."""
    queries = [query.replace("$__rate_interval", "5m") for panel in panels() for query, _ in panel.queries]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "panels.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run([PROMTOOL, "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
