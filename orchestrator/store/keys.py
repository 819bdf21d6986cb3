"""Defines every Redis key: name, type and lifetime.

A key is `{prefix}:{{pool:P}}:resource[:sub]`. The inner braces are the cluster hash tag: all keys of a pool share one
hash slot. Shared state and locks use one hash slot per session or agent (`{{session:S}}`, `{{agent:A}}`). A script gets
the part up to the closing brace (`root`) as its only declared key and appends the suffixes. Contract tests compare the
suffixes in scripts with the table below, and forbid keys that are built elsewhere in Python.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal

from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import check_name, decode_foreign, encode_foreign
from orchestrator.core.slots import stop_slot


class Backup(Enum):
    """Ways in which `orc backup` saves the keys of a kind. The value is the word for the reference."""

    NOT_SAVED = ""
    """Derived from other keys, or of no use in another pool: queues, inboxes, registry, locks, receipts."""
    WITH_TASK = "with its task"
    WITH_COMMANDS = "with the commands"
    KEPT = "yes"
    """Its remaining lifetime begins again with the restore."""
    UNTIL = "until it ends"
    """It ends at the same time as the original, because it counts what happened in a span of time."""


@dataclass(frozen=True, slots=True)
class KeyKind:
    """One kind of key.

    Attributes:
        suffix: the part after the root; a part in capitals stands for a name.
        type: the Redis type.
        holds: the content.
        lifetime: when it is removed.
        permanent: whether it may have no time to live.
        backup: how `orc backup` saves it.
    """

    suffix: str
    type: str
    holds: str
    lifetime: str
    permanent: bool = False
    backup: Backup = Backup.NOT_SAVED


POOL_KEYS: Final = (
    KeyKind(
        "queue:agent:A",
        "zset",
        "ready tasks of an agent; score = level x aging + time in ms",
        "empty = gone",
        permanent=True,
    ),
    KeyKind("queue:skill:S", "zset", "ready tasks of a skill; same score", "empty = gone", permanent=True),
    KeyKind("queues", "set", "names of the queues that are not empty", "empty = gone", permanent=True),
    KeyKind("scheduled", "zset", "delayed and retrying tasks by due ms", "empty = gone", permanent=True),
    KeyKind(
        "asking",
        "zset",
        "tasks that wait for an answer, by the deadline of the question in ms; infinity without one",
        "empty = gone",
        permanent=True,
    ),
    KeyKind("expiring", "zset", "waiting tasks that have a `start_by`, by that ms", "empty = gone", permanent=True),
    KeyKind(
        "parked:A",
        "zset",
        "tasks addressed to agent A whose skill A lacks; same score as the queue",
        "empty = gone",
        permanent=True,
    ),
    KeyKind("suspects", "set", "names of the queues that have suspects", "empty = gone", permanent=True),
    KeyKind(
        "suspects:QUEUE",
        "zset",
        "ready tasks that died more than once and wait for a worker process with room; same score as the queue",
        "empty = gone",
        permanent=True,
    ),
    KeyKind(
        "awaited:QUEUE",
        "zset",
        "ready tasks that a parent waits for; score = minus the depth",
        "a minute after the last wait was recorded",
    ),
    KeyKind(
        "lent:A",
        "hash",
        "slots that agent A lends: depth of the parents that wait, number of them",
        "empty = gone; a day after the last change",
    ),
    KeyKind(
        "inbox:A",
        "stream, group `workers`",
        "t task, g generation, a attempt and d deaths (omitted for a first attempt), e envelope (empty above 16 KiB)",
        "entries are deleted when finished; the stream an hour after the agent's last worker, when empty",
        permanent=True,
    ),
    KeyKind(
        "task:ID",
        "hash",
        "record of a task",
        "`queue.max_wait_s` while it waits, its result TTL after the end",
        backup=Backup.WITH_TASK,
    ),
    KeyKind(
        "out:ID",
        "stream",
        "progress, output and events of a task that emits or is followed; also the channel of hints about new entries",
        "as its task; capped at about `output.max_chunks` entries",
        backup=Backup.WITH_TASK,
    ),
    KeyKind(
        "children:ID",
        "list",
        "the newest 1000 children of a task, oldest first",
        "with the task, when it is deleted; else as long as the last child may wait and its result is kept",
        backup=Backup.WITH_TASK,
    ),
    KeyKind(
        "sessions",
        "zset",
        "sessions by the ms of their last submit or end of a task",
        "capped at about 10,000 sessions",
        permanent=True,
        backup=Backup.KEPT,
    ),
    KeyKind(
        "sessions:dropped",
        "hash",
        "per session the number of tasks that its list no longer has",
        "with the session; empty = gone",
        permanent=True,
        backup=Backup.KEPT,
    ),
    KeyKind(
        "session:S",
        "list",
        "the newest 1000 tasks of a session, oldest first",
        "with its session in `sessions`; at most as long as its last task may wait and its result is kept",
        backup=Backup.KEPT,
    ),
    KeyKind("doorbell", "stream", "queues and agents that changed", "capped at about 1000 entries", permanent=True),
    KeyKind(
        "limits",
        "hash",
        "definition of each limit: starts, window in microseconds",
        "permanent",
        permanent=True,
        backup=Backup.KEPT,
    ),
    KeyKind(
        "limit:NAME",
        "zset",
        "starts inside the window, by grant time in microseconds; the last returned start at infinity",
        "window + 1 s",
        backup=Backup.UNTIL,
    ),
    KeyKind(
        "lane:KEY",
        "zset",
        "open tasks of a lane, in order; the first one has the turn",
        "empty = gone",
        permanent=True,
    ),
    KeyKind("idem:KEY", "string", "task id and digest of the body", "as long as its task", backup=Backup.WITH_TASK),
    KeyKind(
        "agents", "zset", "known agents by last heartbeat in ms", "an hour after the last heartbeat", permanent=True
    ),
    KeyKind(
        "agent:A",
        "hash",
        "slots, backlog, skills, versions, limits, leases, terms, mark, looked, swept, grace, rest",
        "an hour after the last heartbeat; a day when no supervisor runs",
    ),
    KeyKind(
        "leases:A",
        "hash",
        "lease in ms of each worker that is registered or has entries in the inbox",
        "with the consumer of the worker; empty = gone",
        permanent=True,
    ),
    KeyKind("agent:A:workers", "hash", "per worker: slots, requested backlog, skills", "as `agent:A`"),
    KeyKind(
        "offers:A",
        "hash",
        "counts of its workers: all, live, slots, those without backlog; per skill, version and lease",
        "as `agent:A`",
    ),
    KeyKind(
        "workers",
        "zset",
        "live workers by last heartbeat in ms",
        "heartbeat x 4 after the last heartbeat",
        permanent=True,
    ),
    KeyKind(
        "worker:W",
        "hash",
        "host, pid, version, start, alive_s, settings; per agent slots, lent slots and versions of skills",
        "heartbeat x 4 after the last heartbeat; an hour more when no supervisor runs",
    ),
    KeyKind(
        "crew:W",
        "string",
        "ms, entries, and counts of what a dead worker ran: fresh prior limited deepest at_deepest",
        "a minute",
    ),
    KeyKind(
        "worker:W:notes",
        "stream",
        "urgent messages for a worker: k kind, t task or agent, g generation",
        "a minute after the last note; capped at about 1000 entries",
    ),
    KeyKind("silent:W", "string", "ms at which a worker without heartbeats left the registry", "7 days"),
    KeyKind("skills:S", "zset", "live agents with the skill", "empty = gone", permanent=True),
    KeyKind(
        "room:S",
        "zset",
        "agents with the skill that may have room, by the us of the last look of `dispatch`; 0: none yet",
        "empty = gone",
        permanent=True,
    ),
    KeyKind(
        "versions:S",
        "hash",
        "versions of the skill: agent and digest -> ms of the first registration, names of the arguments",
        "a week after the last worker with the version",
        permanent=True,
    ),
    KeyKind(
        "descriptions:S",
        "hash",
        "per version of the skill (digest) docstring and schemas in JSON of at most 16 KiB; `ms:DIGEST`: its time",
        "8 days after a worker last described it, at its start or after a day",
    ),
    KeyKind(
        "redacted",
        "set",
        "names of the skills that a worker has declared redacted",
        "permanent",
        permanent=True,
        backup=Backup.KEPT,
    ),
    KeyKind(
        "versions",
        "zset",
        "versions that no live worker has: agent, skill and digest, by the ms since when",
        "a week; at most about 1000",
        permanent=True,
    ),
    KeyKind(
        "refused",
        "zset",
        "the scopes of versions in `held`, by the ms since when",
        "empty = gone",
        permanent=True,
    ),
    KeyKind("dead", "zset", "dead letters by time in ms", "`results.dead_ttl_s`"),
    KeyKind(
        "replies:C",
        "stream",
        "results for a client; C is the last group of its task ids",
        "an hour after the last reply; capped at about 1000 entries",
    ),
    KeyKind(
        "events",
        "stream",
        "ended tasks, one entry per batch",
        "trimmed to about `results.max_events` tasks; capped at about 20,000 entries",
        permanent=True,
    ),
    KeyKind("stats:TOTAL", "hash", "counters since the beginning", "permanent", permanent=True, backup=Backup.KEPT),
    KeyKind("stats:MINUTE", "hash", "the same counters of one minute (unix time / 60)", "3 days"),
    KeyKind(
        "durability",
        "hash",
        "what was confirmed and what was lost: durable submits per level and outcome (`fsync:asked`, `fsync:missed`, "
        "`replicated:asked`, ...); noticed losses of writes and lost submits per observer (`losses:client`, "
        "`lost:client`, ...), and `losses:noticed_ms`, when the last one was noticed; `lease_requests`: number of the "
        "latest request for the leader's lease",
        "permanent",
        permanent=True,
        backup=Backup.KEPT,
    ),
    KeyKind(
        "losses",
        "hash",
        "writes that Redis has lost, per report: observer, ms when it noticed, ms of a lost write, submits",
        "a day after the last report; at most 200",
    ),
    KeyKind(
        "timings",
        "zset",
        "agent and skill of `timings:MINUTE`, by the last minute; at most 200",
        "a day after the last attempt",
    ),
    KeyKind(
        "timings:MINUTE",
        "hash",
        "per agent and skill the attempts that ended in one minute (unix time / 60): MessagePack, cell, count, ...",
        "a day",
    ),
    KeyKind(
        "timings:TOTAL",
        "hash",
        "the same counters per agent and skill since the first attempt, and recent running times; at most 201",
        "30 days after the last attempt; a name as in `timings`",
    ),
    KeyKind(
        "control",
        "stream",
        "commands: c command, s signature",
        "capped at about 10,000 entries",
        permanent=True,
        backup=Backup.WITH_COMMANDS,
    ),
    KeyKind(
        "control:records",
        "stream",
        "actions without a command: c record, s signature",
        "capped at about 5000 entries",
        permanent=True,
        backup=Backup.WITH_COMMANDS,
    ),
    KeyKind(
        "control:records:refused",
        "stream",
        "refused ones of `control:records`: c record, s signature, r reason",
        "capped at about 1000 entries",
        permanent=True,
    ),
    KeyKind(
        "control:refused",
        "stream",
        "refused commands: c command, s signature, r reason, e entry of `control` if any",
        "capped at about 1000 entries",
        permanent=True,
    ),
    KeyKind("control:MINUTE", "string", "commands accepted in one minute (unix time / 60)", "2 minutes"),
    KeyKind(
        "desired",
        "hash",
        "active: per slot 1 (0: ended), its mark, signature, command; `verified:` copies; `seq`, `epoch`, `sessions`",
        "permanent",
        permanent=True,
        backup=Backup.WITH_COMMANDS,
    ),
    KeyKind(
        "desired:revisions",
        "hash",
        "per slot of `desired` the `seq` of its last change; `seq`, `pruned` (highest revision that was removed)",
        "permanent; a slot goes an hour after its command has ended",
        permanent=True,
    ),
    KeyKind("nonce:CMD", "string", "entry of a command and token of its sender", "an hour after it may be accepted"),
    KeyKind("receipts:CMD", "hash", "per worker or supervisor: ms, word, detail", "7 days"),
    KeyKind("selection:CMD", "list", "tasks that a job applies to", "until the job is done; at most 7 days"),
    KeyKind("held", "set", "scopes of the stops that hold ready tasks", "empty = gone", permanent=True),
    KeyKind(
        "held:SCOPE",
        "zset",
        "ready tasks of a stopped session or skill; same score as the queue",
        "empty = gone",
        permanent=True,
    ),
    KeyKind(
        "schedules",
        "zset",
        "schedules by next fire time in ms; paused and finished ones at infinity",
        "empty = gone",
        permanent=True,
    ),
    KeyKind(
        "schedule:NAME",
        "hash",
        "definition and history of one schedule",
        "until it is deleted",
        permanent=True,
        backup=Backup.KEPT,
    ),
    KeyKind(
        "board:DATE",
        "zset",
        "tasks that succeeded on this day (UTC), per agent",
        "8 days after the day",
        backup=Backup.UNTIL,
    ),
    KeyKind("leader", "string", "id of the leading supervisor", "`supervisor.leader_lease_s`"),
    KeyKind(
        "leader:format",
        "hash",
        "id and format of the leader; an `unknown` leader without them, and `until_ms`, when its lease would end",
        "a day after its last use",
    ),
    KeyKind(
        "supervisors",
        "zset",
        "supervisors that run: id, format and version, by the ms at which the entry ends without another request",
        "a day after its last use",
    ),
    KeyKind(
        "supervisors:requests",
        "hash",
        "number of the last request for the leader's lease, per supervisor that runs",
        "a day after its last use",
    ),
    KeyKind(
        "format", "string", "floor: the lowest format of a program that the pool admits", "permanent", permanent=True
    ),
)

_DAY: Final = "a day after its last use"
_WORKSPACE: Final = "`workspace.ttl_s` after the last change, `workspace.life_s` after the first"
SCOPE_KEYS: Final = (
    KeyKind("lock:N", "string", "owner of the named lock: fence:nonce:owner, or `next`", "that of the lock"),
    KeyKind(
        "lock:N:waiters",
        "zset",
        "waiters of the lock, by the ms until which they wait",
        "a minute after the last one gives up",
    ),
    KeyKind("lock:N:wake", "list", "one token for the client that has blocked the longest", "5 s"),
    KeyKind("exec", "string", "exclusive execution of the scope: fence:task:generation:nonce", "agent's lease"),
    KeyKind(
        "exec:fence",
        "hash",
        "per task highest generation, and the fence while it holds `exec:ID`; `live`: fence of the owner of `exec`; "
        "`kept`: ms since which no task has taken `exec`, which was kept for one",
        _DAY + "; about 100 tasks that hold no lock",
    ),
    KeyKind("exec:awaited", "set", "tasks that the holder waits for", "as long as the lock is held; at most a day"),
    KeyKind("exec:line", "zset", "tasks that wait for the lock, by arrival in us: task:pool", _DAY),
    KeyKind("exec:waiters", "zset", "as `lock:N:waiters`", "as `lock:N:waiters`"),
    KeyKind("exec:wake", "list", "as `lock:N:wake`", "5 s"),
    KeyKind("exec:ID", "string", "the attempt of a task that may change the scope: as `exec`", "agent's lease"),
    KeyKind(
        "fence",
        "string",
        "highest fence issued: at least the server's time in us",
        "30 days, sliding",
        backup=Backup.KEPT,
    ),
    KeyKind("locks", "zset", "locks by expiry in ms", _DAY),
    KeyKind(
        "meta",
        "hash",
        "rev, born, fresh, dies, items, bytes, floor, top, tail, noted, places",
        _WORKSPACE,
        backup=Backup.KEPT,
    ),
    KeyKind("ws:doc", "hash", "shared document: path -> version agent JSON", _WORKSPACE, backup=Backup.KEPT),
    KeyKind("ws:json", "ReJSON-RL", "the same as a JSON document, if `workspace.json_projection`", _WORKSPACE),
    KeyKind("ws:task", "hash", "state machines: id -> version agent state JSON", _WORKSPACE, backup=Backup.KEPT),
    KeyKind(
        "ws:parts", "hash", "versions of logs, sets, scratches and inboxes by suffix", _WORKSPACE, backup=Backup.KEPT
    ),
    KeyKind("ws:log:L", "list", "one log: number ms agent JSON", _WORKSPACE, backup=Backup.KEPT),
    KeyKind("ws:set:S", "set", "one set", _WORKSPACE, backup=Backup.KEPT),
    KeyKind(
        "ws:ev",
        "stream",
        "changes: k kind, r revision, a agent, c changes, MessagePack",
        _WORKSPACE + "; capped at about `workspace.max_events` and at `workspace.max_bytes`",
        backup=Backup.KEPT,
    ),
    KeyKind("dir", "zset", "agents of the session by the ms at which their lease ends", _WORKSPACE),
    KeyKind("dir:info", "hash", "their published info, JSON", _WORKSPACE),
    KeyKind(
        "inbox:A",
        "stream",
        "directives for an agent: k kind, a sender, d JSON; removed when acknowledged",
        _WORKSPACE,
        backup=Backup.KEPT,
    ),
    KeyKind("agent:A:kv", "hash", "scratch of one agent: as `ws:doc`", _WORKSPACE, backup=Backup.KEPT),
    KeyKind(
        "usage:MS",
        "string",
        "cost that a limit counts in a window of MS ms: the sum, then first us, last us, sum of up to 65 sub-windows",
        "window + 1 s",
        backup=Backup.UNTIL,
    ),
    KeyKind("usage:MS:ops", "hash", "up to 1000 op ids of the window -> MessagePack", "twice the window"),
    KeyKind("usage:MS:ops:before", "hash", "older op ids", "the window"),
    KeyKind(
        "window:MS",
        "zset",
        "the same below the version floor: one member `op:number` per unit, by us",
        "window + 1 s",
    ),
    KeyKind(
        "day:DATE",
        "zset",
        "scores of the members of a board on this day (UTC)",
        "8 days after the last change",
        backup=Backup.UNTIL,
    ),
    KeyKind(
        "state",
        "hash",
        "published state of an agent: field -> JSON",
        "7 days after the last change",
        backup=Backup.KEPT,
    ),
    KeyKind(
        "ops",
        "hash",
        "replies to recent changes of the scope: op id -> MessagePack",
        "20 minutes; of a workspace twice `workspace.dedup_s`",
    ),
    KeyKind("ops:before", "hash", "older replies", "10 minutes; of a workspace `workspace.dedup_s`"),
)
"""The keys of a scope: a session, an agent, a limit, a board, or the locks of a pool."""
SCOPES: Final = ("session", "agent", "locks", "limit", "board")
"""The kinds of scopes. `locks` holds the locks of a pool, in another hash slot than its tasks."""


@dataclass(frozen=True, slots=True)
class PoolKeys:
    """Builds the keys of one pool."""

    prefix: str
    pool: str
    root: str = field(init=False)

    def __post_init__(self) -> None:
        check_name("pool", self.pool)
        object.__setattr__(self, "root", f"{self.prefix}:{{pool:{self.pool}}}")

    def queue(self, queue: str) -> str:
        """Key of the queue `skill:S` or `agent:A`."""
        return f"{self.root}:queue:{queue}"

    @property
    def queues(self) -> str:
        """Key of the set of queues that are not empty."""
        return f"{self.root}:queues"

    @property
    def scheduled(self) -> str:
        """Key of the delayed and retrying tasks."""
        return f"{self.root}:scheduled"

    @property
    def asking(self) -> str:
        """Key of the tasks that wait for an answer."""
        return f"{self.root}:asking"

    @property
    def expiring(self) -> str:
        """Key of the waiting tasks that have a `start_by`."""
        return f"{self.root}:expiring"

    def parked(self, agent: str) -> str:
        """Key of the tasks addressed to an agent that lacks their skill."""
        return f"{self.root}:parked:{agent}"

    def inbox(self, agent: str) -> str:
        """Key of the inbox stream of an agent."""
        return f"{self.root}:inbox:{agent}"

    def leases(self, agent: str) -> str:
        """Key of the leases of an agent's workers."""
        return f"{self.root}:leases:{agent}"

    def offers(self, agent: str) -> str:
        """Key of the counts of what an agent's workers offer."""
        return f"{self.root}:offers:{agent}"

    def task(self, task_id: str) -> str:
        """Key of a task's record."""
        return f"{self.root}:task:{task_id}"

    def out(self, task_id: str) -> str:
        """Key of the output stream of a task; hints are published to a channel of the same name."""
        return f"{self.root}:out:{task_id}"

    def children(self, task_id: str) -> str:
        """Key of the children of a task."""
        return f"{self.root}:children:{task_id}"

    @property
    def sessions(self) -> str:
        """Key of the sessions by their last activity."""
        return f"{self.root}:sessions"

    @property
    def dropped_of_sessions(self) -> str:
        """Key of the numbers of tasks that the lists of sessions no longer have."""
        return f"{self.root}:sessions:dropped"

    def session(self, session: str) -> str:
        """Key of the tasks of a session."""
        return f"{self.root}:session:{encode_foreign('session', session)}"

    @property
    def doorbell(self) -> str:
        """Key of the stream that wakes supervisors."""
        return f"{self.root}:doorbell"

    def lane(self, lane: str) -> str:
        """Key of the tasks of a lane, with its name encoded."""
        return f"{self.root}:lane:{encode_foreign('lane', lane)}"

    def idempotency(self, key: str) -> str:
        """Key of the task with an idempotency key."""
        return f"{self.root}:idem:{encode_foreign('key', key)}"

    def limit(self, name: str) -> str:
        """Key of the starts inside the window of a limit."""
        return f"{self.root}:limit:{name}"

    @property
    def limits(self) -> str:
        """Key of the definitions of all limits."""
        return f"{self.root}:limits"

    @property
    def agents(self) -> str:
        """Key of the known agents."""
        return f"{self.root}:agents"

    def agent(self, agent: str) -> str:
        """Key of an agent's record."""
        return f"{self.root}:agent:{agent}"

    def agent_workers(self, agent: str) -> str:
        """Key of the live workers of an agent."""
        return f"{self.root}:agent:{agent}:workers"

    @staticmethod
    def is_ambiguous(agent: str) -> bool:
        """Return whether this agent's record would have the key of another agent's `agent_workers`."""
        return agent.endswith(":workers")

    @property
    def workers(self) -> str:
        """Key of the live workers."""
        return f"{self.root}:workers"

    def worker(self, worker: str) -> str:
        """Key of a worker's record."""
        return f"{self.root}:worker:{worker}"

    def silent(self, worker: str) -> str:
        """Key that tells when a worker left the registry because it sent no heartbeat."""
        return f"{self.root}:silent:{worker}"

    def notes(self, worker: str) -> str:
        """Key of the stream of urgent messages for a worker."""
        return f"{self.root}:worker:{worker}:notes"

    def room(self, skill: str) -> str:
        """Key of the agents that may have room for a skill."""
        return f"{self.root}:room:{skill}"

    def skill(self, skill: str) -> str:
        """Key of the live agents that serve a skill."""
        return f"{self.root}:skills:{skill}"

    @property
    def dead(self) -> str:
        """Key of the dead letters by time."""
        return f"{self.root}:dead"

    def replies(self, client: str) -> str:
        """Key of the reply stream of one client process."""
        return f"{self.root}:replies:{client}"

    @property
    def events(self) -> str:
        """Key of the stream of ended tasks."""
        return f"{self.root}:events"

    def stats(self, period: str) -> str:
        """Key of the counters of a period: `TOTAL`, or the unix time in minutes."""
        return f"{self.root}:stats:{period}"

    @property
    def timed(self) -> str:
        """Key of the agents and skills that have timings."""
        return f"{self.root}:timings"

    @property
    def durability(self) -> str:
        """Key of the counters of durable submits, of losses and of requests for the leader's lease."""
        return f"{self.root}:durability"

    @property
    def losses(self) -> str:
        """Key of the writes that Redis has lost."""
        return f"{self.root}:losses"

    @property
    def attempt_totals(self) -> str:
        """Key of the timings since the first attempt."""
        return f"{self.root}:timings:TOTAL"

    def timings(self, minute: int) -> str:
        """Key of the timings of one minute: the unix time in minutes."""
        return f"{self.root}:timings:{minute}"

    @property
    def control(self) -> str:
        """Key of the stream of control commands."""
        return f"{self.root}:control"

    @property
    def action_records(self) -> str:
        """Key of the stream of actions that were taken without a command."""
        return f"{self.root}:control:records"

    @property
    def refused_records(self) -> str:
        """Key of the stream of refused records of actions."""
        return f"{self.root}:control:records:refused"

    @property
    def refused_control(self) -> str:
        """Key of the stream of refused control commands."""
        return f"{self.root}:control:refused"

    @property
    def desired(self) -> str:
        """Key of the desired state: the active commands."""
        return f"{self.root}:desired"

    @property
    def desired_revisions(self) -> str:
        """Key of the revisions of the desired state."""
        return f"{self.root}:desired:revisions"

    def nonce(self, command: str) -> str:
        """Key of the replay protection of a command."""
        return f"{self.root}:nonce:{command}"

    def receipts(self, command: str) -> str:
        """Key of the receipts of a command."""
        return f"{self.root}:receipts:{command}"

    def selection(self, command: str) -> str:
        """Key of the tasks that a job applies to."""
        return f"{self.root}:selection:{command}"

    @property
    def suspended_scopes(self) -> str:
        """Key of the set of stops, and of versions of skills, that hold ready tasks."""
        return f"{self.root}:held"

    @property
    def suspected_queues(self) -> str:
        """Key of the set of queues that have suspects."""
        return f"{self.root}:suspects"

    def suspects(self, queue: str) -> str:
        """Key of the suspects of a queue."""
        return f"{self.root}:suspects:{queue}"

    def awaited(self, queue: str) -> str:
        """Key of the ready tasks of a queue that a parent waits for."""
        return f"{self.root}:awaited:{queue}"

    def lent(self, agent: str) -> str:
        """Key of the slots that an agent lends."""
        return f"{self.root}:lent:{agent}"

    def held(self, scope: str) -> str:
        """Key of the ready tasks that a stop of a session or skill, or versions of their skill, hold."""
        return f"{self.root}:held:{scope}"

    @staticmethod
    def is_version_scope(scope: str) -> bool:
        """Return whether versions of a skill, not a stop, are behind a `held` key."""
        return scope.startswith("version:")

    @property
    def version_scopes(self) -> str:
        """Key of the versions of skills that hold ready tasks."""
        return f"{self.root}:refused"

    @staticmethod
    def queue_of_scope(scope: str) -> str:
        """Return the queue of the tasks that versions of a skill hold."""
        return scope.split(":", 2)[2]

    def versions(self, skill: str) -> str:
        """Key of the versions of a skill."""
        return f"{self.root}:versions:{skill}"

    def descriptions(self, skill: str) -> str:
        """Key of the descriptions of a skill, by version."""
        return f"{self.root}:descriptions:{skill}"

    @property
    def redacted(self) -> str:
        """Key of the names of the redacted skills."""
        return f"{self.root}:redacted"

    @property
    def left_versions(self) -> str:
        """Key of the versions that no live worker has."""
        return f"{self.root}:versions"

    @staticmethod
    def stop_slot(scope: str) -> str:
        """Return the slot of the stop behind a `held` key, which has the session id encoded."""
        kind, _, name = scope.partition(":")
        try:
            return stop_slot(kind, decode_foreign(name) if kind == "session" else name)
        except InvalidInput:
            return stop_slot(kind, name)

    @property
    def schedules(self) -> str:
        """Key of the schedules by next fire time."""
        return f"{self.root}:schedules"

    def schedule(self, name: str) -> str:
        """Key of a schedule's record."""
        return f"{self.root}:schedule:{name}"

    def board(self, day: str) -> str:
        """Key of the tasks completed per agent on one day, as 2026-11-21."""
        return f"{self.root}:board:{day}"

    @property
    def leader(self) -> str:
        """Key of the lease of the leading supervisor."""
        return f"{self.root}:leader"

    @property
    def leader_format(self) -> str:
        """Key of the format of the leading supervisor."""
        return f"{self.root}:leader:format"

    @property
    def supervisor_requests(self) -> str:
        """Key of the number of the last request for the lease, per supervisor."""
        return f"{self.root}:supervisors:requests"

    @property
    def supervisors(self) -> str:
        """Key of the supervisors that run."""
        return f"{self.root}:supervisors"

    @property
    def format(self) -> str:
        """Key of the floor: the lowest format of a program that the pool admits."""
        return f"{self.root}:format"

    def scope(self, kind: str, id_: str) -> ScopeKeys:
        """Return the keys of a session, an agent, a limit or a board."""
        return ScopeKeys(self.prefix, kind, id_)

    @property
    def pool_locks(self) -> ScopeKeys:
        """Keys of the pool's locks."""
        return ScopeKeys(self.prefix, "locks", self.pool)

    @property
    def fixed(self) -> list[str]:
        """All keys without a name in them."""
        return [f"{self.root}:{kind.suffix}" for kind in POOL_KEYS if kind.suffix.rpartition(":")[2].islower()]

    @property
    def stem(self) -> str:
        """The text in front of every suffix."""
        return f"{self.root}:"

    @property
    def probe(self) -> str:
        """A key that no program writes; the doctor tests permissions with it."""
        return f"{self.root}:probe"


