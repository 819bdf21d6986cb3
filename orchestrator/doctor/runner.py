"""Runs all checks, from the machine to the pool; stops where settings or server are missing."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import ConfigError, ServerRefused, ServerUnavailable, StoreError
from orchestrator.core.reading import read_text
from orchestrator.doctor import (
    active_commands,
    budgets,
    compatibility,
    configuration,
    embedded,
    inboxes,
    known_faults,
    machine,
    parents,
    payloads,
    pool,
    retention,
    rights,
    sentinels,
    server,
    stored_tasks,
    vectors,
)
from orchestrator.doctor.context import CheckContext
from orchestrator.doctor.findings import Severity, problem, warning, worst
from orchestrator.embedded.data_dir import find_data_dir
from orchestrator.services import pool_keys, reach_server
from orchestrator.store.server_info import read_info
from orchestrator.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from orchestrator.core.settings import Settings
    from orchestrator.core.settings_sources import LoadedSettings
    from orchestrator.doctor.findings import DoctorFinding
    from orchestrator.store.locator import Address
    from orchestrator.store.server_info import ServerInfo

_SERVER: Final = (
    ("redis-version", server.check_version),
    ("server-faults", known_faults.check_known_faults),
    ("redis-role", server.check_role),
    ("redis-cluster", server.check_cluster),
    ("redis-sentinel", sentinels.check_sentinels),
    ("redis-eviction", server.check_eviction),
    ("redis-memory", server.check_memory),
    ("redis-listpack", server.check_listpack),
    ("redis-clients", server.check_clients),
    ("redis-aof", server.check_aof),
    ("redis-fsync", server.check_fsync),
    ("durability", server.check_durability),
    ("redis-disk", server.check_disk),
    ("redis-timeout", server.check_timeout),
    ("redis-keepalive", server.check_keepalive),
    ("clock", machine.check_clock),
    ("rights", rights.check_rights),
    ("vectors", vectors.check_vectors),
    ("scripts", compatibility.check_scripts),
    ("format", compatibility.check_data_format),
)
_OTHER: Final = (
    ("redis-version", server.check_version),
    ("server-faults", known_faults.check_known_faults),
    ("redis-role", server.check_role),
    ("redis-eviction", server.check_eviction),
    ("redis-memory", server.check_memory),
    ("redis-clients", server.check_clients),
    ("redis-aof", server.check_aof),
    ("redis-fsync", server.check_fsync),
    ("redis-disk", server.check_disk),
    ("redis-timeout", server.check_timeout),
    ("redis-keepalive", server.check_keepalive),
)
"""Checks of the servers of a cluster that have shared state, but not the pool."""
_POOL: Final = (
    ("supervisor", pool.check_supervisor),
    ("lost-writes", pool.check_losses),
    ("active-commands", active_commands.check_active_commands),
    ("control-keys", active_commands.check_key_names),
    ("workers", pool.check_workers),
    ("event-loops", pool.check_event_loops),
    ("skills", pool.check_skills),
    ("lifespans", pool.check_starts),
    ("agent-skills", pool.check_agents),
    ("parked", pool.check_parked),
    ("parents", parents.check_parents),
    ("budgets", budgets.check_budgets),
    ("queues", pool.check_caps),
    ("inboxes", inboxes.check_inboxes),
    ("lost-workers", inboxes.check_lost_workers),
    ("leases", inboxes.check_leases),
    ("lost-tasks", stored_tasks.check_stored_tasks),
    ("vector-deletes", vectors.check_deletes),
    ("payload-store", payloads.check_payload_store),
    ("memory-at-rate", retention.check_memory_at_rate),
)
_POOL_READABLE: Final = {
    "redis-cluster": frozenset({Severity.OK, Severity.WARNING}),
    "format": frozenset({Severity.OK}),
}
"""Severities of these findings with which the pool can be read."""
_CONFIG: Final = ("appendfsync", "min-replicas-to-write", "timeout", "tcp-keepalive", server.LISTPACK_VALUE)


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """All findings.

    Attributes:
        answered: the server answered until the end.
    """

    findings: tuple[DoctorFinding, ...]
    answered: bool


def run_machine_checks(load: Callable[[], LoadedSettings]) -> tuple[list[DoctorFinding], Settings | None]:
    """Check machine and settings. Blocks.

    Args:
        load: reads the settings; may raise `ConfigError`.

    Returns:
        The findings, and the settings if they are valid.
    """
    findings = [*machine.check_python(), *machine.check_platform(), *machine.check_open_files()]
    try:
        loaded = load()
    except ConfigError as wrong:
        return findings + configuration.broken_settings(wrong), None
    findings += configuration.check_settings(loaded)
    findings += configuration.check_secret_files(loaded) + configuration.check_shadowed_files(loaded)
    findings += configuration.check_url(loaded)
    findings += configuration.check_control_secret(loaded)
    alone = loaded.settings.redis.url is None
    findings += embedded.check_embedded_server(needed=alone)
    if alone:
        data_dir = find_data_dir(None, create=False)
        findings += embedded.check_data_dir(data_dir) + embedded.check_disk_space(data_dir)
        findings += embedded.check_last_start(data_dir)
    return findings, loaded.settings


async def run_server_checks(settings: Settings) -> DoctorReport:
    """Check the server and the pool of the settings, without changes."""
    findings: list[DoctorFinding] = []
    try:
        with reach_server(settings) as where:
            # Not through `open_services`, which claims an empty pool and loads scripts.
            async with Store(where, pool_keys(settings), name="doctor") as store:
                findings += await server.check_connection(store)
                info, config = await _ask_server(store)
                context = CheckContext(settings, store, info, config)
                findings += await _run(_SERVER, context)
                for address in store.others:
                    findings += await _check_other(address, context)
                if all(finding.severity in _POOL_READABLE.get(finding.code, Severity) for finding in findings):
                    findings += await _run(_POOL, context)
    except (StoreError, ConfigError) as failure:
        findings += server.connection_failed(failure)
        return DoctorReport(tuple(findings), answered=not isinstance(failure, ServerUnavailable))
    return DoctorReport(tuple(findings), answered=True)


async def _check_other(address: Address, context: CheckContext) -> list[DoctorFinding]:
    """Check a server that has slots, but not that of the pool; its findings begin with its address."""
    try:
        info, config = await _ask_server(context.store, at=address)
    except ServerUnavailable as failure:
        return [problem("redis-reach", f"{address}: {failure}", "start it, or promote its replica")]
    found = await _run(_OTHER, replace(context, info=info, config=config))
    return [replace(finding, found=f"{address}: {finding.found}") for finding in found]


async def _ask_server(store: Store, *, at: Address | None = None) -> tuple[ServerInfo, Mapping[str, str]]:
    # First a command with a key, because commands without one go to the server that has the pool.
    with contextlib.suppress(StoreError):
        await store.execute("EXISTS", store.keys.format)
    try:
        info = await store.server_info(at=at)
    except ServerRefused:
        info = read_info("")
    (pairs,) = await store.pipeline_at(at or store.place, [("CONFIG", "GET", *_CONFIG)])
    if isinstance(pairs, ServerRefused):
        pairs = []
    elif isinstance(pairs, StoreError):
        raise pairs
    texts = [read_text(text) for text in pairs]
    return info, dict(zip(texts[::2], texts[1::2], strict=True))


async def _run(
    checks: tuple[tuple[str, Callable[[CheckContext], Awaitable[list[DoctorFinding]]]], ...], context: CheckContext
) -> list[DoctorFinding]:
    findings: list[DoctorFinding] = []
    for code, check in checks:
        try:
            findings += worst(await check(context))
        except StoreError as failure:
            await context.store.execute("TIME")  # raises if the server is unavailable
            fix = "fix the other findings, `rights` first, and run it again"
            findings.append(warning(code, f"not checked: {failure}", fix))
    return findings
