"""The scripts of workspaces against a model in plain Python: random changes, repeats, stale callers, expiry."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from orchestrator.workspace.replaying import replayed
from orchestrator.workspace.scripts import ChangeReply
from tests.helpers.state_machines import run_until_all_fired
from tests.lua.workspace.space import LOCK, START_US, VALUE, Space, Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.faultkit.servers import RedisServer

pytestmark = pytest.mark.every_server

MOST = 2**53 - 1
FEW, EXAMPLES = 8, int(os.environ.get("ORC_TEST_EXAMPLES", "30"))
MUST_FIRE = [
    "patch", "scratch", "append", "add", "remove", "transition", "publish", "clear", "duplicate", "fenced", "conflict",
    "number", "state", "missing", "full", "taken over", "lapsed", "expired", "a window later",
]  # fmt: skip
SETTINGS: dict[str, Any] = {"max_items": 12, "max_parts": 4, "dedup_s": 100, "max_dedup": 8}

paths = st.sampled_from(["a", "b", "é c"])
texts = st.sampled_from([b"1", b"-3", b"[]", b'"x"', b"9007199254740991", b"1.0", '"é"'.encode()])
agents = st.sampled_from(["ada", "bob", ""])
rows = st.tuples(
    paths,
    st.sampled_from(["set", "set", "del"]),
    texts,
    st.sampled_from(["any", "any", "is", "newer"]),
    st.integers(0, 4),
) | st.tuples(paths, st.just("incr"), st.sampled_from([b"1", b"-7", b"9007199254740991"]), st.just("any"), st.just(0))
several_rows = st.lists(rows, min_size=1, max_size=3, unique_by=lambda row: row[0])
names = st.sampled_from(["l", "m", "n"])
members = st.lists(st.sampled_from(["x", "y", "z"]), min_size=1, unique=True)
states = st.sampled_from(["open", "held", "done"])


Path: TypeAlias = tuple[int, str, str]
"""Version, agent, JSON."""


@dataclass
class Content:
    """What a workspace holds. Everything goes at once when it expires."""

    revision: int = 0
    floor: int = 0
    top: int = 0
    number_floor: int = 0
    doc: dict[str, Path] = field(default_factory=dict)
    scratches: dict[str, dict[str, Path]] = field(default_factory=dict)
    logs: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    sets: dict[str, set[str]] = field(default_factory=dict)
    states: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    events: list[tuple[str, int]] = field(default_factory=list)
    since_s: float = 0.0
    older_since_s: float = 0.0
    ops: dict[str, ChangeReply] = field(default_factory=dict)
    older_ops: dict[str, ChangeReply] = field(default_factory=dict)


class Refused(Exception):
    """A change is refused with this answer."""

    def __init__(self, *answer: Any) -> None:
        self.answer = ChangeReply(answer[0], 0, answer[1:])


class Model:
    """One session's workspace."""

    def __init__(self, *, lock: str, max_items: int, max_parts: int, dedup_s: float, max_dedup: int) -> None:
        self.content = Content()
        self.lock: str | None = lock
        self.now_s = 0.0
        self.max_items, self.max_parts, self.dedup_s, self.max_dedup = max_items, max_parts, dedup_s, max_dedup
        self.fired: Counter[str] = Counter()

    def expire(self) -> None:
        """Time has passed without a change."""
        self.content = Content()

    @property
    def items(self) -> int:
        """How much it holds."""
        held = self.content
        several = [*held.scratches.values(), *held.logs.values(), *held.sets.values()]
        return len(held.doc) + len(held.states) + sum(map(len, several))

    # Every change -----------------------------------------------------------------------------------------------------

    def change(self, kind: str, op: str, token: str, make: Callable[[], tuple[bool, tuple[Any, ...]]]) -> ChangeReply:
        """What every change has in common; `make` answers whether there is an event, and what else is answered."""
        held, named = self.content, f"{kind}:{op}"
        if self.now_s >= held.since_s + 2 * self.dedup_s:
            held.ops = {}
        if self.now_s >= held.older_since_s + self.dedup_s:
            held.older_ops = {}
        if (first := held.ops.get(named) or held.older_ops.get(named)) is not None:
            self.fired["duplicate"] += 1
            return ChangeReply("duplicate", first.revision, first.rest)
        if token != self.lock:
            self.fired["fenced"] += 1
            return ChangeReply("fenced", 0, ((self.lock or "").encode(),))
        before = json.dumps([held.doc, held.scratches, held.logs, held.numbers, held.states, held.floor, held.top])
        sets = {name: set(members) for name, members in held.sets.items()}
        items = self.items
        try:
            told, rest = make()
            if self.items > self.max_items and self.items > items:
                raise Refused("full", b"items")
        except Refused as refused:
            doc, scratches, logs, held.numbers, states, held.floor, held.top = json.loads(before)
            held.doc, held.states = _tuples(doc), _tuples(states)
            held.scratches = {name: _tuples(paths) for name, paths in scratches.items()}
            held.logs = {name: [tuple(entry) for entry in entries] for name, entries in logs.items()}
            held.sets = sets
            self.fired[refused.answer.status] += 1
            return refused.answer
        if told:
            held.revision += 1
            held.events.append((kind, held.revision))
        if not held.ops:
            held.since_s = self.now_s
        answer = held.ops[named] = ChangeReply("ok", held.revision, rest)
        if self.now_s >= held.since_s + self.dedup_s or len(held.ops) >= self.max_dedup:
            held.older_ops, held.ops, held.older_since_s = held.ops, {}, self.now_s
        self.fired[kind] += 1
        return answer

    def _part(self, part: str) -> int:
        if part not in self.content.numbers and len(self.content.numbers) >= self.max_parts:
            raise Refused("full", b"parts")
        return self.content.numbers.get(part, self.content.number_floor)

    # Kinds of changes -------------------------------------------------------------------------------------------------

    def patch(
        self, rows: Sequence[tuple[str, str, bytes, str, int]], agent: str, owner: str
    ) -> tuple[bool, tuple[Any, ...]]:
        """lua/workspace/patch.lua."""
        held = self.content
        if owner:
            held.numbers[f"agent:{owner}:kv"] = self._part(f"agent:{owner}:kv") + 1
        paths = held.scratches.setdefault(owner, {}) if owner else held.doc
        rest: list[Any] = []
        changed = False
        for path, mode, value, condition, number in rows:
            version, _, text = paths.get(path, (0, "", None))
            if (condition == "is" and version != number) or (condition == "newer" and version >= number):
                raise Refused("conflict", path.encode(), version, held.revision)
            told = b""
            if mode == "del":
                if path in paths:
                    del paths[path]
                    held.floor, changed = max(held.floor, version), True
                rest += [version, told]
                continue
            if mode == "incr":
                if text is not None and not text.lstrip("-").isdigit():
                    raise Refused("number", path.encode())
                sum_ = int(text or 0) + int(value)
                if abs(sum_) > MOST:
                    raise Refused("number", path.encode())
                told = str(sum_).encode()
            version = number if condition == "newer" else version + 1 if version else held.floor + 1
            held.top = max(held.top, version)
            paths[path] = (version, agent, (told or value).decode())
            changed = True
            rest += [version, told]
        return changed and not owner, tuple(rest)

    def append(self, log: str, texts: Sequence[bytes], cap: int) -> tuple[bool, tuple[Any, ...]]:
        """lua/workspace/append.lua."""
        part = f"ws:log:{log}"
        number = self._part(part)
        entries = self.content.logs.setdefault(log, [])
        entries += [(number + i, text.decode()) for i, text in enumerate(texts, 1)]
        dropped = max(0, len(entries) - cap)
        del entries[:dropped]
        self.content.numbers[part] = number + len(texts)
        return True, (number + len(texts), dropped)

    def members(self, name: str, mode: str, changed: Sequence[str]) -> tuple[bool, tuple[Any, ...]]:
        """lua/workspace/members.lua."""
        part = f"ws:set:{name}"
        number = self._part(part)
        members = self.content.sets.setdefault(name, set())
        before = set(members)
        members.update(changed) if mode == "add" else members.difference_update(changed)
        count = len(before ^ members)
        if count:
            self.content.numbers[part] = number + 1
        return count > 0, (number + (1 if count else 0), count)

    def transition(self, id_: str, to: str, text: bytes, expect: Sequence[str] | None) -> tuple[bool, tuple[Any, ...]]:
        """lua/workspace/transition.lua."""
        version, state, _ = self.content.states.get(id_, (0, "", ""))
        if expect is not None and (state not in expect if expect else version):
            raise Refused("state", state.encode(), version)
        version = (version or self.content.floor) + 1
        self.content.top = max(self.content.top, version)
        self.content.states[id_] = (version, to, text.decode())
        return True, (version,)

    def publish(
        self, owner: str, entry: str, agent: str, *, path: str, log: str, cap: int
    ) -> tuple[bool, tuple[Any, ...]]:
        """lua/workspace/publish.lua."""
        scratch = self.content.scratches.get(owner, {})
        if entry not in scratch:
            raise Refused("missing")
        _, _, text = scratch.pop(entry)
        if log:
            _, (last, _) = self.append(log, [text.encode()], cap)
            return True, (last,)
        _, (version, _) = self.patch([(path, "set", text.encode(), "any", 0)], agent, "")
        return True, (version,)

    def clear(self, *, events: bool = False) -> tuple[bool, tuple[Any, ...]]:
        """lua/workspace/clear.lua."""
        held = self.content
        if events:
            held.events.clear()
        held.floor = max(held.floor, held.top)
        held.number_floor = max([held.number_floor, *held.numbers.values()])
        for content in (held.doc, held.scratches, held.logs, held.sets, held.states, held.numbers):
            content.clear()
        return True, ()


