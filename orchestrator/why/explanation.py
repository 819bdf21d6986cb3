"""Names the first obstacle of a task, from the facts about it. Does not talk to Redis."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Final

from orchestrator.budgets.model import explain_refusal
from orchestrator.core.durations import from_instant_ms
from orchestrator.core.slots import STOP_ALL, hold_slot, parse_slot, pause_slot, stop_slot
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.questions import encode_value
from orchestrator.why.model import Cause, Why

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from orchestrator.limits.providers import BlockedState
    from orchestrator.why.facts import ActiveCommandFacts, AgentFacts, Findings, WorkerFacts

START_ONE: Final = "start one with `orc worker run`"


def explain(found: Findings) -> Why:
    """Explain what a task waits for."""
    match found.state:
        case TaskState.SCHEDULED:
            return _scheduled(found)
        case TaskState.READY:
            return next(why for obstacle in _OBSTACLES if (why := obstacle(found)))
        case TaskState.ASSIGNED:
            return _unread(found)
        case TaskState.RUNNING | TaskState.CANCELLING:
            return _running(found)
        case TaskState.AWAITING_INPUT:
            return _asking(found)
        case TaskState.JOINING:
            return _joining(found)
        case TaskState.AWAITING_TASKS:
            return _following(found)
    return _ended(found)


# ------------------------------------------------------------------------------------------------------------ scheduled


def _scheduled(found: Findings) -> Why:
    if found.due_ms is None:
        return _lost(found, "has no due time")
    if found.due_ms <= found.now_ms:
        return _no_supervisor(found) or _its_turn(found)
    due, until = _moment(found.due_ms, found), from_instant_ms(found.due_ms)
    match found.left:
        case "retry":
            allowed = found.max_attempts
            fails = found.fails - found.forgiven_fails
            failed = f"{fails} of {_count(allowed, 'attempt')}" if allowed else _count(fails, "attempt")
            return Why(
                cause=Cause.RETRYING,
                text=f"{failed} failed, the last one with {found.reason!r}; the next one starts at {due}",
                until=until,
                failures=fails,
                attempts_left=max(0, allowed - fails) if allowed else None,
                reason=found.reason,
            )
        case "snooze":
            said = f": {found.reason}" if found.reason else ""
            return Why(cause=Cause.SNOOZED, text=f"snoozed until {due}{said}", until=until, reason=found.reason or None)
        case "await_lock":
            text = f"waits in line for a lock, and looks again at {due}: {found.reason}"
            return Why(cause=Cause.LOCKED, text=text, until=until, reason=found.reason)
        case "death":
            _, _, how = found.death.partition(" ")
            allowed = found.max_deaths
            deaths = found.deaths - found.forgiven_deaths
            died = _count(deaths, "worker") + (f" of at most {allowed}" if allowed else "")
            return Why(
                cause=Cause.RECOVERING,
                text=f"{died} died with it, the last one: {how}; the next attempt starts at {due}",
                until=until,
                deaths=deaths,
                max_deaths=allowed,
                reason=how,
            )
    return Why(cause=Cause.SCHEDULED, text=f"starts no earlier than {due}", until=until)


# ---------------------------------------------------------------------------------------------------------------- ready


def _no_supervisor(found: Findings) -> Why | None:
    if found.supervisor is not None:
        return None
    text = "no supervisor leads, so nothing is assigned; start one with `orc up` or `orc supervisor run`"
    return Why(cause=Cause.NO_SUPERVISOR, text=text)


def _stopped(found: Findings) -> Why | None:
    """Return the stop or pause that holds it, itself or each agent that could run it."""
    for slot in (STOP_ALL, stop_slot("skill", found.skill), pause_slot("queue", found.queue)):
        if slot in found.active:
            return _active_command(found.active[slot], found)
    own = {("stop", "session"), ("stop", "family")}  # its own ones: no others are among the facts
    stops = [active for slot, active in found.active.items() if parse_slot(slot)[:2] in own]
    if stops:
        return _active_command(stops[0], found)
    agents = _able(found) or found.agents
    blocked = [
        active
        for agent in agents
        if (
            active := found.active.get(stop_slot("agent", agent.name))
            or found.active.get(pause_slot("agent", agent.name))
            or found.active.get(hold_slot("agent", agent.name))
        )
    ]
    return _active_command(blocked[0], found) if blocked and len(blocked) == len(agents) else None


def _active_command(active: ActiveCommandFacts, found: Findings) -> Why:
    verb, kind, name = parse_slot(active.slot)
    what = "everything" if kind == "all" else f"{kind} {name!r}"
    typed = shlex.quote(name)
    command = f"orc {kind}s resume {typed}" if verb == "pause" else "orc start" + (f" --{kind} {typed}" if name else "")
    since = f" since {_moment(active.since_ms, found)}" if active.since_ms else ""
    until = f" until {_moment(active.until_ms, found)}" if active.until_ms else ""
    done = "stopped" if verb == "stop" else "paused"
    text = f"{what} is {done}{since}{until} by {active.actor}{_because(active.reason)}; `{command}` ends that"
    return Why(
        cause=Cause.STOPPED if verb == "stop" else Cause.PAUSED,
        until=from_instant_ms(active.until_ms) if active.until_ms else None,
        limit=name if kind == "limit" else None,
        text=text,
        since=_instant(active.since_ms or None),
        actor=active.actor,
        reason=active.reason or None,
        agent=name if kind == "agent" else None,
        skill=name if kind == "skill" else None,
        queue=found.queue,
    )


def _lane(found: Findings) -> Why | None:
    """Return the task of its lane that has the turn."""
    lane = found.lane
    if lane is None:
        return None
    if not lane.ahead or lane.owner_state is None or lane.owner_state.final:
        return _lost(found, f"no task in front of it will pass on the turn in lane {lane.name!r}")
    others = f", {_count(lane.ahead, 'task')} of it come first" if lane.ahead > 1 else ""
    doing = "is with its agent" if lane.owner_state is TaskState.ASSIGNED else f"is {lane.owner_state}"
    return Why(
        cause=Cause.LANE,
        text=f"lane {lane.name!r} is busy with task {lane.owner}, which {doing}{others}",
        lane=lane.name,
        task=lane.owner,
        ahead=lane.ahead,
        queue=found.queue,
    )


def _share(found: Findings) -> Why | None:
    """Return the key that has as many tasks running as it may, or whose other tasks come first."""
    share = found.share
    if share is None:
        return None
    others = f"{_count(share.ahead, 'task')} of it come{'s' if share.ahead == 1 else ''} first"
    if share.at_most is not None and share.running >= share.at_most:
        text = f"waits for its share: key {share.key!r} has {share.running} of {share.at_most} running"
        text = f"{text}, and {others}" if share.ahead else text
    else:
        text = f"waits for its share: of key {share.key!r} {share.running} run, and {others}"
    return Why(cause=Cause.SHARE, text=text, key=share.key, queue=found.queue, ahead=share.ahead)


def _budget(found: Findings) -> Why | None:
    """Return the budget that has no room for its start."""
    wanted = found.budget
    if wanted is None:
        return None
    if wanted.reason:
        said = explain_refusal(wanted.name, wanted.reason, wanted.state, wanted.need)
    else:
        said = f"budget {wanted.name!r} has room, and the supervisor lets it start"
    return Why(cause=Cause.BUDGET, text=f"waits for its budget: {said}", budget=wanted.name, queue=found.queue)


def _in_no_queue(found: Findings) -> Why | None:
    in_place = found.parked or found.held or found.group is not None or found.rank is not None
    return None if in_place else _lost(found, "stands in no queue")


def _no_addressee(found: Findings) -> Why | None:
    """Return the cause if the agent that it is addressed to has no live worker."""
    if found.addressed is None or found.agents[0].slots:
        return None
    agent = found.agents[0]
    if agent.workers:
        drain = "its worker drains" if agent.workers == 1 else f"all its {agent.workers} workers drain"
        cause, text = Cause.AGENT_DRAINING, f"agent {agent.name!r} takes nothing new, {drain}"
    elif agent.seen_ms is None:
        cause, text = Cause.AGENT_UNKNOWN, f"agent {agent.name!r} is not known, it had no worker in the last hour"
    else:
        seen = _ago(agent.seen_ms, found)
        cause, text = Cause.AGENT_DOWN, f"agent {agent.name!r} has no live worker, it was seen {seen}"
    text, seen_at = f"{text}; {found.failed_start or START_ONE}", _instant(agent.seen_ms)
    reason = found.failed_start or None
    return Why(cause=cause, text=text, agent=agent.name, queue=found.queue, seen=seen_at, reason=reason)


def _no_skill(found: Findings) -> Why | None:
    """Return the cause if no agent that may run it has the skill in all its live workers."""
    if _able(found):
        return None
    for agent in found.agents:
        if agent.offers.having:
            lacking = agent.offers.live - agent.offers.having
            return Why(
                cause=Cause.SKILL_PARTIAL,
                text=f"parked: {lacking} of {agent.offers.live} live workers of agent {agent.name!r} lack the skill "
                f"{found.skill!r} ({', '.join(agent.offers.lacking)}); it starts when all have it: replace these",
                skill=found.skill,
                queue=found.queue,
                agent=agent.name,
                workers=agent.offers.lacking,
            )
    if found.addressed is not None:
        return Why(
            cause=Cause.SKILL_MISSING,
            text=f"parked: agent {found.addressed!r} does not have the skill {found.skill!r}; start workers of it that "
            "do, or submit it for another agent",
            skill=found.skill,
            queue=found.queue,
            agent=found.addressed,
        )
    draining = ", ".join(repr(agent.name) for agent in found.agents)
    still = f" ({draining} has, but takes nothing new)" if draining else ""
    advice = found.failed_start or f"{START_ONE} that has"
    text = f"parked: no live agent has the skill {found.skill!r}{still}; {advice}"
    reason = found.failed_start or None
    return Why(cause=Cause.NO_AGENT, text=text, skill=found.skill, queue=found.queue, reason=reason)


def _outdated(found: Findings) -> Why | None:
    """Return the cause if each agent that could run it has a version of the skill that refused it."""
    refusing = [agent for agent in found.agents if agent.skilled and agent.slots and agent.refusing]
    if not found.refused or not refusing or _able(found):
        return None
    workers = tuple(worker for agent in refusing for worker in agent.refusing)[:10]
    return Why(
        cause=Cause.SKILL_OUTDATED,
        text=f"{found.reason}; this is the version of {', '.join(workers)}, it starts when workers with another "
        "version have replaced these",
        reason=found.reason or None,
        skill=found.skill,
        queue=found.queue,
        agent=refusing[0].name,
        workers=workers,
    )


def _undefined_limit(found: Findings) -> Why | None:
    """Return the cause if every agent that could run it needs an undefined limit."""
    able = _able(found)
    missing = [limit.name for agent in able for limit in agent.limits if limit.rate is None]
    if any(agent.defined for agent in able):
        return None
    return Why(
        cause=Cause.LIMIT_UNDEFINED,
        text=f"agent {able[0].name!r} needs the limit {missing[0]!r}, which is not defined; add it to the settings "
        f'of its workers, for example [limits] "{missing[0]}" = "60/min", and restart one',
        agent=able[0].name,
        queue=found.queue,
        limit=missing[0],
    )


def _suspected(found: Findings) -> Why | None:
    """Return the cause if it may have crashed workers and waits for a worker process with room for it."""
    if found.group is None:
        return None
    deaths = found.deaths - found.forgiven_deaths
    if found.group == 0:
        room = "a worker process that runs nothing else"
    elif found.group == 1:
        room = "a worker process that runs no other suspect"
    else:
        room = f"a worker process with fewer than {found.group} suspects"
    return Why(
        cause=Cause.SUSPECTED,
        text=f"{_count(deaths, 'worker')} died with it, so it may be what crashes them; it waits for {room}",
        deaths=deaths,
        max_deaths=found.max_deaths,
        queue=found.queue,
        reason=found.death.partition(" ")[2] or None,
    )


def _no_room(found: Findings) -> Why | None:
    """Return the cause if the inbox of every agent that could run it is full."""
    agents = [agent for agent in _able(found) if agent.defined]
    if any(agent.room > 0 for agent in agents):
        return None
    slots = sum(agent.slots for agent in agents)
    whose = f"the {len(agents)} agents with the skill {found.skill!r}" if agents[1:] else f"agent {agents[0].name!r}"
    taken = f"the one slot of {whose} is" if slots == 1 else f"all {slots} slots of {whose} are"
    return Why(
        cause=Cause.NO_ROOM,
        text=f"{taken} taken and {_ahead(found)}; more workers would start it earlier",
        slots=slots,
        agents=tuple(agent.name for agent in agents),
        skill=found.skill,
        queue=found.queue,
        ahead=found.rank,
    )


def _held_limit(found: Findings) -> Why | None:
    """Return the paused limit that ends first if every agent with room waits for one."""
    agents = [agent for agent in _able(found) if agent.defined and agent.room > 0]
    holds = [
        [held for limit in agent.limits if (held := found.active.get(hold_slot("limit", limit.name)))]
        for agent in agents
    ]
    if not all(holds):
        return None
    last = [max(held, key=lambda one: one.until_ms or 0) for held in holds]
    return _active_command(min(last, key=lambda one: one.until_ms or 0), found)


def _provider(found: Findings) -> Why | None:
    """Return the blocked provider that ends first if every agent with room waits for one."""
    agents = [agent for agent in _able(found) if agent.defined and agent.room > 0]
    blocks = [
        [(limit.name, found.blocked[limit.name]) for limit in agent.limits if limit.name in found.blocked]
        for agent in agents
    ]
    if not all(blocks):
        return None
    last = [max(held, key=_end_of_block) for held in blocks]
    name, block = min(last, key=_end_of_block)
    until = f" until {_moment(block.until_ms, found)}" if block.until_ms else ""
    match block.state:
        case "throttled":
            text = f"provider {name!r} is throttled{until}"
        case "quota":
            text = f"provider {name!r} has no quota{until}"
        case "trying":
            text = f"provider {name!r} failed several times in a row, and a call tries it"
        case _:
            text = f"provider {name!r} failed several times in a row, and gets no call{until}"
    told = f", told by {block.by} at {_moment(block.since_ms, found)}{_because(block.reason)}"
    return Why(
        cause=Cause.PROVIDER,
        text=f"{text}{told}; `orc limits clear {shlex.quote(name)}` ends that",
        until=from_instant_ms(block.until_ms) if block.until_ms else None,
        since=from_instant_ms(block.since_ms),
        actor=block.by,
        reason=block.reason or None,
        limit=name,
        queue=found.queue,
    )


def _end_of_block(named: tuple[str, BlockedState]) -> float:
    return named[1].until_ms or math.inf


def _limit(found: Findings) -> Why | None:
    """Return the limit that opens first if every agent with room waits for one."""
    agents = [agent for agent in _able(found) if agent.defined and agent.room > 0]
    if not all(any(limit.used_up for limit in agent.limits) for agent in agents):
        return None
    last = {agent.name: max(agent.limits, key=lambda limit: limit.next_us) for agent in agents}
    name, limit = min(last.items(), key=lambda item: item[1].next_us)
    # The limit of an agent itself is its name behind an @, which no other limit can have.
    shown = f"agent:{limit.name[1:]}" if limit.name.startswith("@") else limit.name
    at_ms = -(-limit.next_us // 1000)
    moment = _moment(at_ms, found)
    text = f"the limit {shown} ({limit.rate}) is used up, the next start is at {moment}"
    if found.rank and len(found.agents) == 1:
        text = f"the limit {shown} ({limit.rate}) allows its start at {moment} at the earliest, {_ahead(found)}"
    elif found.rank:
        text = f"{text}; {_ahead(found)}"
    return Why(
        cause=Cause.LIMIT,
        text=text,
        until=from_instant_ms(at_ms),
        limit=shown,
        rate=str(limit.rate),
        agent=name,
        queue=found.queue,
        ahead=found.rank,
    )


def _its_turn(found: Findings) -> Why:
    if found.state is TaskState.SCHEDULED:
        text = f"it is due, supervisor {found.supervisor} moves it on"
    else:
        text = f"nothing holds it back, {_ahead(found)}; supervisor {found.supervisor} assigns it in its turn"
    return Why(cause=Cause.TURN, text=text, queue=found.queue, ahead=found.rank, supervisor=found.supervisor)


_OBSTACLES: Final[Sequence[Callable[[Findings], Why | None]]] = (
    # From obstacles for all tasks to those of this task. The first one is named, because the others do not matter while
    # it lasts. Stops, pauses and lanes come before agents.
    _stopped,
    _no_supervisor,
    _lane,
    _share,
    _budget,
    _in_no_queue,
    _no_addressee,
    _outdated,
    _no_skill,
    _undefined_limit,
    _suspected,
    _no_room,
    _held_limit,
    _provider,
    _limit,
    _its_turn,
)


# --------------------------------------------------------------------------------------------------- assigned, running


def _unread(found: Findings) -> Why:
    if not found.in_inbox:
        return _lost(found, "is not in the inbox that it was put into")
    if stopped := _stopped(found):
        return stopped
    agent = found.agents[0]
    if not agent.slots:
        because = (
            f"{'its workers drain' if agent.workers else 'it has no live worker'}, the task goes back to its queue"
        )
    elif agent.seen_ms is not None and _silent(agent.seen_ms, agent, found):
        because = f"its workers are silent, the last sign of life came {_ago(agent.seen_ms, found)}"
    else:
        because = f"it has {_count(agent.slots, 'slot')} and {_count(agent.inbox, 'task')} in there"
    where = f"the inbox of agent {agent.name!r}"
    return Why(
        cause=Cause.UNREAD,
        text=f"put into {where} {_ago(found.entry_ms, found)}, no worker has read it yet: {because}",
        since=from_instant_ms(found.entry_ms),
        seen=_instant(agent.seen_ms),
        agent=agent.name,
        slots=agent.slots,
    )


def _running(found: Findings) -> Why:
    agent, worker = found.agents[0], found.worker
    assert worker is not None
    # An attempt begins with its entry, or when the entry is adopted, which raises the generation.
    since_ms = max(found.entry_ms, found.generation)
    attempt = found.fails + found.deaths + 1
    silent = worker.seen_ms is None or _silent(worker.seen_ms, agent, found)
    until_ms = max(found.now_ms - worker.idle_ms + agent.lease_ms, agent.grace_ms) if silent else None
    who = f"worker {worker.id} on {worker.host or 'an unknown host'}"
    if found.cancel is not None:
        cause = Cause.CANCELLING
        text = f"told to stop{_because(found.cancel)}; {_before_it_stops(who, worker, until_ms, found)}"
    elif until_ms is not None:
        cause = Cause.WORKER_SILENT
        runs_out = f"its lease runs out at {_moment(until_ms, found)}"
        text = f"{_unheard(who, worker, found)}; {runs_out}, then {_who_takes_it(agent, worker)}"
    elif found.missing:
        cause = Cause.CHILDREN
        awaited = _count(found.missing, "task")
        text = f"its handler on {who} awaits {awaited}, and lends its slot: {_missing_names(found)}"
    else:
        cause = Cause.RUNNING
        renewed = f"lease renewed {_span(worker.idle_ms)} ago"
        text = f"{who} runs it since {_moment(since_ms, found)}, attempt {attempt}, {renewed}"
    return Why(
        cause=cause,
        text=text,
        until=_instant(until_ms),
        since=from_instant_ms(since_ms),
        seen=_instant(worker.seen_ms),
        agent=agent.name,
        worker=worker.id,
        host=worker.host or None,
        pid=worker.pid,
        attempt=attempt,
        reason=found.cancel or None,
        children=found.missing_tasks if cause is Cause.CHILDREN else None,
        missing=found.missing if cause is Cause.CHILDREN else None,
    )


def _before_it_stops(who: str, worker: WorkerFacts, until_ms: int | None, found: Findings) -> str:
    if until_ms is not None:
        return f"{_unheard(who, worker, found)}, it ends when its lease has run out at {_moment(until_ms, found)}"
    return f"{who} receives it with its next heartbeat, then the handler must end"


def _who_takes_it(agent: AgentFacts, worker: WorkerFacts) -> str:
    if agent.slots and agent.workers > worker.registered:
        return f"another worker of agent {agent.name!r} takes it"
    return f"it goes back to its queue: agent {agent.name!r} has no other worker, {START_ONE}"


def _unheard(who: str, worker: WorkerFacts, found: Findings) -> str:
    heard = (
        "is forgotten"
        if worker.seen_ms is None
        else f"has sent no heartbeat for {_span(found.now_ms - worker.seen_ms)}"
    )
    return f"{who} has it and {heard}"


def _silent(seen_ms: int, agent: AgentFacts, found: Findings) -> bool:
    # A worker sends at least three heartbeats per lease: two are missing.
    return found.now_ms - seen_ms > agent.lease_ms * 2 // 3


# --------------------------------------------------------------------------------------------------------------- asking


def _asking(found: Findings) -> Why:
    question = found.question
    if question is None:
        return _lost(found, "its question cannot be read")
    asked_ms = round(question.asked_at.timestamp() * 1000)
    until = "" if found.due_ms is None else f", until {_moment(found.due_ms, found)}"
    options = ", ".join(encode_value("an option", option) for option in question.options)
    choice = f" ({options})" if options else ""
    return Why(
        cause=Cause.AWAITING_INPUT,
        text=(
            f"asks {question.question!r}{choice} since {_moment(asked_ms, found)}{until}; "
            f"type `orc tasks answer {found.id} VALUE`"
        ),
        until=None if found.due_ms is None else from_instant_ms(found.due_ms),
        since=question.asked_at,
        number=question.number,
        question=question.question,
        options=question.options,
    )


# -------------------------------------------------------------------------------------------------------------- joining


def _joining(found: Findings) -> Why:
    until = "" if found.due_ms is None else f", until {_moment(found.due_ms, found)}"
    since = "" if found.joins_since_ms is None else f" since {_moment(found.joins_since_ms, found)}"
    return Why(
        cause=Cause.CHILDREN,
        text=f"joins {_count(found.missing, 'task')} without a slot{since}{until}: {_missing_names(found)}",
        until=_instant(found.due_ms),
        since=_instant(found.joins_since_ms),
        children=found.missing_tasks,
        missing=found.missing,
    )


def _following(found: Findings) -> Why:
    if not found.missing:
        return _lost(found, "has no list of its predecessors")
    have = "has" if found.missing == 1 else "have"
    return Why(
        cause=Cause.PREDECESSORS,
        text=f"runs after {_count(found.missing, 'task')} of its flow, which {have} not ended: {_missing_names(found)}",
        children=found.missing_tasks,
        missing=found.missing,
    )


def _missing_names(found: Findings) -> str:
    more = found.missing - len(found.missing_tasks)
    return ", ".join(found.missing_tasks) + (f" and {more} more" if more else "")


# ---------------------------------------------------------------------------------------------------------- ended, lost


def _ended(found: Findings) -> Why:
    if found.ended_ms is None:
        return _lost(found, "has no time of its end")
    # A result needs no reason; the stored one is that of a retry before it.
    reason = "" if found.state is TaskState.SUCCEEDED else found.reason
    return Why(
        cause=Cause.ENDED,
        text=f"ended at {_moment(found.ended_ms, found)}{_because(reason)}",
        since=from_instant_ms(found.ended_ms),
        reason=reason or None,
    )


def _lost(found: Findings, what: str) -> Why:
    text = f"it is {found.state} by its record, but {what}: Redis lost data; cancel it and submit it again"
    return Why(cause=Cause.LOST, text=text, queue=found.queue)


# ---------------------------------------------------------------------------------------------------------------- words


def _able(found: Findings) -> list[AgentFacts]:
    """Return the agents that could run it, by skills, versions and live workers."""
    return [agent for agent in found.agents if agent.skilled and agent.slots and not agent.refusing]


def _ahead(found: Findings) -> str:
    count = found.rank or 0
    return f"{count or 'no'} task{'' if count == 1 else 's'} stand{'s' if count == 1 else ''} before it"


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _instant(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else from_instant_ms(at_ms)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _moment(at_ms: int, found: Findings) -> str:
    """Format a time of day, with the date if it is another day, and the distance from now."""
    at, now = from_instant_ms(at_ms), from_instant_ms(found.now_ms)
    form = "%H:%M:%S UTC" if at.date() == now.date() else "%Y-%m-%d %H:%M:%S UTC"
    away_ms = at_ms - found.now_ms
    return f"{at.strftime(form)} ({_ago(at_ms, found) if away_ms <= 0 else f'in {_span(away_ms)}'})"


def _ago(at_ms: int, found: Findings) -> str:
    return f"{_span(found.now_ms - at_ms)} ago"


def _span(span_ms: int) -> str:
    """Format a duration with one or two units."""
    seconds = max(0, span_ms) / 1000
    if seconds < 10:
        return f"{seconds:.1f} s"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{round(seconds / size)} {unit}"
    return f"{round(seconds)} s"
