"""Supervisors and worker hosts as processes of their own."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.faultkit.processes import ActorProcess
from tests.helpers.logging_agents import ATTEMPT_LOG_VARIABLE, LEASE_VARIABLE, SLOTS_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    import redis

    from orchestrator.core.settings import Settings
    from orchestrator.store.keys import PoolKeys
    from tests.helpers.attempt_log import AttemptLog

ROOT = Path(__file__).parents[2]
_SUPERVISOR = (
    "from anyio import run; from orchestrator.core.settings_sources import SettingsSources; "
    "from orchestrator.supervisor.daemon import run_supervisor; "
    "sources = SettingsSources.of(); run(run_supervisor, sources.load().settings, sources)"
)


def environment(settings: Settings) -> dict[str, str]:
    """The settings as environment variables."""
    assert settings.redis.url is not None
    addresses = {"ORC_WORKER__HEALTH": settings.worker.health, "ORC_SUPERVISOR__HEALTH": settings.supervisor.health}
    return {
        **{name: address for name, address in addresses.items() if address is not None},
        "ORC_PREFIX": settings.prefix,
        "ORC_POOL": settings.pool,
        "ORC_REDIS__URL": settings.redis.url.get_secret_value(),
        "ORC_WORKER__DRAIN_S": str(settings.worker.drain_s),
        "ORC_WORKER__HEARTBEAT_S": str(settings.worker.heartbeat_s),
        "ORC_WORKER__GRACE_S": str(settings.worker.grace_s),
        "ORC_WORKER__STUCK_AFTER_S": str(settings.worker.stuck_after_s),
        "ORC_SUPERVISOR__LEADER_LEASE_S": str(settings.supervisor.leader_lease_s),
        "ORC_SUPERVISOR__SWEEP_S": str(settings.supervisor.sweep_s),
    }


def supervisor(settings: Settings, *, name: str = "supervisor") -> ActorProcess:
    """Describe a supervisor process."""
    return ActorProcess([sys.executable, "-c", _SUPERVISOR], name=name, env=environment(settings), cwd=ROOT)


def host(
    settings: Settings,
    attempt_log: AttemptLog,
    *,
    processes: int,
    lease_s: float = 15.0,
    slots: int = 20,
    agents: str = "tests.helpers.logging_agents:agents",
    env: Mapping[str, str] | None = None,
) -> ActorProcess:
    """Describe a host with its worker processes, which run the noting agents; `env`: more variables."""
    variables = {ATTEMPT_LOG_VARIABLE: str(attempt_log.path), LEASE_VARIABLE: str(lease_s), SLOTS_VARIABLE: str(slots)}
    command = [
        sys.executable,
        "-P",
        "-m",
        "orchestrator.workers",
        agents,
        "--processes",
        str(processes),
    ]
    return ActorProcess(command, name="host", env={**environment(settings), **variables, **(env or {})}, cwd=ROOT)


def workers_of(direct: redis.Redis, keys: PoolKeys, agent: str = "scribe") -> dict[str, int]:
    """The workers that the registry has for an agent, with their process ids."""
    ids: Any = direct.hkeys(keys.agent_workers(agent))
    pids: dict[str, Any] = {id_.decode(): direct.hget(keys.worker(id_.decode()), "pid") for id_ in ids}
    return {id_: int(pid) for id_, pid in pids.items() if pid}


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def children_of(pid: int) -> list[int]:
    """The children of a process, zombies among them."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def parent_of(pid: int) -> int:
    """The process whose child a process is."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
