"""Checks the pool: supervisor, workers, waiting tasks without an agent, and queues near their cap."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from orchestrator.agents import queries as registry
from orchestrator.agents.failed_starts import failed_starts
from orchestrator.agents.presence import find_absence
from orchestrator.core.errors import NotFound
from orchestrator.core.queue_name import QueueName
from orchestrator.core.reading import read_text
from orchestrator.doctor.findings import SHOWN, ok, problem, warning
from orchestrator.tasks import queries as tasks
from orchestrator.tasks.losses import read_losses
from orchestrator.why import lookup
from orchestrator.why.model import Cause

if TYPE_CHECKING:
    from orchestrator.doctor.context import CheckContext
    from orchestrator.doctor.findings import DoctorFinding
    from orchestrator.store.store import Store
    from orchestrator.why.model import Why

MISSED_HEARTBEATS = 4
BLOCKED_SINCE_S = 3600.0
"""Blocks of event loops are reported for this long."""
NEAR_CAP = 0.8
FULL: Final = 0.999
"""Share of a cap of bytes above which the next task may not fit."""
HEADS: Final = 100
"""Queues whose first task is looked at, and agents that are named."""


_STUCK: Final = frozenset({
    Cause.AGENT_UNKNOWN, Cause.AGENT_DOWN, Cause.SKILL_MISSING, Cause.SKILL_PARTIAL, Cause.SKILL_OUTDATED,
    Cause.NO_AGENT, Cause.LIMIT_UNDEFINED,
})  # fmt: skip
"""Causes that last until workers are started or replaced."""


async def check_skills(context: CheckContext) -> list[DoctorFinding]:
    """Report queues whose first task no live agent can take, in the words of `orc tasks why`."""
    lengths = await _ready(context.store)
    serving = await registry.serving(context.store)
    # The queues without an agent first, so that a long list does not hide them.
    queues = sorted(lengths, key=lambda queue: (queue in serving, queue))[:HEADS]
    heads = await lookup.heads(context.store, queues)
    findings = []
    for queue in queues:
        task, now = heads.get(queue, ("", None))
        if now is not None and now.detail.cause in _STUCK:
            waiting = f"{_tasks(lengths[queue])} waiting in queue {queue}; the first, {task}"
            findings.append(warning("skills", f"{waiting}: {now.why}", _fix(now.detail)))
        elif queue not in serving and (absence := await _absence(context.store, queue)):
            # Something else comes first, such as a stop.
            fix = "start a worker of an agent that has it: `orc worker run MODULE:AGENT`"
            findings.append(warning("skills", f"{_tasks(lengths[queue])} waiting in queue {queue}: {absence}", fix))
    if not findings:
        seen = f"{_tasks(sum(lengths.values()))} waiting, each for a live agent" if lengths else "no task waits"
        findings.append(ok("skills", seen))
    return findings


async def _absence(store: Store, queue: str) -> str | None:
    name = QueueName.parse(queue)
    if name.skill is not None:
        return await find_absence(store, name.skill)
    return f"agent {name.agent!r} has no live worker" if name.agent is not None else None


def _fix(why: Why) -> str:
    match why.cause:
        case Cause.SKILL_PARTIAL:
            return f"replace these workers, or give agents with other skills other names; `orc agents show {why.agent}`"
        case Cause.SKILL_OUTDATED:
            return "start workers with the version of the skill that takes the task"
        case Cause.SKILL_MISSING:
            return f"start a version of {why.agent!r} that has it; see `orc agents show {why.agent}`"
        case Cause.LIMIT_UNDEFINED:
            return f"define the limit {why.limit!r} in the settings of the workers"
    if why.reason:
        return "correct the lifespan, or what it needs; the log of the worker host has the traceback"
    who = f"agent {why.agent!r}" if why.agent else "an agent that has it"
    return f"start a worker of {who}: `orc worker run MODULE:AGENT`"


async def check_agents(context: CheckContext) -> list[DoctorFinding]:
    """Report agents whose live workers have different skills."""
    findings = []
    for agent in await registry.uneven_agents(context.store, HEADS):
        uneven = sorted(agent.skills.items(), key=lambda one: (one[1], one[0]))
        parts = [f"{skill!r} at {having} of {agent.live}" for skill, having in uneven[:SHOWN]]
        parts += [f"{len(uneven) - SHOWN} more"] * (len(uneven) > SHOWN)
        findings.append(
            warning(
                "agent-skills",
                f"the {agent.live} live workers of agent {agent.name!r} have different skills ({', '.join(parts)}); "
                "tasks of these skills wait until all have them",
                "give agents with other skills other names; during an upgrade, wait for its end",
            )
        )
    return findings or [ok("agent-skills", "all live workers of an agent have the same skills")]


async def check_starts(context: CheckContext) -> list[DoctorFinding]:
    """Report agents whose lifespans fail, so that their workers do not start."""
    fix = "correct the lifespan, or what it needs; the log of the worker host has the traceback"
    found = [warning("lifespans", one.text, fix) for one in await failed_starts(context.store)]
    return found or [ok("lifespans", "no lifespan failed lately")]


async def check_parked(context: CheckContext) -> list[DoctorFinding]:
    """Report tasks that were sent to an agent without their skill."""
    store = context.store
    names = [agent.name for agent in await registry.agents(store)]
    counts = await store.pipeline([("ZCARD", store.keys.parked(name)) for name in names])
    findings = []
    for name, count in zip(names, counts, strict=True):
        if isinstance(count, int) and count:
            why = await _why_parked(store, name)
            findings.append(
                warning(
                    "parked",
                    f"{_tasks(count)} for agent {name!r} wait for a skill{f'; the first, {why}' if why else ''}",
                    f"start a version of {name!r} that has it; see `orc agents show {name}`",
                )
            )
    return findings or [ok("parked", "no task waits for a skill that its agent lacks")]


async def _why_parked(store: Store, agent: str) -> str:
    """Return the first parked task of an agent and why it waits, as `orc tasks why` tells it."""
    for id_ in await store.execute("ZRANGE", store.keys.parked(agent), 0, 0):
        with suppress(NotFound):
            return f"{read_text(id_)}: {(await lookup.status(store, read_text(id_))).why}"
    return ""


async def check_caps(context: CheckContext) -> list[DoctorFinding]:
    """Report queues that are full or nearly full."""
    cap = context.settings.queue.max_tasks
    lengths = await _ready(context.store)
    findings = []
    for queue, count in lengths.items():
        found = f"queue {queue} holds {count} of {cap} tasks"
        if count >= cap:
            fix = "add workers, or raise queue.max_tasks for the clients"
            findings.append(problem("queues", f"{found}: more are refused", fix))
        elif count > NEAR_CAP * cap:
            findings.append(warning("queues", found, "add workers, or raise queue.max_tasks for the clients"))
    findings += await _check_bytes(context, len(lengths))
    if not findings:
        seen = f"the longest holds {max(lengths.values())} of {cap} tasks" if lengths else "all are empty"
        findings.append(ok("queues", seen))
    return findings


async def _check_bytes(context: CheckContext, queues: int) -> list[DoctorFinding]:
    """Report queues whose tasks have nearly as many bytes as they may, the pool, and the number of queues."""
    caps = context.settings.queue
    held = await tasks.bytes_by_queue(context.store)
    of_pool = held.pop("*", 0)
    full = [
        (f"the pool holds {of_pool} of {caps.max_pool_bytes} bytes", "max_pool_bytes", of_pool / caps.max_pool_bytes),
        (f"{queues} of {caps.max_queues} queues hold tasks", "max_queues", queues / caps.max_queues),
    ]
    for queue, size in held.items():
        found = f"queue {queue} holds {size} of {caps.max_queue_bytes} bytes"
        full.append((found, "max_queue_bytes", size / caps.max_queue_bytes))
    findings = []
    for found, setting, share in full:
        fix = f"add workers, or raise queue.{setting} for the clients"
        if share >= FULL:
            findings.append(problem("queues", f"{found}: more are refused", fix))
        elif share > NEAR_CAP:
            findings.append(warning("queues", found, fix))
    return findings


async def _ready(store: Store) -> dict[str, int]:
    """Return the non-empty queues of ready tasks, without scheduled ones."""
    lengths = await tasks.queue_lengths(store)
    others = {"scheduled", "awaiting_input", "joining", "awaiting_tasks"}
    return {queue: count for queue, count in lengths.items() if count and queue not in others}


def _tasks(count: int) -> str:
    return f"{count} task{'s' * (count != 1)}"


async def check_supervisor(context: CheckContext) -> list[DoctorFinding]:
    """Check that a supervisor leads."""
    leader = await registry.leader(context.store)
    if leader is not None:
        return [ok("supervisor", f"{leader} leads")]
    needed = await tasks.any_ready(context.store) or await registry.workers(context.store)
    fix = "`orc supervisor run`, or `orc up`"
    if needed:
        return [problem("supervisor", "no supervisor leads, so no task is assigned", fix)]
    return [warning("supervisor", "no supervisor leads; no task waits and no worker lives", fix)]


async def check_losses(context: CheckContext) -> list[DoctorFinding]:
    """Report confirmed writes that Redis has lost in the last day."""
    lost = await read_losses(context.store)
    if lost is None:
        return [ok("lost-writes", "no loss of confirmed writes was noticed in the last day")]
    fix = "submit lost tasks again; a level of durability (`queue.durability`) keeps the next ones"
    return [warning("lost-writes", f"lost {lost.text}", fix)]


async def check_workers(context: CheckContext) -> list[DoctorFinding]:
    """Check that workers live and send heartbeats."""
    workers = await registry.workers(context.store)
    if not workers:
        if await tasks.any_ready(context.store):
            return [problem("workers", "no worker lives, and tasks wait", "`orc worker run MODULE:AGENT`, or `orc up`")]
        return [ok("workers", "no worker lives, and no task waits")]
    now_ms = await tasks.server_ms(context.store)
    silent_s = {worker.id: max(0.0, now_ms / 1000 - worker.last_seen_at.timestamp()) for worker in workers}
    silence_max_s = context.settings.worker.heartbeat_s * MISSED_HEARTBEATS
    lost = [worker for worker in workers if silent_s[worker.id] > silence_max_s]
    if lost:
        return [
            warning(
                "workers",
                f"no heartbeat from {worker.id} for {silent_s[worker.id]:.0f} s "
                f"(one is due every {context.settings.worker.heartbeat_s:g} s)",
                f"check process {worker.pid} on {worker.host}; kill it if it is stuck: its tasks run again",
            )
            for worker in lost
        ]
    return [ok("workers", f"{len(workers)} live; the oldest heartbeat is {max(silent_s.values()):.1f} s old")]


async def check_event_loops(context: CheckContext) -> list[DoctorFinding]:
    """Report workers whose event loop code of an agent has blocked in the last hour."""
    now_s = await tasks.server_ms(context.store) / 1000
    findings = []
    for worker in await registry.workers(context.store):
        block = worker.blocked
        if block is None or (ago_s := now_s - block.at.timestamp()) > BLOCKED_SINCE_S:
            continue
        times = f", {block.count} times since its start" if block.count > 1 else ""
        findings.append(
            warning(
                "event-loops",
                f"{block.where} blocked the event loop of worker {worker.id} for {block.seconds:.1f} s, "
                f"{max(0.0, ago_s):.0f} s ago{times}",
                "await there, or make the handler a `def` or `process=True`; the worker's log has the stack",
            )
        )
    return findings or [ok("event-loops", "no code has blocked a worker for a second in the last hour")]
