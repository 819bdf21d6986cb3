"""Reads the final state of a pool from Redis after all actors have ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.payload import decode_json
from orchestrator.store.key_kinds import is_permanent
from orchestrator.tasks.model import Envelope, TaskState
from orchestrator.tasks.records import TaskRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import redis

    from orchestrator.store.keys import PoolKeys

_BATCH: Final = 500


@dataclass(frozen=True, slots=True)
class StoredTask:
    """Record of a task.

    Attributes:
        op: its argument `op`, if any.
        errors: stored text of each failed attempt, by attempt.
        death_notes: evidence of each death, by number.
        blamed: deaths that count, because the task was the only suspect of its process.
        forgiven: failures and deaths before it was requeued, which do not count any more.
        result: as JSON.
    """

    id: str
    state: str
    generation: int
    skill: str = ""
    op: str | None = None
    key: str | None = None
    priority: int = 2
    fails: int = 0
    deaths: int = 0
    blamed: int = 0
    reason: str = ""
    result: str | None = None
    ended_ms: int | None = None
    start_by: bool = False
    lane: str | None = None
    errors: Mapping[int, str] = field(default_factory=dict)
    death_notes: Mapping[int, str] = field(default_factory=dict)
    forgiven: tuple[int, int] = (0, 0)

    @property
    def ended(self) -> bool:
        """True if the state is final."""
        return self.state in _FINAL


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """One entry of a task's output stream."""

    entry: str
    kind: str
    generation: int
    number: int


@dataclass(frozen=True, slots=True)
class StoredKey:
    """One key: `length` is its size, `has_ttl` tells if it has a time to live."""

    type: str
    length: int
    has_ttl: bool
    permanent: bool


@dataclass(frozen=True, slots=True)
class StoredInbox:
    """One inbox: entries, pending entries and consumers."""

    entries: int
    pending: int
    consumers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FinalState:
    """Stored state of a pool, with keys relative to the root.

    Attributes:
        root: prefix of all keys.
        dead: index of dead letters.
        outputs: output streams by task, oldest entry first.
        ends: ends in the capped stream of events, in order.
    """

    root: str = ""
    tasks: Mapping[str, StoredTask] = field(default_factory=dict)
    outputs: Mapping[str, Sequence[StoredChunk]] = field(default_factory=dict)
    dead: frozenset[str] = frozenset()
    keys: Mapping[str, StoredKey] = field(default_factory=dict)
    inboxes: Mapping[str, StoredInbox] = field(default_factory=dict)
    ends: Sequence[tuple[str, str]] = ()

    @property
    def unended(self) -> list[str]:
        """Tasks that have not ended."""
        return [task.id for task in self.tasks.values() if not task.ended]


_FINAL: Final = frozenset(state.value for state in TaskState if state.final)
_STATE_OF_LETTER: Final = {state[0]: state for state in _FINAL}
_LENGTH: Final = {"hash": "HLEN", "list": "LLEN", "set": "SCARD", "stream": "XLEN", "string": "STRLEN", "zset": "ZCARD"}


def read_final_state(direct: redis.Redis, keys: PoolKeys) -> FinalState:
    """Read everything of a pool with a scan of its keys; for test pools."""
    root = f"{keys.root}:"
    found = _read_keys(direct, root)
    stem = keys.task("").removeprefix(root)
    tasks = {name.removeprefix(stem): root + name for name in found if name.startswith(stem)}
    stem = keys.out("").removeprefix(root)
    outs = {name.removeprefix(stem): root + name for name in found if name.startswith(stem)}
    stem = keys.inbox("").removeprefix(root)
    inboxes = [name.removeprefix(stem) for name in found if name.startswith(stem)]
    records = _ask(direct, [("HGETALL", key) for key in tasks.values()])
    chunks = _ask(direct, [("EVAL", _RANGE, 1, key, "-") for key in outs.values()])
    return FinalState(
        root=root,
        tasks={id_: read_record(id_, record) for id_, record in zip(tasks, records, strict=True) if record},
        outputs={id_: [_chunk(*row) for row in rows] for id_, rows in zip(outs, chunks, strict=True)},
        dead=frozenset(id_.decode() for id_ in _ask(direct, [("ZRANGE", keys.dead, 0, -1)])[0]),
        keys=found,
        inboxes={agent: _read_inbox(direct, keys.inbox(agent)) for agent in inboxes},
        ends=[(id_, state) for _, ends in read_ends(direct, keys, "-") for id_, state in ends],
    )


