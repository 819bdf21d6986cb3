"""Builds and splits the names of Redis keys; `orchestrator.store.key_kinds` has the table of all kinds.

A key is `{prefix}:{{pool:P}}:resource[:sub]`. The inner braces are the cluster hash tag: all keys of a pool share one
hash slot. Shared state and locks use one hash slot per session or owner of a memory (`{{session:S}}`, `{{agent:A}}`,
`{{user:U}}`, `{{domain:D}}`, `{{global:all}}`). A script gets the part up to the closing brace (`root`) as its only
declared key and appends the suffixes. Contract tests forbid keys that are built elsewhere in Python.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import check_name, decode_foreign, encode_foreign
from orchestrator.core.slots import stop_slot
from orchestrator.store.key_kinds import POOL_KEYS, SCOPES


@dataclass(frozen=True, slots=True)
class ProviderKeys:
    """Builds the keys of providers: of a pool, or of the scope of a limit that pools share."""

    root: str = field(init=False)

    def blocked(self, name: str) -> str:
        """Key of what keeps calls from a provider."""
        return f"{self.root}:blocked:{name}"

    def provider_usage(self, name: str) -> str:
        """Key of the usage of a provider."""
        return f"{self.root}:provider:usage:{name}"

    def provider_leases(self, name: str) -> str:
        """Key of the leases of the calls of a provider."""
        return f"{self.root}:provider:leases:{name}"

    def provider_calls(self, name: str) -> str:
        """Key of the calls of a provider."""
        return f"{self.root}:provider:calls:{name}"


@dataclass(frozen=True, slots=True)
class PoolKeys(ProviderKeys):
    """Builds the keys of one pool."""

    prefix: str
    pool: str

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
    def queue_bytes(self) -> str:
        """Key of the bytes of the tasks that wait, by queue."""
        return f"{self.root}:queues:bytes"

    @property
    def asking(self) -> str:
        """Key of the tasks that wait for an answer."""
        return f"{self.root}:asking"

    @property
    def joining(self) -> str:
        """Key of the tasks that wait for tasks that they join."""
        return f"{self.root}:joining"

    def joins(self, task_id: str) -> str:
        """Key of the tasks that a task joins and that have not ended."""
        return f"{self.root}:joins:{task_id}"

    @property
    def awaiting_tasks(self) -> str:
        """Key of the tasks of flows that wait for their predecessors."""
        return f"{self.root}:after"

    def after(self, task_id: str) -> str:
        """Key of the predecessors of a task that have not ended."""
        return f"{self.root}:after:{task_id}"

    @property
    def ends(self) -> str:
        """Key of the ended tasks whose followers are to be told."""
        return f"{self.root}:ends"

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
    def cancelling(self) -> str:
        """Key of the cancelled tasks whose children are to be cancelled."""
        return f"{self.root}:cancelling"

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

    def tag(self, tag: str) -> str:
        """Key of the tasks with a tag."""
        return f"{self.root}:tag:{encode_foreign('tag', tag)}"

    @property
    def doorbell(self) -> str:
        """Key of the stream that wakes supervisors."""
        return f"{self.root}:doorbell"

    def lane(self, lane: str) -> str:
        """Key of the tasks of a lane, with its name encoded."""
        return f"{self.root}:lane:{encode_foreign('lane', lane)}"

    def share_line(self, line: str) -> str:
        """Key of the keys that take turns in a line: a queue and a rank, joined by a colon."""
        return f"{self.root}:share:line:{line}"

    def share_flow(self, flow: str) -> str:
        """Key of the waiting tasks of a flow: queue, rank and encoded key, joined by colons."""
        return f"{self.root}:share:wait:{flow}"

    def share_taken(self, key: str) -> str:
        """Key of the running tasks of a key, which is encoded here."""
        return f"{self.root}:share:taken:{encode_foreign('key', key)}"

    @property
    def share_keys(self) -> str:
        """Key of the sums of waiting and running tasks by key."""
        return f"{self.root}:share:keys"

    @property
    def share_flows(self) -> str:
        """Key of the set of flows that hold waiting tasks."""
        return f"{self.root}:share:flows"

    @property
    def share_queues(self) -> str:
        """Key of the sums by queue of tasks that wait behind others of their keys."""
        return f"{self.root}:share:queues"

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
    def providers(self) -> str:
        """Key of the limits of the calls of all providers."""
        return f"{self.root}:providers"

    def of_limit(self, name: str) -> list[str]:
        """Keys with the name of a limit."""
        calls = [self.provider_usage(name), self.provider_leases(name), self.provider_calls(name)]
        return [self.limit(name), self.blocked(name), *calls]

    @property
    def failed_starts(self) -> str:
        """Key of the agents whose lifespans failed."""
        return f"{self.root}:failed_starts"

    @property
    def agents(self) -> str:
        """Key of the known agents."""
        return f"{self.root}:agents"

    def agent(self, agent: str) -> str:
        """Key of an agent's record."""
        return f"{self.root}:agent:{agent}"

    @property
    def web_users(self) -> str:
        """Key of the users of the dashboard."""
        return f"{self.root}:web:users"

    @property
    def web_tokens(self) -> str:
        """Key of the tokens of the dashboard's API."""
        return f"{self.root}:web:tokens"

    @property
    def web_key(self) -> str:
        """Key of the secret that signs session cookies."""
        return f"{self.root}:web:key"

    def web_link(self, digest: str) -> str:
        """Key of a one-time link, by the hash of its secret."""
        return f"{self.root}:web:link:{digest}"

    def web_request(self, digest: str) -> str:
        """Key of the answer to a request of the API, by the hash of its sender and its `Idempotency-Key`."""
        return f"{self.root}:web:request:{digest}"

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

    def control_rate(self, minute: int) -> str:
        """Key of the number of commands in one minute: the unix time in minutes."""
        return f"{self.root}:control:{minute}"

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

    def record_nonce(self, record: str) -> str:
        """Key of the replay protection of an action without a command; clients may write it."""
        return f"{self.root}:control:records:nonce:{record}"

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

    @staticmethod
    def budget_scope(name: str) -> str:
        """Return the scope of the tasks that wait for a budget, as in a `held` key."""
        return f"budget:{name}"

    @staticmethod
    def is_budget_scope(scope: str) -> bool:
        """Return whether a budget, not a stop, is behind a `held` key."""
        return scope.startswith("budget:")

    @property
    def budgets(self) -> str:
        """Key of the names of the budgets."""
        return f"{self.root}:budgets"

    def budget(self, name: str) -> str:
        """Key of a budget."""
        return f"{self.root}:budget:{name}"

    def holds(self, name: str) -> str:
        """Key of what attempts hold of a budget."""
        return f"{self.root}:holds:{name}"

    @property
    def version_scopes(self) -> str:
        """Key of the versions of skills that hold ready tasks."""
        return f"{self.root}:refused"

    @staticmethod
    def queue_of_scope(scope: str) -> str:
        """Return the queue of the tasks that versions of a skill hold; empty if no program wrote the scope."""
        return "".join(scope.split(":", 2)[2:])

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

    def of_agent(self, agent: str) -> list[str]:
        """Keys with the name of an agent, without its limits."""
        queue = f"agent:{agent}"
        registered = [self.agent(agent), self.agent_workers(agent), self.offers(agent), self.leases(agent)]
        return [*registered, self.lent(agent), self.inbox(agent), self.parked(agent), *self._of_queue(queue)]

    def of_skill(self, skill: str) -> list[str]:
        """Keys with the name of a skill."""
        registered = [self.skill(skill), self.room(skill), self.versions(skill), self.descriptions(skill)]
        return [*registered, *self._of_queue(f"skill:{skill}")]

    def _of_queue(self, queue: str) -> list[str]:
        return [self.queue(queue), self.suspects(queue), self.awaited(queue)]

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
DIRECTORY: Final = "dir"
META: Final = "meta"
AGENT_STATE: Final = "state"
CHATS: Final = "chats"
OUTBOX: Final = "ltm:out"
PENDING: Final = "sim:pending"
VECTORS: Final = "emb"
VECTORS_META: Final = "emb:meta"
VECTORS_LOG: Final = "emb:log"
VECTOR_SET: Final = "vec"
VECTORS_PENDING: Final = "vec:pending"
CODES: Final = "lshrev"
PLACES: Final = "places"
"""Suffixes without a name in them."""
_LOCK, _LOG, _SET = "lock:", "ws:log:", "ws:set:"
_INBOX, _SCRATCH = "inbox:", ("agent:", ":kv")