EXECUTION: Final = "exec"
DOCUMENT: Final = "ws:doc"
MACHINES: Final = "ws:task"
PARTS: Final = "ws:parts"
CHANGES: Final = "ws:ev"
META: Final = "meta"
AGENT_STATE: Final = "state"
"""Suffixes without a name in them."""
_LOCK, _LOG, _SET = "lock:", "ws:log:", "ws:set:"


@dataclass(frozen=True, slots=True)
class ScopeKeys:
    """Builds the keys of one scope; encodes its id.

    Raises:
        InvalidInput: an unknown kind of scope, or an invalid id.
    """

    prefix: str
    kind: str
    id: str
    root: str = field(init=False)

    def __post_init__(self) -> None:
        if self.kind not in SCOPES:
            raise InvalidInput(f"{self.kind!r} is no kind of scope; there are {', '.join(SCOPES)}")
        object.__setattr__(self, "root", f"{self.prefix}:{{{self.kind}:{encode_foreign(self.kind, self.id)}}}")

    def key(self, suffix: str) -> str:
        """Return the key with a suffix."""
        return f"{self.root}:{suffix}"

    # Suffixes, which scripts append to the root.

    @staticmethod
    def lock(name: str) -> str:
        """Return the suffix of a named lock."""
        return f"{_LOCK}{encode_foreign('lock', name)}"

    @staticmethod
    def execution(task: str | None = None) -> str:
        """Return the suffix of the execution lock of the whole scope, or of one task."""
        return EXECUTION if task is None else f"{EXECUTION}:{task}"

    @staticmethod
    def lock_name(suffix: str) -> str:
        """Return the name of a lock: decoded for a named lock, the suffix for an execution lock."""
        return decode_foreign(suffix.removeprefix(_LOCK)) if suffix.startswith(_LOCK) else suffix

    @staticmethod
    def log_part(log: str) -> str:
        """Return the suffix of a log."""
        return f"{_LOG}{encode_foreign('log', log)}"

    @staticmethod
    def set_part(name: str) -> str:
        """Return the suffix of a set."""
        return f"{_SET}{encode_foreign('set', name)}"

    @staticmethod
    def parse_part(suffix: str) -> tuple[Literal["log", "set", "other"], str]:
        """Split a suffix into the kind of workspace part and the name of the log or set."""
        if suffix.startswith(_LOG):
            return "log", decode_foreign(suffix.removeprefix(_LOG))
        if suffix.startswith(_SET):
            return "set", decode_foreign(suffix.removeprefix(_SET))
        return "other", suffix

    @staticmethod
    def scratch_part(agent: str) -> str:
        """Return the suffix of an agent's scratch."""
        return f"agent:{agent}:kv"

    @staticmethod
    def directives_part(agent: str) -> str:
        """Return the suffix of the directives for an agent."""
        return f"inbox:{agent}"

    @staticmethod
    def day_part(date: str) -> str:
        """Return the suffix of a board on one day, as 2026-11-21."""
        return f"day:{date}"

    def wake(self, lock: str) -> str:
        """Key of the list that wakes a waiter of a lock, by the suffix of the lock."""
        return f"{self.root}:{lock}:wake"


