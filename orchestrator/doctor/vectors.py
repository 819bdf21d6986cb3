"""Checks how memories search vectors on this server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.agents import queries as registry
from orchestrator.core.errors import ConfigError
from orchestrator.doctor.acl import role_of, vector_rules
from orchestrator.doctor.commands import acl_name, vector_commands
from orchestrator.doctor.findings import ok, problem, warning
from orchestrator.doctor.rights import ask_rights
from orchestrator.store.keys import VECTOR_SET
from orchestrator.vectors.rungs import choose_rung

if TYPE_CHECKING:
    from orchestrator.doctor.context import CheckContext
    from orchestrator.doctor.findings import DoctorFinding


CRASHES_SINCE: Final = (8, 0)
"""First line whose VREM may crash the server (redis/redis#15424). No release is known to have the fix."""
_AGENTS: Final = 1000


async def check_vectors(context: CheckContext) -> list[DoctorFinding]:
    """Report how `similar` searches, and commands of vector sets that the user may not run."""
    has = await context.store.capabilities.get()
    try:
        rung = choose_rung(context.settings.memory.vector_rung, has)
    except ConfigError as wrong:
        what, _, fix = str(wrong).partition("; ")
        return [problem("vectors", what, fix)]
    search = " and RediSearch, which is not used" if has.search else ""
    if not has.vector_sets:
        return [ok("vectors", f"the server has no vector sets (Redis 8.0){search}; `similar` uses {rung}")]
    commands = vector_commands(context.store.keys)
    user, verdicts = await ask_rights(context.store, commands)
    role = role_of(user) if user else None
    wanted = vector_rules(context.settings.prefix, reads_only=role is not None and role.reads_only)
    denied = {f"+{acl_name(command)}" for command, denial in zip(commands, verdicts or (), strict=False) if denial}
    if denied & {*wanted}:
        found = f"{f'user {user!r}' if user else 'the user'} may not use vector sets; `similar` compares all vectors"
        return [warning("vectors", found, f"`redis-cli ACL SETUSER {user or 'USER'} {' '.join(wanted)}`")]
    return [ok("vectors", f"the server has vector sets{search}; `similar` uses {rung}")]


async def check_deletes(context: CheckContext) -> list[DoctorFinding]:
    """Warn of removals that may crash the server, if agents have vector sets."""
    policy = context.settings.memory.vector_delete
    if policy == "mark" or context.info.line < CRASHES_SINCE:
        return [ok("vector-deletes", f"memory.vector_delete is {policy}, which is safe on this server")]
    agents = (await registry.agent_names(context.store))[:_AGENTS]
    keys = [context.store.keys.scope("agent", agent).key(VECTOR_SET) for agent in agents]
    used = [await context.store.execute("EXISTS", key) for key in keys]
    if not any(used):
        return [ok("vector-deletes", "no agent has a vector set")]
    found = f"VREM can crash {context.info.name} and its replicas (redis/redis#15424)"
    return [warning("vector-deletes", found, "set memory.vector_delete to mark, until a release has the fix")]