GLOBAL: Final = "global"
GLOBAL_ID: Final = "all"
"""Kind and id of the one scope that all programs of a prefix share."""


@dataclass(frozen=True, slots=True)
class ScopeKeys(ProviderKeys):
    """Builds the keys of one scope; encodes its id.

    Raises:
        InvalidInput: an unknown kind of scope, or an invalid id.
    """

    prefix: str
    kind: str
    id: str

    def __post_init__(self) -> None:
        if self.kind not in SCOPES:
            raise InvalidInput(f"{self.kind!r} is no kind of scope; there are {', '.join(SCOPES)}")
        object.__setattr__(self, "root", f"{self.prefix}:{{{self.kind}:{encode_foreign(self.kind, self.id)}}}")

    @property
    def words(self) -> str:
        """The scope for people, as `agent 'ada'`."""
        return scope_words(self.kind, self.id)

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

    @classmethod
    def split_part(cls, suffix: str) -> tuple[Literal["log", "set", "scratch", "inbox", "other"], str]:
        """Split a suffix into the kind of part and its name: of a log or set, or the agent of a scratch or inbox.

        A name that no program writes stays encoded.
        """
        if suffix.startswith(_INBOX):
            return "inbox", suffix.removeprefix(_INBOX)
        if suffix.startswith(_SCRATCH[0]) and suffix.endswith(_SCRATCH[1]):
            return "scratch", suffix.removeprefix(_SCRATCH[0]).removesuffix(_SCRATCH[1])
        try:
            return cls.parse_part(suffix)
        except InvalidInput:
            return ("log" if suffix.startswith(_LOG) else "set"), suffix.removeprefix(_LOG).removeprefix(_SET)

    @staticmethod
    def scratch_part(agent: str) -> str:
        """Return the suffix of an agent's scratch."""
        return f"{_SCRATCH[0]}{agent}{_SCRATCH[1]}"

    @staticmethod
    def directives_part(agent: str) -> str:
        """Return the suffix of the directives for an agent."""
        return f"{_INBOX}{agent}"

    @staticmethod
    def day_part(date: str) -> str:
        """Return the suffix of a board on one day, as 2026-11-21."""
        return f"day:{date}"

    @staticmethod
    def chat_part(source: str, part: str) -> str:
        """Return the suffix of a part (`meta`, `q`, `id`, `sum`, `gone`) of the chat with a source."""
        return f"chat:{encode_foreign('source', source)}:{part}"

    @staticmethod
    def tier_part(tier: str, part: str) -> str:
        """Return the suffix of a part (`rec`, `hdr`, `time`, ...) of a tier of memory."""
        return f"{tier}:{part}"

    @staticmethod
    def kind_part(tier: str, kind: str) -> str:
        """Return the suffix of the records of a kind."""
        return f"{tier}:kind:{encode_foreign('kind', kind)}"

    @staticmethod
    def action_part(tier: str, action: str) -> str:
        """Return the suffix of the records of an action."""
        return f"{tier}:act:{encode_foreign('action', action)}"

    @staticmethod
    def subject_part(tier: str, subject: str) -> str:
        """Return the suffix of the records about a person."""
        return f"{tier}:subj:{encode_foreign('subject', subject)}"

    @staticmethod
    def bucket_part(table: int, code: int) -> str:
        """Return the suffix of a bucket of vectors."""
        return f"lsh:{table}.{code}"

    @staticmethod
    def type_part(type_: str, part: str) -> str:
        """Return the suffix of the `agents` or `states` of a type in a simulation."""
        return f"type:{encode_foreign('type', type_)}:{part}"

    @staticmethod
    def place_part(cell: str) -> str:
        """Return the suffix of the states in a cell of a simulation."""
        return f"place:{cell}"

    @staticmethod
    def buffer_part(entity: str) -> str:
        """Return the suffix of the buffer of an entity in a simulation."""
        return f"buf:{encode_foreign('entity', entity)}"

    def wake(self, lock: str) -> str:
        """Key of the list that wakes a waiter of a lock, by the suffix of the lock."""
        return f"{self.root}:{lock}:wake"


def scope_words(kind: str, id_: str) -> str:
    """Return a scope for people, as `agent 'ada'`."""
    return f"the {GLOBAL} scope" if kind == GLOBAL else f"{kind} {id_!r}"


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
