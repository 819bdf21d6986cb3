"""The table of all kinds of Redis keys: suffix, type, content, lifetime.

Contract tests compare the suffixes in scripts with this table. `orchestrator.store.keys` builds keys from names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final


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


class Loss(Enum):
    """Consequences of the loss of a key, by an eviction or a failure. The value is the word for the reference."""

    CRITICAL = "critical"
    """No other key has it, and programs act on it: its loss loses work, or a guard such as a lock or an op id."""
    CHECKPOINTED = "checkpointed"
    """No other key has it: it comes back as the last backup or secondary storage has it."""
    RECONSTRUCTIBLE = "reconstructible"
    """Other keys have all of it: a repair makes it again."""
    RENEWED = "renewed"
    """Running programs write it again, with a heartbeat or their next call."""
    PASSING = "passing"
    """A message, or a count of the recent past: nothing makes it again, and no data depends on it."""


class Writers(IntEnum):
    """Programs whose users may change the keys of a kind. Each level has the rights of the lower ones."""

    CLIENTS = 0
    WORKERS = 1
    COMMANDERS = 2
    """Workers that may give commands, too."""
    SUPERVISORS = 3
    """Operators, too, who repair what supervisors write."""


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
        loss: what its loss means.
        writers: the lowest role that may change it (`doctor.acl`).
        guards: without it something would happen that it forbids, such as a start behind a stop. A repair never renames
            it.
    """

    suffix: str
    type: str
    holds: str
    lifetime: str
    permanent: bool = False
    backup: Backup = Backup.NOT_SAVED
    loss: Loss = field(kw_only=True)
    writers: Writers = Writers.CLIENTS
    guards: bool = False