def kind_of(suffix: str) -> tuple[KeyKind, str] | None:
    """Return the kind of a key by its suffix, and the name in it; None for an unknown key."""
    for kind in POOL_KEYS:
        if suffix == kind.suffix:
            return kind, ""
    if suffix.startswith("agent:") and suffix.endswith(":workers"):
        return _KINDS["agent:A:workers"], suffix.removeprefix("agent:").removesuffix(":workers")
    if suffix.startswith("worker:") and suffix.endswith(":notes"):
        return _KINDS["worker:W:notes"], suffix.removeprefix("worker:").removesuffix(":notes")
    for kind in POOL_KEYS:
        stem, _, last = kind.suffix.rpartition(":")
        if last.isupper() and last != "TOTAL" and suffix.startswith(f"{stem}:") and suffix != f"{stem}:":
            return kind, suffix.removeprefix(f"{stem}:")
    return None


def split_key(key: str, *, prefix: str) -> tuple[str, str] | None:
    """Return the hash tag of a key, as `pool:P` or `session:S`, and its suffix; None for a key of another prefix."""
    head, end, suffix = key.partition("}:")
    stem = stem_of(prefix)
    return (head.removeprefix(stem), suffix) if end and head.startswith(stem) else None


def tag_of_pool(pool: str) -> str:
    """Return the hash tag of the keys of a pool."""
    return f"pool:{pool}"