def _tuples(paths: dict[str, list[Any]]) -> dict[str, Any]:
    return {name: tuple(value) for name, value in paths.items()}


class Machine(RuleBasedStateMachine):
    """Every rule does the same to both and compares what they answer."""

    url: str
    prefix: str
    fired: Counter[str]
    _sessions = count()

    def __init__(self) -> None:
        super().__init__()
        self.space = Space(self.url, self.prefix, f"s{next(self._sessions)}", **SETTINGS)
        self.model = Model(lock=VALUE, **SETTINGS)
        self.model.now_s = START_US / 1e6
        self.generation = 7
        self.mine = VALUE
        self._ops = count()
        self.again: Callable[[], tuple[ChangeReply, ChangeReply]] | None = None

    def _both(
        self, kind: str, agent: str, real: Callable[..., ChangeReply], make: Callable[[], tuple[bool, tuple[Any, ...]]]
    ) -> None:
        op, token = f"o{next(self._ops)}", self.mine

        def call() -> tuple[ChangeReply, ChangeReply]:
            return real(op=op, who=Writer(agent, LOCK, token)), self.model.change(kind, op, token, make)

        answer, expected = call()
        assert answer == expected
        self.again = call

    @rule()
    def sent_again(self) -> None:
        """The reply was lost: the caller, alive or by now without its lock, sends the same once more."""
        if self.again is not None:
            answer, expected = self.again()
            assert answer == expected

    @rule(path=paths, value=st.sampled_from([b'"x"', b"1.0", b"9007199254740991", b"5"]))
    def write_and_add(self, path: str, value: bytes) -> None:
        """Write a value and add to it, which may be no number."""
        for row in ((path, "set", value, "any", 0), (path, "incr", b"1", "any", 0)):
            self._both(
                "patch",
                "ada",
                lambda row=row, **how: self.space.patch(row, **how),
                lambda row=row: self.model.patch([row], "ada", ""),  # type: ignore[misc]
            )

    @rule(name=names, member=st.sampled_from(["x", "y"]))
    def in_and_out(self, name: str, member: str) -> None:
        """Add a member and remove it."""
        for mode in ("add", "remove"):
            self._both(
                mode,
                "ada",
                lambda mode=mode, **how: self.space.members(name, mode, member, **how),
                lambda mode=mode: self.model.members(name, mode, [member]),  # type: ignore[misc]
            )

    @rule(rows=several_rows, agent=agents)
    def patch(self, rows: list[tuple[str, str, bytes, str, int]], agent: str) -> None:
        """Change the document."""
        self._both(
            "patch", agent, lambda **how: self.space.patch(*rows, **how), lambda: self.model.patch(rows, agent, "")
        )

    @rule(rows=several_rows, owner=st.sampled_from(["ada", "bob"]))
    def scratch(self, rows: list[tuple[str, str, bytes, str, int]], owner: str) -> None:
        """Change a scratch."""
        self._both(
            "scratch",
            owner,
            lambda **how: self.space.patch(*rows, owner=owner, **how),
            lambda: self.model.patch(rows, owner, owner),
        )

    @rule(log=names, items=st.lists(texts, min_size=1, max_size=3), agent=agents, cap=st.integers(3, 5))
    def append(self, log: str, items: list[bytes], agent: str, cap: int) -> None:
        """Append to a log."""
        self._both(
            "append",
            agent,
            lambda **how: self.space.append(log, *items, cap=cap, **how),
            lambda: self.model.append(log, items, cap),
        )

    @rule(name=names, mode=st.sampled_from(["add", "remove"]), changed=members, agent=agents)
    def change_set(self, name: str, mode: str, changed: list[str], agent: str) -> None:
        """Add to a set or remove from it."""
        self._both(
            mode,
            agent,
            lambda **how: self.space.members(name, mode, *changed, **how),
            lambda: self.model.members(name, mode, changed),
        )

    @rule(id_=paths, to=states, text=texts, expect=st.none() | st.lists(states, max_size=2), agent=agents)
    def transition(self, id_: str, to: str, text: bytes, expect: list[str] | None, agent: str) -> None:
        """Move a state machine."""
        self._both(
            "transition",
            agent,
            lambda **how: self.space.transition(id_, to, text=text, expect=expect, **how),
            lambda: self.model.transition(id_, to, text, expect),
        )

    @rule(
        owner=st.sampled_from(["ada", "bob"]),
        entry=paths,
        path=paths,
        log=st.sampled_from(["", "l"]),
        drafted=st.booleans(),
    )
    def publish(self, owner: str, entry: str, path: str, log: str, drafted: bool) -> None:  # noqa: FBT001 - drawn
        """Publish a scratch entry, which may have been written right before."""
        if drafted:
            row = (entry, "set", b"[]", "any", 0)
            self._both(
                "scratch",
                owner,
                lambda **how: self.space.patch(row, owner=owner, **how),
                lambda: self.model.patch([row], owner, owner),
            )
        self._both(
            "publish",
            owner,
            lambda **how: self.space.publish(entry, path=path, log=log, cap=4, owner=owner, **how),
            lambda: self.model.publish(owner, entry, owner, path=path, log=log, cap=4),
        )

    @rule(sure=st.integers(0, 3))
    def clear(self, sure: int) -> None:
        """Empty the workspace, now and then."""
        if not sure:
            self._both("clear", "ada", self.space.clear, self.model.clear)

    @rule(sure=st.integers(0, 3))
    def clear_events(self, sure: int) -> None:
        """Empty the workspace with its events, now and then."""
        if not sure:
            self._both(
                "clear",
                "ada",
                lambda **how: self.space.clear(events=True, **how),
                lambda: self.model.clear(events=True),
            )

    @rule(dead=st.sampled_from([True, True, False]))
    def taken_over(self, dead: bool) -> None:  # noqa: FBT001 - drawn by Hypothesis
        """A higher generation has the lock by now; the old attempt died between two calls, or goes on."""
        self.generation += 1
        value = f"{self.generation}:t1:{self.generation}:ab"
        self.space.hold(value)
        self.model.lock = value
        self.model.fired["taken over"] += 1
        if dead:
            self.mine = value

    @rule(sure=st.integers(0, 2))
    def lapsed(self, sure: int) -> None:
        """The lock lapsed, and nobody has taken it."""
        if sure:
            return
        self.space.execute("DEL", self.space.keys.key(LOCK))
        self.model.lock = None
        self.model.fired["lapsed"] += 1

    @rule()
    def taken_again(self) -> None:
        """The attempt takes its lock."""
        self.space.hold(self.mine)
        self.model.lock = self.mine

    @rule(seconds=st.sampled_from([1, 60, 101, 250]))
    def time_passes(self, seconds: int) -> None:
        """The clock moves; op ids are forgotten in time."""
        self.space.sleep(seconds)
        self.model.now_s += seconds
        self.model.fired["a window later"] += seconds > 100

    @rule(sure=st.integers(0, 3))
    def expired(self, sure: int) -> None:
        """Nobody changed it for its whole lifetime."""
        if not sure:
            ours = [name for name in self.space.names() if ":exec" not in name]
            if ours:
                self.space.execute("UNLINK", *ours)
            self.model.expire()
            self.model.fired["expired"] += 1

    @invariant()
    def both_hold_the_same(self) -> None:
        """Documents, scratches, logs, sets, states, counts, revision, events; no key stays for ever."""
        space, held = self.space, self.model.content
        assert space.hash("ws:doc") == {path: " ".join(map(str, value)) for path, value in held.doc.items()}
        for owner in ("ada", "bob"):
            expected = {path: " ".join(map(str, value)) for path, value in held.scratches.get(owner, {}).items()}
            assert space.hash(f"agent:{owner}:kv") == expected
        for name in ("l", "m", "n"):
            assert space.log(name) == held.logs.get(name, [])
            assert space.set(name) == held.sets.get(name, set())
        stored = {id_: text.split(" ", 3) for id_, text in space.hash("ws:task").items()}
        assert {id_: (int(v), state, text) for id_, (v, _, state, text) in stored.items()} == held.states
        events = space.events()
        assert [(event.kind, event.revision) for event in events] == held.events
        if space.hash("meta"):
            assert space.counts() == space.weigh()
        made, complete = replayed(events)
        assert complete
        assert {path: (p.version, p.agent) for path, p in made.paths.items()} == {
            path: value[:2] for path, value in held.doc.items()
        }
        assert {log: [entry.number for entry in entries] for log, entries in made.logs.items()} == {
            log: [number for number, _ in entries] for log, entries in held.logs.items() if entries
        }
        assert made.sets == {name: members for name, members in held.sets.items() if members}
        assert {id_: (one.version, one.state) for id_, one in made.states.items()} == {
            id_: value[:2] for id_, value in held.states.items()
        }
        assert [name for name in space.names() if space.execute("PTTL", name) < 0] == []

    def teardown(self) -> None:
        """Count what happened."""
        self.fired.update(self.model.fired)
        self.space.close()


@pytest.mark.parametrize("examples", [FEW, pytest.param(EXAMPLES, marks=pytest.mark.slow)], ids=["few", "many"])
def test_scripts_agree_with_the_model(redis_server: RedisServer, prefix: str, examples: int) -> None:
    """Whatever happens in whatever order, scripts and model answer and hold the same; every kind of step happened."""
    fired: Counter[str] = Counter()
    machine = type("Bound", (Machine,), {"url": redis_server.url, "prefix": prefix, "fired": fired})
    rules = settings(
        max_examples=examples,
        stateful_step_count=50,
        deadline=None,
        # Without making a failure smaller, which takes minutes; the steps that led to it are shown anyway.
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        database=None,
    )
    run_until_all_fired(machine, rules, fired, MUST_FIRE if examples != FEW else ())
