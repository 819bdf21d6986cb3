"""Every Redis key of the project: its name, its type, how long it lives. Python builds keys here and nowhere else.

A key is `{prefix}:{{pool:P}}:resource[:sub]`; the inner braces are the cluster hash tag, so all keys of a pool share
one slot. Shared state and locks lie in slots of their own, one for each session or agent: `{{session:S}}`,
`{{agent:A}}`. Scripts receive the part up to the closing brace (`root`) as their one declared key and append the same
suffixes; a contract test holds the suffixes in the scripts against the table below.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import check_name, decode_foreign, encode_foreign
from orchestrator.core.slots import stop_slot


@dataclass(frozen=True, slots=True)
class KeyKind:
    """One kind of key.

    Attributes:
        suffix: what follows the root; a capital letter at the end stands for a name.
        type: the Redis type.
        holds: what is in it.
        lifetime: how it goes away.
        permanent: True if such a key may exist without a time to live.
    """

    suffix: str
    type: str
    holds: str
    lifetime: str
    permanent: bool = False


POOL_KEYS: Final = (
    KeyKind(
        "queue:agent:A",
        "zset",
        "ready tasks for one agent; score = level x aging + time in ms",
        "empty = gone",
        permanent=True,
    ),
    KeyKind(
        "queue:skill:S", "zset", "ready tasks for whoever has the skill; same score", "empty = gone", permanent=True
    ),
    KeyKind("queues", "set", "names of the queues that are not empty", "empty = gone", permanent=True),
    KeyKind("scheduled", "zset", "delayed and retrying tasks by due ms", "empty = gone", permanent=True),
    KeyKind(
        "asking",
        "zset",
        "tasks that wait for a person's answer, by the deadline of their question in ms; at infinity without one",
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
    KeyKind(
        "inbox:A",
        "stream, group `workers`",
        "t task, g generation, a attempt and d deaths (not of a first attempt), e envelope (empty above 16 KiB)",
        "entries are deleted when finished; the stream an hour after the agent's last worker, when empty",
        permanent=True,
    ),
    KeyKind(
        "task:ID", "hash", "the truth about one task", "`queue.max_wait_s` while it waits, its result TTL after the end"
    ),
    KeyKind(
        "out:ID",
        "stream",
        "progress, output and life of one task that emits or is followed; also the channel that hints at new entries",
        "as its task; capped at about `output.max_chunks` entries",
    ),
    KeyKind("doorbell", "stream", "which queue or agent changed", "capped at about 1000 entries", permanent=True),
    KeyKind("limits", "hash", "definition of each limit: starts, window in microseconds", "permanent", permanent=True),
    KeyKind(
        "limit:NAME",
        "zset",
        "starts inside the window, by grant time in microseconds; at infinity the time of a returned last one",
        "window + 1 s",
    ),
    KeyKind(
        "lane:KEY",
        "zset",
        "tasks of one lane that have not ended, in their order; the first one has the turn",
        "empty = gone",
        permanent=True,
    ),
    KeyKind("idem:KEY", "string", "task id and digest of the body", "as long as its task"),
    KeyKind(
        "agents", "zset", "known agents by last heartbeat in ms", "an hour after the last heartbeat", permanent=True
    ),
    KeyKind(
        "agent:A",
        "hash",
        "slots, backlog, skills, limits, lease, terms, mark, looked, swept, grace, rest",
        "an hour after the last heartbeat; a day when no supervisor runs",
    ),
    KeyKind("agent:A:workers", "hash", "per worker: slots, wished backlog, skills", "as `agent:A`"),
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
        "host, pid, version, start, slots per agent",
        "heartbeat x 4 after the last heartbeat; an hour more when no supervisor runs",
    ),
    KeyKind(
        "worker:W:notes",
        "stream",
        "what one worker should hear at once: k kind, t task, g generation",
        "a minute after the last note; capped at about 1000 entries",
    ),
    KeyKind("skills:S", "zset", "live agents that serve the skill", "empty = gone", permanent=True),
    KeyKind("dead", "zset", "dead letters by time in ms", "`results.dead_ttl_s`"),
    KeyKind(
        "replies:C",
        "stream",
        "results for one client; C is the last group of its tasks' ids",
        "an hour after the last reply; capped at about 1000 entries",
    ),
    KeyKind("events", "stream", "ends of tasks, one entry per batch", "capped at about 1000 entries", permanent=True),
    KeyKind("stats:TOTAL", "hash", "counters since the beginning", "permanent", permanent=True),
    KeyKind("stats:MINUTE", "hash", "the same counters of one minute (unix time / 60)", "3 days"),
    KeyKind("control", "stream", "commands: c command, s signature", "capped at about 10,000 entries", permanent=True),
    KeyKind(
        "control:refused",
        "stream",
        "commands that were refused: c command, s signature, r why, e entry of `control` if it has one",
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
    ),
    KeyKind("nonce:CMD", "string", "entry of a command and token of its sender", "an hour after it may be accepted"),
    KeyKind("receipts:CMD", "hash", "per worker or supervisor: ms, word, detail", "7 days"),
    KeyKind("selection:CMD", "list", "tasks that a job is for", "until it is done; 7 days"),
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
        "schedules by next fire time in ms; paused ones, and those that fire no more, at infinity",
        "empty = gone",
        permanent=True,
    ),
    KeyKind("schedule:NAME", "hash", "definition and history of one schedule", "until it is deleted", permanent=True),
    KeyKind(
        "board:DATE", "zset", "tasks that ended with a result on this day (UTC), per agent", "8 days after the day"
    ),
    KeyKind("leader", "string", "id of the supervisor that leads", "`supervisor.leader_lease_s`"),
    KeyKind("format", "string", "version of the data format", "permanent", permanent=True),
)

_DAY: Final = "a day after its last use"
_WORKSPACE: Final = "`workspace.ttl_s` after the last change, `workspace.life_s` after the first"
SCOPE_KEYS: Final = (
    KeyKind("lock:N", "string", "who has the named lock: fence:nonce:owner, or `next`", "the lock's own"),
    KeyKind("lock:N:waiters", "zset", "who waits for it, by the ms until which", "a minute after they have given up"),
    KeyKind("lock:N:wake", "list", "one token for whoever has been blocked the longest", "5 s"),
    KeyKind(
        "exec", "string", "the execution that has the scope for itself: fence:task:generation:nonce", "agent's lease"
    ),
    KeyKind("exec:fence", "hash", "highest generation per task; `live`: fence of the present owner", _DAY),
    KeyKind("exec:awaited", "set", "tasks that the holder waits for", "as long as the holder has it; a day"),
    KeyKind("exec:waiters", "zset", "as `lock:N:waiters`", "as `lock:N:waiters`"),
    KeyKind("exec:wake", "list", "as `lock:N:wake`", "5 s"),
    KeyKind("exec:ID", "string", "the attempt of a task that may change the scope: as `exec`", "agent's lease"),
    KeyKind("exec:ID:fence", "hash", "as `exec:fence`, of one task", _DAY),
    KeyKind(
        "fence", "string", "the highest fence number given out: at least the server's time in us", "30 days, sliding"
    ),
    KeyKind("locks", "zset", "locks by the ms at which they lapse", _DAY),
    KeyKind(
        "meta",
        "hash",
        "rev, born, fresh, dies, items, bytes, floor, top, tail, noted, places",
        _WORKSPACE,
    ),
    KeyKind("ws:doc", "hash", "shared document: path -> version agent JSON", _WORKSPACE),
    KeyKind("ws:json", "ReJSON-RL", "the same as one JSON document, if `workspace.json_projection`", _WORKSPACE),
    KeyKind("ws:task", "hash", "state machines: id -> version agent state JSON", _WORKSPACE),
    KeyKind(
        "ws:parts", "hash", "logs, sets, scratches and inboxes by what follows the root -> their version", _WORKSPACE
    ),
    KeyKind("ws:log:L", "list", "one log: number ms agent JSON", _WORKSPACE),
    KeyKind("ws:set:S", "set", "one set", _WORKSPACE),
    KeyKind(
        "ws:ev",
        "stream",
        "what changed: k kind, r revision, a agent, c changes, MessagePack",
        _WORKSPACE + "; capped at about `workspace.max_events` and at `workspace.max_bytes`",
    ),
    KeyKind("dir", "zset", "agents of the session by the ms at which their lease ends", _WORKSPACE),
    KeyKind("dir:info", "hash", "what they say of themselves, JSON", _WORKSPACE),
    KeyKind(
        "inbox:A",
        "stream",
        "directives for one agent: k kind, a by whom, d JSON; removed when acknowledged",
        _WORKSPACE,
    ),
    KeyKind("agent:A:kv", "hash", "scratch of one agent: as `ws:doc`", _WORKSPACE),
    KeyKind(
        "window:MS", "zset", "what a limit has counted in a window of so many ms, by us; `op:number`", "window + 1 s"
    ),
    KeyKind("day:DATE", "zset", "what members have on a board on this day (UTC)", "8 days after the last change"),
    KeyKind("state", "hash", "what an agent says of itself: field -> JSON", "7 days after the last change"),
    KeyKind(
        "ops",
        "hash",
        "replies to recent changes of the scope: op id -> MessagePack",
        "20 minutes; of a workspace twice `workspace.dedup_s`",
    ),
    KeyKind("ops:before", "hash", "older replies", "10 minutes; of a workspace `workspace.dedup_s`"),
)
"""The keys of a scope: of a session, of an agent, or of a pool's own locks."""
SCOPES: Final = ("session", "agent", "locks", "limit", "board")
"""The kinds of scopes; `locks` are those of a pool, in another slot than its tasks; each limit, each board has one."""


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
        """The queue called `skill:S` or `agent:A`."""
        return f"{self.root}:queue:{queue}"

    @property
    def queues(self) -> str:
        """Names of the queues that are not empty."""
        return f"{self.root}:queues"

    @property
    def scheduled(self) -> str:
        """Delayed and retrying tasks."""
        return f"{self.root}:scheduled"

    @property
    def asking(self) -> str:
        """Tasks that wait for a person's answer."""
        return f"{self.root}:asking"

    @property
    def expiring(self) -> str:
        """Waiting tasks that have a `start_by`."""
        return f"{self.root}:expiring"

    def parked(self, agent: str) -> str:
        """Tasks addressed to an agent that lacks their skill."""
        return f"{self.root}:parked:{agent}"

    def inbox(self, agent: str) -> str:
        """The inbox stream of an agent."""
        return f"{self.root}:inbox:{agent}"

    def task(self, task_id: str) -> str:
        """The record of a task."""
        return f"{self.root}:task:{task_id}"

    def out(self, task_id: str) -> str:
        """Progress, output and life of a task; the channel that hints at new entries has the same name."""
        return f"{self.root}:out:{task_id}"

    @property
    def doorbell(self) -> str:
        """The stream that wakes supervisors."""
        return f"{self.root}:doorbell"

    def lane(self, lane: str) -> str:
        """The tasks of one lane; its name is encoded here."""
        return f"{self.root}:lane:{encode_foreign('lane', lane)}"

    def limit(self, name: str) -> str:
        """Starts inside the window of one limit."""
        return f"{self.root}:limit:{name}"

    @property
    def limits(self) -> str:
        """Definitions of all limits."""
        return f"{self.root}:limits"

    @property
    def agents(self) -> str:
        """Known agents."""
        return f"{self.root}:agents"

    def agent(self, agent: str) -> str:
        """What is known of one agent."""
        return f"{self.root}:agent:{agent}"

    def agent_workers(self, agent: str) -> str:
        """The live workers of one agent."""
        return f"{self.root}:agent:{agent}:workers"

    @staticmethod
    def is_ambiguous(agent: str) -> bool:
        """Whether the record of an agent with this name would be the `agent_workers` of another."""
        return agent.endswith(":workers")

    @property
    def workers(self) -> str:
        """Live workers."""
        return f"{self.root}:workers"

    def worker(self, worker: str) -> str:
        """What is known of one worker."""
        return f"{self.root}:worker:{worker}"

    def notes(self, worker: str) -> str:
        """What one worker should hear at once."""
        return f"{self.root}:worker:{worker}:notes"

    def skill(self, skill: str) -> str:
        """Live agents that serve a skill."""
        return f"{self.root}:skills:{skill}"

    @property
    def dead(self) -> str:
        """Dead letters by time."""
        return f"{self.root}:dead"

    def replies(self, client: str) -> str:
        """The reply stream of one client process."""
        return f"{self.root}:replies:{client}"

    @property
    def events(self) -> str:
        """Ends of tasks."""
        return f"{self.root}:events"

    def stats(self, period: str) -> str:
        """Counters: `TOTAL`, or the unix time in minutes."""
        return f"{self.root}:stats:{period}"

    @property
    def control(self) -> str:
        """The stream of commands."""
        return f"{self.root}:control"

    @property
    def refused_control(self) -> str:
        """The stream of commands that were refused."""
        return f"{self.root}:control:refused"

    @property
    def desired(self) -> str:
        """What is active."""
        return f"{self.root}:desired"

    def nonce(self, command: str) -> str:
        """That a command was seen."""
        return f"{self.root}:nonce:{command}"

    def receipts(self, command: str) -> str:
        """Who has received a command, and what came of it."""
        return f"{self.root}:receipts:{command}"

    def selection(self, command: str) -> str:
        """The tasks that a job is for."""
        return f"{self.root}:selection:{command}"

    @property
    def suspended_scopes(self) -> str:
        """The scopes of the stops that hold ready tasks."""
        return f"{self.root}:held"

    def held(self, scope: str) -> str:
        """Ready tasks of a stopped session or skill."""
        return f"{self.root}:held:{scope}"

    @staticmethod
    def stop_slot(scope: str) -> str:
        """The slot of the stop whose tasks are kept under `held`; in that key the id of a session is encoded."""
        kind, _, name = scope.partition(":")
        try:
            return stop_slot(kind, decode_foreign(name) if kind == "session" else name)
        except InvalidInput:
            return stop_slot(kind, name)

    @property
    def schedules(self) -> str:
        """Schedules by next fire time."""
        return f"{self.root}:schedules"

    def schedule(self, name: str) -> str:
        """The record of one schedule."""
        return f"{self.root}:schedule:{name}"

    def board(self, day: str) -> str:
        """Tasks done per agent on one day, as 2026-11-21."""
        return f"{self.root}:board:{day}"

    @property
    def leader(self) -> str:
        """The lease of the leading supervisor."""
        return f"{self.root}:leader"

    @property
    def format(self) -> str:
        """The version of the data format."""
        return f"{self.root}:format"

    def scope(self, kind: str, id_: str) -> ScopeKeys:
        """The keys of a session, an agent, a limit or a board."""
        return ScopeKeys(self.prefix, kind, id_)

    @property
    def pool_locks(self) -> ScopeKeys:
        """The keys of the pool's own locks."""
        return ScopeKeys(self.prefix, "locks", self.pool)

    @property
    def fixed(self) -> list[str]:
        """The keys without a name in them."""
        return [f"{self.root}:{kind.suffix}" for kind in POOL_KEYS if kind.suffix.rpartition(":")[2].islower()]

    @property
    def stem(self) -> str:
        """The beginning of every key of the pool, in front of its suffix."""
        return f"{self.root}:"

    @property
    def probe(self) -> str:
        """A key that no program writes; the doctor tries rights with it."""
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
    """Builds the keys of one scope; `id` is what others call it, encoded here.

    Raises:
        InvalidInput: no such kind of scope, or an id that no key can hold.
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
        """A key by what follows the root."""
        return f"{self.root}:{suffix}"

    # Scripts get the root and one of these suffixes.

    @staticmethod
    def lock(name: str) -> str:
        """The suffix of a named lock."""
        return f"{_LOCK}{encode_foreign('lock', name)}"

    @staticmethod
    def execution(task: str | None = None) -> str:
        """The suffix of the execution lock of the whole scope, or of one task."""
        return EXECUTION if task is None else f"{EXECUTION}:{task}"

    @staticmethod
    def lock_name(suffix: str) -> str:
        """The name of a named lock by its suffix; an execution lock goes by its suffix."""
        return decode_foreign(suffix.removeprefix(_LOCK)) if suffix.startswith(_LOCK) else suffix

    @staticmethod
    def log_part(log: str) -> str:
        """The suffix of a log."""
        return f"{_LOG}{encode_foreign('log', log)}"

    @staticmethod
    def set_part(name: str) -> str:
        """The suffix of a set."""
        return f"{_SET}{encode_foreign('set', name)}"

    @staticmethod
    def parse_part(suffix: str) -> tuple[Literal["log", "set", "other"], str]:
        """Which part of a workspace a suffix belongs to, and the name of the log or set."""
        if suffix.startswith(_LOG):
            return "log", decode_foreign(suffix.removeprefix(_LOG))
        if suffix.startswith(_SET):
            return "set", decode_foreign(suffix.removeprefix(_SET))
        return "other", suffix

    @staticmethod
    def scratch_part(agent: str) -> str:
        """The suffix of an agent's scratch."""
        return f"agent:{agent}:kv"

    @staticmethod
    def directives_part(agent: str) -> str:
        """The suffix of the directives for an agent."""
        return f"inbox:{agent}"

    @staticmethod
    def day_part(date: str) -> str:
        """The suffix of a board on one day, as 2026-11-21."""
        return f"day:{date}"

    def wake(self, lock: str) -> str:
        """The list that wakes a waiter of a lock; `lock` is its suffix."""
        return f"{self.root}:{lock}:wake"


def kind_of(suffix: str) -> tuple[KeyKind, str] | None:
    """Which kind of key this is, by what follows the root, and the name in it; None: none of ours."""
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


_KINDS: Final = {kind.suffix: kind for kind in POOL_KEYS}


def is_permanent(key: str) -> bool:
    """Whether a key of ours may exist without a time to live."""
    root, tag_end, suffix = key.partition("}:")
    found = kind_of(suffix) if tag_end and "{pool:" in root else None
    return found is not None and found[0].permanent