POOL_KEYS: Final = (
    KeyKind(
        "queue:agent:A",
        "zset",
        "ready tasks of an agent; score = level x aging + time in ms",
        "empty = gone",
        permanent=True,
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "queue:skill:S",
        "zset",
        "ready tasks of a skill; same score",
        "empty = gone",
        permanent=True,
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "queues",
        "set",
        "names of the queues that are not empty",
        "empty = gone",
        permanent=True,
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "queues:bytes",
        "hash",
        "bytes of the tasks that wait, by queue; `*` for the pool",
        "empty = gone",
        permanent=True,
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "queues:full",
        "set",
        "what had reached a cap when a submit looked: queues, `*` for the bytes of the pool, `queues` for their number",
        "a day after the last one",
        loss=Loss.RENEWED,
    ),
    KeyKind(
        "scheduled",
        "zset",
        "delayed and retrying tasks by due ms",
        "empty = gone",
        permanent=True,
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "asking",
        "zset",
        "tasks that wait for an answer, by the deadline of the question in ms; infinity without one",
        "empty = gone",
        permanent=True,
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "joining",
        "zset",
        "tasks that wait for tasks that they join, by the deadline in ms; infinity without one",
        "empty = gone",
        permanent=True,
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "joins:ID",
        "zset",
        "tasks that task ID joins and that have not ended; score = order of the call of `join`",
        "until the join is over; a day longer than its task may wait",
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "after",
        "zset",
        "tasks of flows that wait for their predecessors, by the ms of their submit or retry",
        "empty = gone",
        permanent=True,
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "after:ID",
        "zset",
        "predecessors of task ID that have not ended; score 1: it runs also after their failure",
        "until the last one has ended; a day longer than a task may wait",
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "ends",
        "list",
        "ended tasks whose followers are to be told: id, state, place of the next one, seconds for which it is kept",
        "empty = gone",
        permanent=True,
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "cancelling",
        "list",
        "tasks whose children are to be cancelled: id, children that have been looked at, reason; the last one is next",
        "empty = gone",
        permanent=True,
        backup=Backup.KEPT,
        loss=Loss.CRITICAL,
    ),
    KeyKind(
        "expiring",
        "zset",
        "waiting tasks that have a `start_by`, by that ms",
        "empty = gone",
        permanent=True,
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "parked:A",
        "zset",
        "tasks addressed to agent A whose skill A lacks; same score as the queue",
        "empty = gone",
        permanent=True,
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "suspects",
        "set",
        "names of the queues that have suspects",
        "empty = gone",
        permanent=True,
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "suspects:QUEUE",
        "zset",
        "ready tasks that died more than once and wait for a worker process with room; same score as the queue",
        "empty = gone",
        permanent=True,
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "awaited:QUEUE",
        "zset",
        "ready tasks that a parent waits for; score = minus the depth",
        "a minute after the last wait was recorded",
        loss=Loss.RENEWED,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "lent:A",
        "hash",
        "slots that agent A lends: depth of the parents that wait, number of them",
        "empty = gone; a day after the last change",
        loss=Loss.RECONSTRUCTIBLE,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "inbox:A",
        "stream, group `workers`",
        "t task, g generation, a attempt and d deaths (omitted for a first attempt), e envelope (empty above 16 KiB)",
        "entries are deleted when finished; the stream an hour after the agent's last worker, when empty",
        permanent=True,
        loss=Loss.RECONSTRUCTIBLE,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "task:ID",
        "hash",
        "record of a task",
        "`queue.max_wait_s` while it waits, its result TTL after the end",
        backup=Backup.WITH_TASK,
        loss=Loss.CRITICAL,
    ),
    KeyKind(
        "out:ID",
        "stream",
        "progress, output and events of a task that emits or is followed; also the channel of hints about new entries",
        "as its task; capped at about `output.max_chunks` entries",
        backup=Backup.WITH_TASK,
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind(
        "children:ID",
        "list",
        "the newest 100,000 children of a task, oldest first",
        "with the task, when it is deleted; else as long as the last child may wait and its result is kept",
        backup=Backup.WITH_TASK,
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind(
        "sessions",
        "zset",
        "sessions by the ms of their last submit or end of a task",
        "capped at about 10,000 sessions",
        permanent=True,
        backup=Backup.KEPT,
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind(
        "sessions:dropped",
        "hash",
        "per session the number of tasks that its list no longer has",
        "with the session; empty = gone",
        permanent=True,
        backup=Backup.KEPT,
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind(
        "session:S",
        "list",
        "the newest 1000 tasks of a session, oldest first",
        "with its session in `sessions`; at most as long as its last task may wait and its result is kept",
        backup=Backup.KEPT,
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind(
        "tag:T",
        "zset",
        "tasks with a tag, by the ms of their submit",
        "an entry as long as its task, and until a submit with the tag or a scan finds it; empty = gone",
        permanent=True,
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "doorbell",
        "stream",
        "queues and agents that changed",
        "capped at about 1000 entries",
        permanent=True,
        loss=Loss.PASSING,
    ),
    KeyKind(
        "limits",
        "hash",
        "definition of each limit: starts, window in microseconds",
        "permanent",
        permanent=True,
        backup=Backup.KEPT,
        loss=Loss.RENEWED,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "limit:NAME",
        "zset",
        "starts inside the window, by grant time in microseconds; the last returned start at infinity",
        "window + 1 s",
        backup=Backup.UNTIL,
        loss=Loss.CRITICAL,
    ),
    KeyKind(
        "providers",
        "hash",
        "limits of the calls of each provider: requests, their window in us, tokens, their window, calls at once; "
        "`shared` if pools share them",
        "permanent",
        permanent=True,
        loss=Loss.RENEWED,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "blocked:NAME",
        "hash",
        "what keeps calls from a provider: throttled, quota and broken, each the end in ms (0: none), the ms of the "
        "beginning, who told it and why; trial: the ms until which a call tries it, and the call; cleared: the ms of a "
        "command that clears a provider that pools share",
        "a minute after the latest end; 31 days after the last change if broken; a century while the quota has no end",
        backup=Backup.KEPT,
        loss=Loss.CRITICAL,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "provider:usage:NAME",
        "hash",
        "sums of requests and tokens of a provider by window, as `usage:MS`; failures in a row, and how often it was "
        "broken",
        "32 days after the last call",
        loss=Loss.CRITICAL,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "provider:leases:NAME",
        "zset",
        "calls of a provider, by the us at which their lease ends",
        "an hour after the last lease",
        loss=Loss.CRITICAL,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "provider:calls:NAME",
        "hash",
        "call of a provider that runs -> reserved tokens, the us at which they count, who calls",
        "an hour after the last lease",
        loss=Loss.CRITICAL,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "lane:KEY",
        "zset",
        "open tasks of a lane, in order; the first one has the turn",
        "empty = gone",
        permanent=True,
        loss=Loss.RECONSTRUCTIBLE,
        guards=True,
    ),
    KeyKind(
        "budgets",
        "set",
        "names of the budgets",
        "until they are deleted",
        permanent=True,
        backup=Backup.KEPT,
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind(
        "budget:B",
        "hash",
        "limit, spent, held: usd tokens calls seconds, in millionths, `-` for no limit; soft, per, day, other (a day "
        "and what was spent on it), at_hard, lost",
        "until it is deleted",
        permanent=True,
        backup=Backup.KEPT,
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind(
        "holds:B",
        "hash",
        "what attempts hold of a budget: task:generation -> settled calls;number amounts;...",
        "empty = gone",
        permanent=True,
        backup=Backup.KEPT,
        loss=Loss.CRITICAL,
    ),
    KeyKind(
        "share:wait:FLOW",
        "zset",
        "waiting tasks of a key in a queue at a rank, best first; one stands in the queue, unless the key rests",
        "empty = gone",
        permanent=True,
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "share:line:LINE",
        "zset",
        "keys that take turns in a queue at a rank, by start tag",
        "a day after a key joined, or after a repair saw tasks of it waiting",
        loss=Loss.PASSING,
    ),
    KeyKind(
        "share:taken:KEY",
        "set",
        "tasks of a key that are with agents, without those that wait for their children",
        "empty = gone",
        permanent=True,
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "share:rest:KEY",
        "set",
        "flows of a key that wait until fewer of its tasks run",
        "empty = gone",
        permanent=True,
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "share:flows",
        "set",
        "flows that hold waiting tasks",
        "empty = gone",
        permanent=True,
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "share:keys",
        "zset",
        "number of waiting and running tasks of each key",
        "empty = gone",
        permanent=True,
        loss=Loss.PASSING,
    ),
    KeyKind(
        "share:queues",
        "zset",
        "number of tasks of a queue that wait behind others of their keys",
        "empty = gone",
        permanent=True,
        loss=Loss.PASSING,
    ),
    KeyKind(
        "idem:KEY",
        "string",
        "task id and digest of the body",
        "as long as its task",
        backup=Backup.WITH_TASK,
        loss=Loss.CRITICAL,
        guards=True,
    ),
    KeyKind(
        "agents",
        "zset",
        "known agents by last heartbeat in ms",
        "an hour after the last heartbeat",
        permanent=True,
        loss=Loss.RENEWED,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "agent:A",
        "hash",
        "slots, backlog, skills, versions, limits, leases, terms, funds, mark, looked, swept, grace, rest",
        "an hour after the last heartbeat; a day when no supervisor runs",
        loss=Loss.RENEWED,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "leases:A",
        "hash",
        "lease in ms of each worker that is registered or has entries in the inbox",
        "with the consumer of the worker; empty = gone",
        permanent=True,
        loss=Loss.RENEWED,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "agent:A:workers",
        "hash",
        "per worker: slots, requested backlog, skills",
        "as `agent:A`",
        loss=Loss.RENEWED,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "offers:A",
        "hash",
        "counts of its workers: all, live, slots, those without backlog; per skill, version and lease",
        "as `agent:A`",
        loss=Loss.RENEWED,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "workers",
        "zset",
        "live workers by last heartbeat in ms",
        "heartbeat x 4 after the last heartbeat",
        permanent=True,
        loss=Loss.RENEWED,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "worker:W",
        "hash",
        "host, pid, version, start, alive_s, settings, last block of the loop, refusal by the leader; per agent "
        "slots, lent slots, versions, signature of the registration",
        "heartbeat x 4 after the last heartbeat; an hour more when no supervisor runs",
        loss=Loss.RENEWED,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "crew:W",
        "string",
        "ms, entries, and counts of what a dead worker ran: fresh prior limited deepest at_deepest",
        "a minute",
        loss=Loss.PASSING,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "worker:W:notes",
        "stream",
        "urgent messages for a worker: k kind, t task or agent, g generation",
        "a minute after the last note; capped at about 1000 entries",
        loss=Loss.PASSING,
    ),
    KeyKind(
        "silent:W",
        "string",
        "ms at which a worker without heartbeats left the registry",
        "7 days",
        loss=Loss.PASSING,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "skills:S",
        "zset",
        "live agents with the skill",
        "empty = gone",
        permanent=True,
        loss=Loss.RENEWED,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "room:S",
        "zset",
        "agents with the skill that may have room, by the us of the last look of `dispatch`; 0: none yet",
        "empty = gone",
        permanent=True,
        loss=Loss.RENEWED,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "versions:S",
        "hash",
        "versions of the skill: agent and digest -> ms of the first registration, names of the arguments",
        "a week after the last worker with the version",
        permanent=True,
        loss=Loss.RENEWED,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "descriptions:S",
        "hash",
        "per version of the skill (digest) docstring and schemas in JSON of at most 16 KiB; `ms:DIGEST`: its time",
        "8 days after a worker last described it, at its start or after a day",
        loss=Loss.RENEWED,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "redacted",
        "set",
        "names of the skills that a worker has declared redacted",
        "permanent",
        permanent=True,
        backup=Backup.KEPT,
        loss=Loss.CRITICAL,
        writers=Writers.WORKERS,
        guards=True,
    ),
    KeyKind(
        "versions",
        "zset",
        "versions that no live worker has: agent, skill and digest, by the ms since when",
        "a week; at most about 1000",
        permanent=True,
        loss=Loss.RECONSTRUCTIBLE,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "refused",
        "zset",
        "the scopes of versions in `held`, by the ms since when",
        "empty = gone",
        permanent=True,
        loss=Loss.RECONSTRUCTIBLE,
        writers=Writers.WORKERS,
    ),
    KeyKind("dead", "zset", "dead letters by time in ms", "`results.dead_ttl_s`", loss=Loss.RECONSTRUCTIBLE),
    KeyKind(
        "replies:C",
        "stream",
        "results for a client; C is the last group of its task ids",
        "an hour after the last reply; capped at about 1000 entries",
        loss=Loss.PASSING,
    ),
    KeyKind(
        "events",
        "stream",
        "ended tasks, one entry per batch",
        "trimmed to about `results.max_events` tasks; capped at about 20,000 entries",
        permanent=True,
        loss=Loss.PASSING,
    ),
    KeyKind(
        "stats:TOTAL",
        "hash",
        "counters since the beginning",
        "permanent",
        permanent=True,
        backup=Backup.KEPT,
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind("stats:MINUTE", "hash", "the same counters of one minute (unix time / 60)", "3 days", loss=Loss.PASSING),
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
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind(
        "losses",
        "hash",
        "writes that Redis has lost, per report: observer, ms when it noticed, ms of a lost write, submits",
        "a day after the last report; at most 200",
        loss=Loss.PASSING,
    ),
    KeyKind(
        "timings",
        "zset",
        "agent and skill of `timings:MINUTE`, by the last minute; at most 200",
        "a day after the last attempt",
        loss=Loss.PASSING,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "timings:MINUTE",
        "hash",
        "per agent and skill the attempts that ended in one minute (unix time / 60): MessagePack, cell, count, ...",
        "a day",
        loss=Loss.PASSING,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "timings:TOTAL",
        "hash",
        "the same counters per agent and skill since the first attempt, and recent running times; at most 201",
        "30 days after the last attempt; a name as in `timings`",
        loss=Loss.PASSING,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "control",
        "stream",
        "commands: c command, s signature",
        "capped at about 10,000 entries",
        permanent=True,
        backup=Backup.WITH_COMMANDS,
        loss=Loss.CHECKPOINTED,
        writers=Writers.COMMANDERS,
    ),
    KeyKind(
        "control:records",
        "stream",
        "actions without a command: c record, s signature",
        "capped at about 5000 entries",
        permanent=True,
        backup=Backup.WITH_COMMANDS,
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind(
        "control:records:refused",
        "stream",
        "refused ones of `control:records`: c record, s signature, r reason",
        "capped at about 1000 entries",
        permanent=True,
        loss=Loss.PASSING,
    ),
    KeyKind(
        "control:refused",
        "stream",
        "refused commands: c command, s signature, r reason, e entry of `control` if any",
        "capped at about 1000 entries",
        permanent=True,
        loss=Loss.PASSING,
        writers=Writers.COMMANDERS,
    ),
    KeyKind(
        "control:records:nonce:CMD",
        "string",
        "entry of a record and token of its sender",
        "an hour after it may be accepted",
        loss=Loss.CRITICAL,
    ),
    KeyKind(
        "control:MINUTE", "string", "commands accepted in one minute (unix time / 60)", "2 minutes", loss=Loss.PASSING
    ),
    KeyKind(
        "desired",
        "hash",
        "active: per slot 1 (0: ended), its mark, signature, command; `verified:` copies; `seq`, `epoch`, `sessions`",
        "permanent",
        permanent=True,
        backup=Backup.WITH_COMMANDS,
        loss=Loss.CRITICAL,
        writers=Writers.COMMANDERS,
        guards=True,
    ),
    KeyKind(
        "desired:revisions",
        "hash",
        "per slot of `desired` the `seq` of its last change; `seq`, `pruned` (highest revision that was removed)",
        "permanent; a slot goes an hour after its command has ended",
        permanent=True,
        loss=Loss.CRITICAL,
        writers=Writers.COMMANDERS,
        guards=True,
    ),
    KeyKind(
        "nonce:CMD",
        "string",
        "entry of a command and token of its sender",
        "an hour after it may be accepted",
        loss=Loss.CRITICAL,
        guards=True,
        writers=Writers.COMMANDERS,
    ),
    KeyKind(
        "receipts:CMD",
        "hash",
        "per worker or supervisor: ms, word, detail",
        "7 days",
        loss=Loss.PASSING,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "web:users",
        "hash",
        "users of the dashboard: name -> JSON of role, hash of the password, its number, time",
        "permanent",
        permanent=True,
        backup=Backup.KEPT,
        loss=Loss.CRITICAL,
        writers=Writers.SUPERVISORS,
    ),
    KeyKind(
        "web:tokens",
        "hash",
        "tokens of the dashboard's API: SHA-256 of the token -> JSON of name, role, times",
        "permanent; an entry until it is revoked",
        permanent=True,
        loss=Loss.CRITICAL,
        writers=Writers.SUPERVISORS,
    ),
    KeyKind(
        "web:key",
        "string",
        "number that is part of the key of the dashboard's session cookies",
        "permanent",
        permanent=True,
        loss=Loss.RENEWED,
        writers=Writers.SUPERVISORS,
    ),
    KeyKind(
        "web:link:HASH",
        "string",
        "one-time login, by the hash of its secret",
        "10 minutes",
        loss=Loss.PASSING,
        writers=Writers.SUPERVISORS,
    ),
    KeyKind(
        "web:request:HASH",
        "string",
        "request of the HTTP API or its answer, by a hash of sender and `Idempotency-Key`: JSON: hash, id, answer",
        "an hour; its answer a day",
        loss=Loss.PASSING,
        writers=Writers.SUPERVISORS,
    ),
    KeyKind(
        "selection:CMD",
        "list",
        "tasks that a job applies to",
        "a day after the end of the job, then the first 1000; at most 7 days",
        loss=Loss.CRITICAL,
        writers=Writers.SUPERVISORS,
        guards=True,
    ),
    KeyKind(
        "held",
        "set",
        "scopes of the stops that hold ready tasks",
        "empty = gone",
        permanent=True,
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "held:SCOPE",
        "zset",
        "ready tasks of a stopped session or skill; same score as the queue",
        "empty = gone",
        permanent=True,
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "schedules",
        "zset",
        "schedules by next fire time in ms; paused and finished ones at infinity",
        "empty = gone",
        permanent=True,
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "schedule:NAME",
        "hash",
        "definition and history of one schedule",
        "until it is deleted",
        permanent=True,
        backup=Backup.KEPT,
        loss=Loss.CRITICAL,
    ),
    KeyKind(
        "board:DATE",
        "zset",
        "tasks that succeeded on this day (UTC), per agent",
        "8 days after the day",
        backup=Backup.UNTIL,
        loss=Loss.CHECKPOINTED,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "failed_starts",
        "hash",
        "per agent whose lifespan failed: number of failures in a row, ms of the last one, skills, error, as JSON",
        "10 minutes after the last failure",
        loss=Loss.PASSING,
        writers=Writers.WORKERS,
    ),
    KeyKind(
        "leader",
        "string",
        "id of the leading supervisor",
        "`supervisor.leader_lease_s`",
        loss=Loss.RENEWED,
        writers=Writers.SUPERVISORS,
        guards=True,
    ),
    KeyKind(
        "leader:format",
        "hash",
        "id and format of the leader; an `unknown` leader without them, and `until_ms`, when its lease would end",
        "a day after its last use",
        loss=Loss.RENEWED,
        writers=Writers.SUPERVISORS,
        guards=True,
    ),
    KeyKind(
        "supervisors",
        "zset",
        "supervisors that run: id, format and version, by the ms at which the entry ends without another request",
        "a day after its last use",
        loss=Loss.RENEWED,
        writers=Writers.SUPERVISORS,
    ),
    KeyKind(
        "supervisors:requests",
        "hash",
        "per supervisor that runs: number of its last request for the leader's lease, name of its key",
        "a day after its last use",
        loss=Loss.RENEWED,
        writers=Writers.SUPERVISORS,
    ),
    KeyKind(
        "format",
        "string",
        "floor: the lowest format of a program that the pool admits",
        "permanent",
        permanent=True,
        loss=Loss.CRITICAL,
        guards=True,
        writers=Writers.SUPERVISORS,
    ),
    KeyKind(
        "mistyped:KEY",
        "any",
        "a key of the pool that had another type: its suffix, and the us at which a repair renamed it",
        "30 days, or as long as it had before",
        loss=Loss.PASSING,
        writers=Writers.WORKERS,
    ),
)

_DAY: Final = "a day after its last use"
_WORKSPACE: Final = "`workspace.ttl_s` after the last change, `workspace.life_s` after the first"
_CHAT_LIFE: Final = "`chat.ttl_s` after the last change, `chat.life_s` after the first"
_CHAT: Final = (
    KeyKind(
        "chats",
        "hash",
        "sources of the chats of the session -> ms at which their last key ends",
        "as the last of its chats",
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "chat:SRC:meta",
        "hash",
        "rev, edited, base, count, bytes, tokens, trimmed, born, fresh, dies, saved, cleared, lost, summed, own, "
        "version; user fields as `u:NAME`; numbers of extracted messages as `x:AGENT/SKILL`",
        _CHAT_LIFE,
        backup=Backup.KEPT,
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind(
        "chat:SRC:q",
        "list",
        "messages, oldest first: number, revision, version, tokens, ms, id, turn, subject, tool calls, JSON",
        _CHAT_LIFE + "; capped at `chat.max_messages` and `chat.max_bytes`",
        backup=Backup.KEPT,
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind("chat:SRC:id", "hash", "message id -> its number", _CHAT_LIFE, loss=Loss.RECONSTRUCTIBLE),
    KeyKind(
        "chat:SRC:sum",
        "hash",
        "summary of the oldest messages: text, upto, version",
        "`chat.summary_ttl_s` after its last change",
        backup=Backup.KEPT,
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind(
        "chat:SRC:gone",
        "hash",
        "what a second storage still has of removed messages: revision of a clear, lowest number and revision of pops",
        "until the next save, at most `chat.summary_ttl_s` after the last removal",
        backup=Backup.KEPT,
        loss=Loss.CHECKPOINTED,
    ),
)
_TIER: Final = "as the record that lives longest"


def _tier_kinds(tier: str) -> tuple[KeyKind, ...]:
    return (
        KeyKind(
            f"{tier}:rec",
            "hash",
            "content of each record: id -> JSON",
            _TIER,
            backup=Backup.KEPT,
            loss=Loss.CHECKPOINTED,
        ),
        KeyKind(
            f"{tier}:hdr",
            "hash",
            "header of each record: id -> MessagePack",
            _TIER,
            backup=Backup.KEPT,
            loss=Loss.CHECKPOINTED,
        ),
        KeyKind(f"{tier}:meta", "hash", "bytes of the records", _TIER, loss=Loss.RECONSTRUCTIBLE),
        KeyKind(f"{tier}:time", "zset", "records by step", _TIER, loss=Loss.RECONSTRUCTIBLE),
        KeyKind(f"{tier}:imp", "zset", "records by importance", _TIER, loss=Loss.RECONSTRUCTIBLE),
        KeyKind(f"{tier}:kind:K", "zset", "records of a kind by step", _TIER, loss=Loss.RECONSTRUCTIBLE),
        KeyKind(
            f"{tier}:act:X",
            "zset",
            "records of an action by step",
            _TIER,
            loss=Loss.RECONSTRUCTIBLE,
        ),
        KeyKind(
            f"{tier}:subj:U",
            "zset",
            "records about a person by step",
            _TIER,
            loss=Loss.RECONSTRUCTIBLE,
        ),
        KeyKind(
            f"{tier}:cell:C",
            "zset",
            "records in a cell of the plane by step",
            _TIER,
            loss=Loss.RECONSTRUCTIBLE,
        ),
        KeyKind(
            f"{tier}:exp",
            "zset",
            "records by the ms of their end",
            _TIER,
            loss=Loss.RECONSTRUCTIBLE,
        ),
        KeyKind(
            f"{tier}:acc",
            "hash",
            "reads of each record: id -> count, ms of the last",
            _TIER,
            backup=Backup.KEPT,
            loss=Loss.PASSING,
        ),
    )


_MEMORY: Final = (
    *_tier_kinds("stm"),
    *_tier_kinds("im"),
    KeyKind(
        "ltm:out",
        "stream",
        "records on their way to long-term storage",
        "entries are deleted when stored; `memory.outbox_ttl_s` after the last offload",
        backup=Backup.KEPT,
        loss=Loss.CRITICAL,
    ),
    KeyKind(
        "ltm:ids",
        "hash",
        "record id -> its entry in `ltm:out`",
        "as `ltm:out`",
        loss=Loss.CHECKPOINTED,
        backup=Backup.KEPT,
    ),
    KeyKind(
        "ltm:gone",
        "zset",
        "entries of `ltm:out` whose records were deleted before long-term storage had them, by ms",
        "a day",
        loss=Loss.PASSING,
    ),
    KeyKind(
        "sim:pending",
        "hash",
        "changes of the indices of simulations that are still to be made: simulation and record id -> MessagePack; "
        "without a name the number of the last one",
        "a week after the last change, at least as the record",
        backup=Backup.KEPT,
        loss=Loss.CRITICAL,
    ),
    KeyKind("forget:F", "list", "records that a `forget` applies to: id and version", "an hour", loss=Loss.PASSING),
    KeyKind(
        "emb",
        "hash",
        "vector of each record that has one: id -> its number (8 bytes, a double), then 32-bit floats, little-endian",
        _TIER,
        backup=Backup.KEPT,
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind(
        "emb:meta",
        "hash",
        "space of the vectors (dimensions and embedder), and the number of changes of `emb`",
        _TIER,
        backup=Backup.KEPT,
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind("emb:log", "list", "the newest 1024 records whose vector changed, oldest first", _TIER, loss=Loss.PASSING),
    KeyKind(
        "vec",
        "vectorset",
        "index of the vectors: NUMBER:ID with kind, action and step",
        _TIER,
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "vec:new:B",
        "vectorset",
        "vector set that a program builds, to replace `vec`",
        "an hour after its first vector",
        loss=Loss.PASSING,
    ),
    KeyKind(
        "vec:pending",
        "hash",
        "changes of `vec` that are still to be made: NUMBER:ID -> `add` or `rem`",
        "a week after the last change",
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind("lsh:B", "set", "records whose vectors fall into one bucket of a table", _TIER, loss=Loss.RECONSTRUCTIBLE),
    KeyKind("lshrev", "hash", "buckets of each record: id -> one code per table", _TIER, loss=Loss.RECONSTRUCTIBLE),
)
_RUN: Final = "`memory.simulation_ttl_s` after the last change; at least as the state that lives longest"
_SIMULATION: Final = (
    KeyKind(
        "agents",
        "zset",
        "agents of the simulation by their last step",
        _RUN,
        backup=Backup.KEPT,
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind("states", "zset", "states by step", _RUN, backup=Backup.KEPT, loss=Loss.CHECKPOINTED),
    KeyKind(
        "counts",
        "hash",
        "number of states of each agent, and of each agent and type",
        _RUN,
        backup=Backup.KEPT,
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind(
        "type:T:agents", "zset", "agents of a type by their last step", _RUN, backup=Backup.KEPT, loss=Loss.CHECKPOINTED
    ),
    KeyKind(
        "type:T:states", "zset", "states of agents of a type by step", _RUN, backup=Backup.KEPT, loss=Loss.CHECKPOINTED
    ),
    KeyKind("place:C", "set", "states in a cell of the plane", _RUN, backup=Backup.KEPT, loss=Loss.CHECKPOINTED),
    KeyKind(
        "of",
        "hash",
        "state -> number of its last change, step, type, cell, x, y, as MessagePack; a removed one keeps its number "
        "for an hour",
        _RUN,
        backup=Backup.KEPT,
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind("gone", "zset", "removed states that `of` still has, by the ms of their removal", _RUN, loss=Loss.PASSING),
    KeyKind(
        "buf:E", "list", "buffered data of an entity, JSON; capped", _RUN, backup=Backup.KEPT, loss=Loss.CHECKPOINTED
    ),
)
_COUNTED: Final = "30 days after the last change; about 200 bytes per chat"
_ACCOUNTS: Final = (
    KeyKind("chat", "hash", "bytes and messages of all chats of a tenant", _COUNTED, loss=Loss.RENEWED),
    KeyKind("chat:seen", "zset", "chats of a tenant by the ms of their end", _COUNTED, loss=Loss.RENEWED),
    KeyKind("chat:sizes", "hash", "chat of a tenant -> its bytes and messages", _COUNTED, loss=Loss.RENEWED),
    KeyKind(
        "places",
        "zset",
        "scopes that may hold text about a person, by the ms at which that ends",
        "as the last of them",
        backup=Backup.KEPT,
        loss=Loss.CRITICAL,
    ),
    KeyKind(
        "erased",
        "zset",
        "hashes of people whose text the scope refuses, by the ms at which that ends; `all` in the scope of a person",
        "20 minutes after the last erasure",
        loss=Loss.CRITICAL,
    ),
)
SCOPE_KEYS: Final = (
    KeyKind(
        "lock:N",
        "string",
        "owner of the named lock: fence:nonce:owner, or `next`",
        "that of the lock",
        loss=Loss.CRITICAL,
    ),
    KeyKind(
        "lock:N:waiters",
        "zset",
        "waiters of the lock, by the ms until which they wait",
        "a minute after the last one gives up",
        loss=Loss.RENEWED,
    ),
    KeyKind(
        "lock:N:order",
        "zset",
        "waiters that listen for the hint of their turn, by arrival in us",
        "as `lock:N:waiters`",
        loss=Loss.RENEWED,
    ),
    KeyKind("lock:N:wake", "list", "one token for a waiter that does not listen", "5 s", loss=Loss.PASSING),
    KeyKind(
        "exec",
        "string",
        "exclusive execution of the scope: fence:task:generation:nonce",
        "agent's lease",
        loss=Loss.CRITICAL,
    ),
    KeyKind(
        "exec:fence",
        "hash",
        "per task highest generation, and the fence while it holds `exec:ID`; `live`: fence of the owner of `exec`; "
        "`kept`: ms since which no task has taken `exec`, which was kept for one",
        _DAY + "; about 100 tasks that hold no lock",
        loss=Loss.CRITICAL,
    ),
    KeyKind(
        "exec:awaited",
        "set",
        "tasks that the holder waits for",
        "as long as the lock is held; at most a day",
        loss=Loss.CRITICAL,
    ),
    KeyKind("exec:line", "zset", "tasks that wait for the lock, by arrival in us: task:pool", _DAY, loss=Loss.RENEWED),
    KeyKind("exec:waiters", "zset", "as `lock:N:waiters`", "as `lock:N:waiters`", loss=Loss.RENEWED),
    KeyKind("exec:order", "zset", "as `lock:N:order`", "as `lock:N:waiters`", loss=Loss.RENEWED),
    KeyKind("exec:wake", "list", "as `lock:N:wake`", "5 s", loss=Loss.PASSING),
    KeyKind(
        "exec:ID",
        "string",
        "the attempt of a task that may change the scope: as `exec`",
        "agent's lease",
        loss=Loss.CRITICAL,
    ),
    KeyKind(
        "fence",
        "string",
        "highest fence issued: at least the server's time in us",
        "30 days, sliding",
        backup=Backup.KEPT,
        loss=Loss.CRITICAL,
    ),
    KeyKind("locks", "zset", "locks by expiry in ms", _DAY, loss=Loss.RECONSTRUCTIBLE),
    KeyKind(
        "meta",
        "hash",
        "rev, born, fresh, dies, items, bytes, floor, top, tail, noted, places",
        _WORKSPACE,
        backup=Backup.KEPT,
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind(
        "ws:doc",
        "hash",
        "shared document: path -> version agent JSON",
        _WORKSPACE,
        backup=Backup.KEPT,
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind(
        "ws:json",
        "ReJSON-RL",
        "the same as a JSON document, if `workspace.json_projection`",
        _WORKSPACE,
        loss=Loss.RECONSTRUCTIBLE,
    ),
    KeyKind(
        "ws:task",
        "hash",
        "state machines: id -> version agent state JSON",
        _WORKSPACE,
        backup=Backup.KEPT,
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind(
        "ws:parts",
        "hash",
        "versions of logs, sets, scratches and inboxes by suffix",
        _WORKSPACE,
        backup=Backup.KEPT,
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind(
        "ws:log:L", "list", "one log: number ms agent JSON", _WORKSPACE, backup=Backup.KEPT, loss=Loss.CHECKPOINTED
    ),
    KeyKind("ws:set:S", "set", "one set", _WORKSPACE, backup=Backup.KEPT, loss=Loss.CHECKPOINTED),
    KeyKind(
        "ws:ev",
        "stream",
        "changes: k kind, r revision, a agent, c changes, MessagePack",
        _WORKSPACE + "; capped at about `workspace.max_events` and at `workspace.max_bytes`",
        backup=Backup.KEPT,
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind("dir", "zset", "agents of the session by the ms at which their lease ends", _WORKSPACE, loss=Loss.RENEWED),
    KeyKind("dir:info", "hash", "their published info, JSON", _WORKSPACE, loss=Loss.RENEWED),
    KeyKind(
        "inbox:A",
        "stream",
        "directives for an agent: k kind, a sender, d JSON; removed when acknowledged",
        _WORKSPACE,
        backup=Backup.KEPT,
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind(
        "agent:A:kv",
        "hash",
        "scratch of one agent: as `ws:doc`",
        _WORKSPACE,
        backup=Backup.KEPT,
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind(
        "usage:MS",
        "string",
        "cost that a limit counts in a window of MS ms: the sum, then first us, last us, sum of up to 65 sub-windows",
        "window + 1 s",
        backup=Backup.UNTIL,
        loss=Loss.CRITICAL,
    ),
    KeyKind(
        "usage:MS:ops", "hash", "up to 1000 op ids of the window -> MessagePack", "twice the window", loss=Loss.CRITICAL
    ),
    KeyKind("usage:MS:ops:before", "hash", "older op ids", "the window", loss=Loss.CRITICAL),
    KeyKind(
        "window:MS",
        "zset",
        "the same below the version floor: one member `op:number` per unit, by us",
        "window + 1 s",
        loss=Loss.CRITICAL,
    ),
    KeyKind(
        "blocked:N",
        "hash",
        "what keeps calls of all pools from a provider that they share, as `blocked:NAME` of a pool",
        "as `blocked:NAME` of a pool",
        backup=Backup.KEPT,
        loss=Loss.CRITICAL,
    ),
    KeyKind(
        "provider:usage:N",
        "hash",
        "usage of a provider that pools share, as `provider:usage:NAME` of a pool",
        "32 days after the last call",
        loss=Loss.CRITICAL,
    ),
    KeyKind(
        "provider:leases:N",
        "zset",
        "calls of all pools, by the us at which their lease ends",
        "an hour after the last lease",
        loss=Loss.CRITICAL,
    ),
    KeyKind(
        "provider:calls:N",
        "hash",
        "calls of all pools, as `provider:calls:NAME` of a pool",
        "an hour after the last lease",
        loss=Loss.CRITICAL,
    ),
    KeyKind(
        "day:DATE",
        "zset",
        "scores of the members of a board on this day (UTC)",
        "8 days after the last change",
        backup=Backup.UNTIL,
        loss=Loss.CHECKPOINTED,
    ),
    KeyKind(
        "state",
        "hash",
        "published state of an agent: field -> JSON",
        "7 days after the last change",
        backup=Backup.KEPT,
        loss=Loss.CHECKPOINTED,
    ),
    *_CHAT,
    *_MEMORY,
    *_SIMULATION,
    *_ACCOUNTS,
    KeyKind(
        "ops",
        "hash",
        "replies to recent changes of the scope: op id -> MessagePack",
        "20 minutes; of a workspace twice `workspace.dedup_s`",
        loss=Loss.CRITICAL,
    ),
    KeyKind(
        "ops:before", "hash", "older replies", "10 minutes; of a workspace `workspace.dedup_s`", loss=Loss.CRITICAL
    ),
)
"""The keys of a scope: a session, the owner of a memory, a limit, a board, or the locks of a pool."""
MEMORIES: Final = ("agent", "user", "domain", "global")
"""The kinds of scopes that have a memory."""
SCOPES: Final = ("session", *MEMORIES, "locks", "limit", "board", "sim", "usage", "subject")
"""The kinds of scopes.

`user`, `domain` and `global` hold memories that agents share; `global` has one scope, `global:all`.

`locks` holds the locks of a pool, in another hash slot than its tasks; `sim` the indices of a simulation; `usage` the
counts of a tenant; `subject` where records about a person are.
"""


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


def scope_kind_of(suffix: str) -> tuple[KeyKind, str] | None:
    """Return the kind of a key of a scope by its suffix, and the name in it; None for an unknown key."""
    found: tuple[KeyKind, str] | None = None
    for kind in SCOPE_KEYS:
        if suffix == kind.suffix:
            return kind, ""
        stem, _, end = next(
            (kind.suffix.partition(f":{word}") for word in _NAMED if f":{word}" in kind.suffix), ("",) * 3
        )
        if stem and suffix.startswith(f"{stem}:") and suffix.endswith(end):
            name = suffix[len(stem) + 1 : len(suffix) - len(end)]
            # Of `lock:N` and `lock:N:waiters`, the one that leaves less for the name.
            if name and (found is None or len(name) < len(found[1])):
                found = kind, name
    return found


_NAMED: Final = ("MS", "DATE", "ID", "SRC", "A", "B", "C", "E", "F", "K", "L", "N", "S", "T", "U", "X")
"""Words in `SCOPE_KEYS` that stand for a name."""
_KINDS: Final = {kind.suffix: kind for kind in POOL_KEYS}


def is_permanent(key: str) -> bool:
    """Return whether a key of this project may have no time to live."""
    root, tag_end, suffix = key.partition("}:")
    found = kind_of(suffix) if tag_end and "{pool:" in root else None
    return found is not None and found[0].permanent
