"""A session's workspace for script tests: short calls with the wrappers behind them, a clock that a test moves."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.core.settings import WorkspaceSettings
from orchestrator.locks.fenced_writer import CallerRow
from orchestrator.store.keys import PoolKeys, ScopeKeys
from orchestrator.store.store import Endpoint, SyncStore
from orchestrator.workspace import scripts
from orchestrator.workspace.events import parse_event
from tests.lua.keyspace import clear, names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from orchestrator.store.calls import Argument, Call
    from orchestrator.workspace.model import WorkspaceEvent
    from orchestrator.workspace.scripts import ChangeReply

T = TypeVar("T")

START_US = 1_800_000_000_000_000
LOCK = "exec:t1"
VALUE = "1:t1:7:ab"


@dataclass(frozen=True)
class Writer:
    """Who makes a change, under which lock."""

    agent: str = "ada"
    lock: str = LOCK
    value: str = VALUE
    exclusive: str = ""


class Space:
    """One session on one server. `now_us` is the time that every call is given; None asks the server."""

    def __init__(self, url: str, prefix: str, session: str = "S/1", **settings: Any) -> None:
        self.keys = ScopeKeys(prefix, "session", session)
        self.store = SyncStore(Endpoint.at(url), PoolKeys(prefix, "p"), name="test")
        self.settings = WorkspaceSettings(**settings)
        self._ops = itertools.count()
        self._fill()

    def _fill(self) -> None:
        self.now_us: int | None = START_US
        self.hold()

    def start_afresh(self) -> None:
        """Check the lifetimes of the session's keys, and begin again as after the set-up."""
        clear(self.store._router, self.keys.root)
        self._fill()

    def hold(self, value: str = VALUE, lock: str = LOCK) -> None:
        """Let a lock have this value."""
        self.execute("SET", self.keys.key(lock), value, "EX", 1000)

    def sleep(self, seconds: float) -> None:
        """Move the clock."""
        assert self.now_us is not None
        self.now_us += round(seconds * 1_000_000)
        for suffix in ("ops", "ops:before"):  # the server's own clock ages these
            if (left_ms := self.ttl_ms(suffix)) > 0:
                self.execute("PEXPIRE", self.keys.key(suffix), left_ms - round(seconds * 1000))

    def execute(self, *command: Argument) -> Any:
        """Send one plain command."""
        return self.store.execute(*command)

    def call(self, call: Call[T]) -> T:
        """Run a script call under the clock of the test."""
        if self.now_us is not None and "now_arg" in call.args:
            call = replace(call, args={**call.args, "now_arg": str(self.now_us)})
        return self.store.call(call)

    def change(self, op: str | None = None, who: Writer = Writer()) -> scripts.ChangeCall:
        """The head of a change."""
        op = f"auto{next(self._ops)}" if op is None else op
        caller = CallerRow(op, who.lock, who.value, who.agent, who.exclusive)
        return scripts.ChangeCall(self.keys, caller, scripts.pack_limits(self.settings))

    def run(
        self, wrapper: Callable[..., Call[ChangeReply]], *, op: str | None = None, who: Writer = Writer(), **args: Any
    ) -> ChangeReply:
        """Make a change by its wrapper."""
        return self.call(wrapper(self.change(op, who), **args))

    # Changes ----------------------------------------------------------------------------------------------------------

    def patch(
        self, *rows: tuple[Any, ...] | scripts.PathRow, op: str | None = None, who: Writer = Writer(), owner: str = ""
    ) -> ChangeReply:
        """Rows: (path, mode, value, condition, number), the later ones may be left out."""
        usual = ("", "set", b"1", "any", 0)
        filled = [scripts.PathRow(*row, *usual[len(row) :]) for row in rows]
        return self.run(scripts.patch, op=op, who=who, rows=filled, owner=owner)

    def append(
        self, log: str, *texts: bytes, cap: int = 100, op: str | None = None, who: Writer = Writer()
    ) -> ChangeReply:
        """Append JSON texts to a log."""
        return self.run(scripts.append, op=op, who=who, log=log, texts=texts, cap=cap)

    def members(
        self, name: str, mode: str, *changed: str, op: str | None = None, who: Writer = Writer()
    ) -> ChangeReply:
        """Add to a set or remove from it."""
        return self.run(scripts.members, op=op, who=who, name=name, mode=mode, changed=changed)

    def transition(
        self,
        id_: str,
        to: str,
        *,
        text: bytes = b"null",
        expect: Sequence[str] | None = None,
        op: str | None = None,
        who: Writer = Writer(),
    ) -> ChangeReply:
        """Move a state machine."""
        return self.run(scripts.transition, op=op, who=who, id_=id_, to=to, text=text, expect=expect)

    def publish(
        self,
        entry: str,
        *,
        path: str = "",
        log: str = "",
        cap: int = 100,
        owner: str = "ada",
        op: str | None = None,
        who: Writer = Writer(),
    ) -> ChangeReply:
        """Move a scratch entry into the document or a log."""
        target, name = ("log", log) if log else ("path", path or entry)
        return self.run(scripts.publish, op=op, who=who, owner=owner, entry=entry, target=target, name=name, cap=cap)

    def join(
        self, member: str, lease_ms: int, text: bytes = b"null", *, op: str | None = None, who: Writer = Writer()
    ) -> ChangeReply:
        """Enter an agent into the directory, or take it out."""
        return self.run(scripts.join, op=op, who=who, member=member, text=text, lease_ms=lease_ms)

    def direct(
        self, to: str, word: str = "STOP", *, most: int = 10, op: str | None = None, who: Writer = Writer()
    ) -> ChangeReply:
        """Leave a directive."""
        return self.run(scripts.direct, op=op, who=who, to=to, word=word, text=b"[]", most=most)

    def acknowledge(self, to: str, *entries: str, op: str | None = None, who: Writer = Writer()) -> ChangeReply:
        """Remove directives."""
        return self.run(scripts.acknowledge, op=op, who=who, to=to, entries=entries)

    def clear(self, *, events: bool = False, op: str | None = None, who: Writer = Writer()) -> ChangeReply:
        """Empty the workspace."""
        return self.run(scripts.clear, op=op, who=who, events=events)

    # The truth --------------------------------------------------------------------------------------------------------

    def present(self) -> list[tuple[str, int, bytes]]:
        """Who is in the directory."""
        return self.call(scripts.present(self.keys))

    def tail(self, log: str, after: int, limit: int = 100) -> list[int]:
        """Numbers of the entries behind one."""
        return [
            int(entry.split()[0]) for entry in self.call(scripts.tail(self.keys, log=log, after=after, limit=limit))
        ]

    def hash(self, suffix: str) -> dict[str, str]:
        """A hash as text."""
        flat = [part.decode() for part in self.execute("HGETALL", self.keys.key(suffix))]
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def log(self, name: str) -> list[tuple[int, str]]:
        """A log as (number, text)."""
        entries = [
            entry.decode().split(" ", 3) for entry in self.execute("LRANGE", self.keys.key(f"ws:log:{name}"), 0, -1)
        ]
        return [(int(number), text) for number, _, _, text in entries]

    def set(self, name: str) -> set[str]:
        """Members of a set."""
        return {member.decode() for member in self.execute("SMEMBERS", self.keys.key(f"ws:set:{name}"))}

    def events(self) -> list[WorkspaceEvent]:
        """All events."""
        return [parse_event(entry, flat) for entry, flat in self.execute("XRANGE", self.keys.key("ws:ev"), "-", "+")]

    def counts(self) -> tuple[int, int]:
        """Items and bytes as they are counted."""
        meta = self.hash("meta")
        return int(meta["items"]), int(meta["bytes"])

    def weigh(self) -> tuple[int, int]:
        """Items and bytes as they are."""
        items, size = 0, 0
        for key in self.names():
            suffix = key.removeprefix(f"{self.keys.root}:")
            if suffix in {"ws:doc", "ws:task"} or suffix.endswith(":kv"):
                held = self.hash(suffix)
                items += len(held)
                size += sum(len(name.encode()) + len(value.encode()) for name, value in held.items())
            elif suffix.startswith("ws:log:"):
                entries = self.execute("LRANGE", key, 0, -1)
                items, size = items + len(entries), size + sum(map(len, entries))
            elif suffix.startswith("ws:set:"):
                members = self.execute("SMEMBERS", key)
                items, size = items + len(members), size + sum(map(len, members))
        return items, size

    def names(self) -> list[str]:
        """Every key of the session."""
        return names(self.store._router, self.keys.root)

    def snapshot(self) -> dict[str, Any]:
        """All that the session holds, byte for byte, with the lifetimes that are not running."""
        return {name: self.execute("DUMP", name) for name in self.names()}

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Assert that the block changes nothing of the session."""
        before = self.snapshot()
        yield
        assert self.snapshot() == before

    def ttl_ms(self, suffix: str) -> int:
        """Milliseconds that a key has left; -1 for ever, -2 no such key."""
        return int(self.execute("PTTL", self.keys.key(suffix)))

    def close(self) -> None:
        """Close the connection."""
        self.store.close()