def stem_of(prefix: str) -> str:
    """Return how all keys of a prefix begin."""
    return f"{prefix}:{{"


def tagged_root(prefix: str, tag: str) -> str:
    """Return the root of the keys with a hash tag."""
    return f"{prefix}:{{{tag}}}"


def scope_kind_of(suffix: str) -> tuple[KeyKind, str] | None:
    """Return the kind of a key of a scope by its suffix, and the name in it; None for an unknown key."""
    for kind in SCOPE_KEYS:
        if suffix == kind.suffix:
            return kind, ""
    for kind in SCOPE_KEYS:
        stem, _, end = next(
            (kind.suffix.partition(f":{word}") for word in _NAMED if f":{word}" in kind.suffix), ("",) * 3
        )
        if stem and suffix.startswith(f"{stem}:") and suffix.endswith(end):
            name = suffix[len(stem) + 1 : len(suffix) - len(end)]
            if name:
                return kind, name
    return None


_NAMED: Final = ("MS", "DATE", "ID", "A", "L", "N", "S")
"""Words in `SCOPE_KEYS` that stand for a name."""
_KINDS: Final = {kind.suffix: kind for kind in POOL_KEYS}


def is_permanent(key: str) -> bool:
    """Return whether a key of this project may have no time to live."""
    root, tag_end, suffix = key.partition("}:")
    found = kind_of(suffix) if tag_end and "{pool:" in root else None
    return found is not None and found[0].permanent