def read_ends(direct: redis.Redis, keys: PoolKeys, after: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Read the stream of events: entry ids with ended tasks and their states.

    Args:
        direct: any client.
        keys: of the pool.
        after: `-` for all, `(ID` for the entries after one.
    """
    # By a script, because redis-py returns an entry as a mapping and would hide a repeated end.
    entries: Any = direct.eval(_RANGE, 1, keys.events, after)
    return [
        (
            entry.decode(),
            [
                (id_.decode(), _STATE_OF_LETTER[letter.decode()])
                for id_, letter in zip(fields[::2], fields[1::2], strict=True)
            ],
        )
        for entry, fields in entries
    ]


_RANGE: Final = "return redis.call('XRANGE', KEYS[1], ARGV[1], '+')"


def read_record(id_: str, record: Mapping[bytes, bytes]) -> StoredTask:
    """Build a task from its record."""
    stored = TaskRecord(id_, {name.decode(): value for name, value in record.items()})
    # A damaged envelope gives no skill, so that a checker sees it.
    envelope = stored.envelope if stored.envelope.args else Envelope("", b"{}")
    args = decode_json(envelope.args)
    op = args.get("op") if isinstance(args, dict) else None
    return StoredTask(
        id=id_,
        state=(stored.field("state") or b"").decode(),
        generation=stored.generation,
        skill=envelope.skill,
        op=op if isinstance(op, str) else None,
        key=envelope.key,
        priority=envelope.priority,
        fails=stored.failures,
        deaths=stored.deaths,
        blamed=int(stored.field("blamed") or 0),
        reason=stored.stored_reason,
        result=None if stored.result is None else stored.result.decode(errors="replace"),
        ended_ms=stored.ended_ms,
        start_by=stored.field("by") is not None,
        lane=stored.lane,
        errors=stored.numbered("error"),
        death_notes=stored.numbered("death"),
        forgiven=_forgiven(stored.field("requeued")),
    )


def _forgiven(requeued: bytes | None) -> tuple[int, int]:
    if requeued is None:
        return 0, 0
    _, fails, deaths, _ = requeued.split(b" ")
    return int(fails), int(deaths)


def _chunk(entry: bytes, flat: Sequence[bytes]) -> StoredChunk:
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    return StoredChunk(entry.decode(), fields[b"k"].decode(), int(fields[b"g"]), int(fields.get(b"n", b"0")))


def _read_keys(direct: redis.Redis, root: str) -> dict[str, StoredKey]:
    names = sorted(key.decode() for key in direct.scan_iter(match=f"{_literally(root)}*", count=1000))
    types = [type_.decode() for type_ in _ask(direct, [("TYPE", name) for name in names])]
    known = [(name, type_) for name, type_ in zip(names, types, strict=True) if type_ in _LENGTH]
    lengths = _ask(direct, [(_LENGTH[type_], name) for name, type_ in known])
    lives = _ask(direct, [("PTTL", name) for name, _ in known])
    return {
        name.removeprefix(root): StoredKey(type_, length, has_ttl=left_ms != -1, permanent=is_permanent(name))
        for (name, type_), length, left_ms in zip(known, lengths, lives, strict=True)
        if left_ms != -2  # it expired meanwhile
    }


def _literally(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "*?[]\\" else letter for letter in text)


def _read_inbox(direct: redis.Redis, key: str) -> StoredInbox:
    groups: Any = direct.xinfo_groups(key)
    consumers: Any = direct.xinfo_consumers(key, "workers") if groups else []
    length: Any = direct.xlen(key)
    pending = sum(int(group["pending"]) for group in groups)
    return StoredInbox(int(length), pending, tuple(sorted(one["name"].decode() for one in consumers)))


def _ask(direct: redis.Redis, commands: Iterable[Sequence[object]]) -> list[Any]:
    listed, replies = list(commands), list[Any]()
    for start in range(0, len(listed), _BATCH):
        with direct.pipeline(transaction=False) as pipeline:
            run: Any = pipeline.execute_command
            for command in listed[start : start + _BATCH]:
                run(*command)
            replies += pipeline.execute()
    return replies
