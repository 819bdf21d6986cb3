"""The scripts of chats against a model in plain Python: random changes, repeats, stale callers, lost keys, expiry."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.chat import scripts
from tests.lua.chat.chats import Chats, row
from tests.lua.scope import task_id

if TYPE_CHECKING:
    from orchestrator.chat.scripts import ChatReply

pytestmark = pytest.mark.every_server

EXAMPLES = int(os.environ.get("ORC_TEST_EXAMPLES", "40"))
CAP = 6
ids = st.sampled_from(["a", "b", "c", "d", "e", "f", "g h"])
steps = st.one_of(
    st.tuples(st.just("append"), st.lists(ids, min_size=1, max_size=4)),
    st.tuples(st.just("upsert"), st.tuples(ids, st.integers(1, 4))),
    st.tuples(st.just("patch"), st.tuples(ids, st.integers(1, 4))),
    st.tuples(st.just("pop"), st.booleans()),
    st.tuples(st.just("truncate"), st.integers(1, 4)),
    st.tuples(
        st.just("meta"),
        st.tuples(st.sampled_from(["x", "y"]), st.sampled_from([1, 2, 3, None]), st.sampled_from([0, 0, 0, 2, 4])),
    ),
    st.tuples(st.just("summarize"), st.integers(1, 4)),
    st.tuples(st.just("extracted"), st.tuples(st.integers(0, 9), st.booleans())),
    st.tuples(st.just("clear"), st.none()),
    st.tuples(st.just("repeat"), st.none()),
    st.tuples(st.just("fenced"), st.none()),
    st.tuples(st.just("lose"), st.sampled_from(["q", "id", "meta"])),
    st.tuples(st.just("expire"), st.none()),
)


@dataclass
class Model:
    """What a chat holds: messages as [number, id, version, mark]."""

    base: int = 0
    trimmed: int = 0
    messages: list[list[Any]] = field(default_factory=list)
    fields: dict[str, int] = field(default_factory=dict)
    version: int = 0
    summary: int = 0
    upto: int = 0
    extracted: int = 0

    @property
    def seq(self) -> int:
        """Number of the last message."""
        return self.base + len(self.messages)

    def find(self, id_: str) -> list[Any] | None:
        """The message with an id."""
        return next((message for message in self.messages if message[1] == id_), None)

    def add(self, id_: str, version: int, mark: int) -> int:
        """Append a message unless it is there; return its number."""
        if (known := self.find(id_)) is not None:
            return int(known[0])
        self.messages.append([self.seq + 1, id_, version, mark])
        return self.seq

    def drop(self, keep: int) -> int:
        """Drop the oldest."""
        gone = max(0, len(self.messages) - keep)
        del self.messages[:gone]
        self.base, self.trimmed = self.base + gone, self.trimmed + gone
        return gone


class Play:
    """Makes each step on the server and in the model, and compares."""

    def __init__(self, chats: Chats, fired: Counter[str]) -> None:
        self.chats, self.model, self.fired = chats, Model(), fired
        self.mark = 0
        self.last: tuple[Any, dict[str, Any], ChatReply] | None = None
        self.rev = self.before = self.now = 0

    def run(self, wrapper: Any, **args: Any) -> ChatReply:
        """Make a change with an op id that a repeat takes again."""
        args["op"] = f"op{self.mark}"
        reply = self.chats.run(wrapper, **args)
        if reply.status == "ok" and reply.rev:
            assert reply.rev >= self.rev, "a revision went back"
            self.rev, self.last = reply.rev, (wrapper, args, reply)
        self.fired[reply.status] += 1
        return reply

    def step(self, name: str, value: Any) -> None:
        """Make one step."""
        self.chats.sleep(1)
        self.mark, self.before, self.now = self.mark + 1, self.now, self.chats.head().rev
        self.fired[name] += 1
        getattr(self, f"_{name}")(value)
        self.compare()

    def _append(self, names: list[str]) -> None:
        model = self.model
        reply = self.run(scripts.append, rows=[row(name, self.mark) for name in names])
        had = {message[1] for message in model.messages}
        numbers = [model.add(name, 1, self.mark) for name in names]
        added = len(set(names) - had)
        dropped, seq = model.drop(CAP), model.seq
        seen, repeated = set(had), list[int]()
        for place, (name, number) in enumerate(zip(names, numbers, strict=True), 1):
            if name in seen:
                repeated += [place, number]
            seen.add(name)
        assert reply.rest == (seq, added, dropped, *repeated)

    def _upsert(self, value: tuple[str, int]) -> None:
        name, version = value
        reply = self.run(scripts.put, row=row(name, self.mark, version=version), mode="newer")
        known = self.model.find(name)
        if known is None:
            number = self.model.add(name, version, self.mark)
            self.model.drop(CAP)
            assert reply.rest == (1, version, number)
        elif known[2] >= version:
            assert reply.rest == (0, known[2], known[0])
        else:
            known[2:] = [version, self.mark]
            assert reply.rest == (1, version, known[0])

    def _patch(self, value: tuple[str, int]) -> None:
        name, version = value
        reply = self.run(scripts.put, row=row(name, self.mark, version=version), mode="is")
        known = self.model.find(name)
        if known is None or known[2] != version:
            assert (reply.status, reply.rest) == ("conflict", (known[2] if known else 0,))
        else:
            known[2:] = [version + 1, self.mark]
            assert reply.rest == (1, version + 1, known[0])

    def _pop(self, expected: bool) -> None:  # noqa: FBT001 - drawn
        stored = self.chats.stored()
        number, revision = (stored[-1].number, stored[-1].revision) if stored else (1, 1)
        reply = self.run(scripts.pop, number=number, revision=revision if expected else revision + 1)
        if expected and stored:
            self.model.messages.pop()
            self.model.extracted = min(self.model.extracted, number - 1)
            assert reply.rest == (number,)
        else:
            assert reply.status == "changed"

    def _truncate(self, keep: int) -> None:
        reply = self.run(scripts.truncate, keep=keep)
        assert reply.rest == (self.model.drop(keep), len(self.model.messages))

    def _meta(self, value: tuple[str, int | None, int]) -> None:
        name, number, version = value
        text = None if number is None else str(number).encode()
        reply = self.run(scripts.meta, fields=[(name, text)], version=version, most=1)
        model = self.model
        if version and version <= model.version:
            assert reply.rest == (0, model.version)
        elif number is not None and name not in model.fields and len(model.fields) == 1:
            assert reply.status == "full"
        else:
            model.version = version or model.version + 1
            model.fields.pop(name, None)
            model.fields |= {} if number is None else {name: number}
            assert reply.rest == (1, model.version)

    def _summarize(self, version: int) -> None:
        reply = self.run(scripts.summarize, text=b'"s"', upto=self.model.seq, version=version)
        if version > self.model.summary:
            self.model.summary, self.model.upto = version, self.model.seq
            assert reply.rest == (1, version)
        else:
            assert reply.rest == (0, self.model.summary)

    def _extracted(self, value: tuple[int, bool]) -> None:
        """A task that has read the chat now, or before its last change, notes how far it is."""
        ahead, late = value
        model, head = self.model, self.chats.head()
        upto, rev = model.base + ahead, head.rev if not late else self.before
        number, revisions = min(upto, model.seq), {each.number: each.revision for each in self.chats.stored()}
        while number > max(model.extracted, model.base) and revisions[number] > rev:
            number -= 1
            self.fired["not covered"] += 1
        if head.rev:
            model.extracted = max(model.extracted, number)
        assert self.chats.extracted(upto, rev=rev).rest == (model.extracted,)

    def _clear(self, _: None) -> None:
        self.run(scripts.clear)
        model = self.model
        self.model = Model(model.seq, model.seq, version=model.version, extracted=model.extracted)

    def _repeat(self, _: None) -> None:
        if self.last is None:
            return
        wrapper, args, reply = self.last
        before = self.chats.snapshot()
        again = self.chats.run(wrapper, **args)
        assert (again.status, again.rev, again.rest) == ("duplicate", reply.rev, reply.rest)
        assert self.chats.snapshot() == before

    def _fenced(self, _: None) -> None:
        before = self.chats.snapshot()
        reply = self.chats.append(row("late"), shown=(f"exec:{task_id()}", "1:t:1:0"))
        assert (reply.status, reply.rest) == ("fenced", (b"",))
        assert self.chats.snapshot() == before

    def _lose(self, part: str) -> None:
        """A key is evicted; the next change finds it."""
        lost = self.chats.store.execute("DEL", self.chats.key(part))
        model = self.model
        if lost and part == "q":
            model.base, model.messages = model.seq, []
        elif lost and part == "meta":
            if not model.messages:
                model.base = model.upto
            model.fields, model.version, model.trimmed = {}, 0, min(model.upto, model.base)
            model.extracted = 0
        # Any change puts the counts right.
        self.mark += 1
        self._meta(("x", None, 0))

    def _expire(self, _: None) -> None:
        """The messages end."""
        self.chats.store.execute("DEL", *[self.chats.key(part) for part in ("q", "id", "meta")])
        model = self.model
        self.model = Model(model.upto, model.upto, summary=model.summary, upto=model.upto)
        self.mark += 1
        self._meta(("x", None, 0))

    def compare(self) -> None:
        """Everything is as the model says."""
        self.chats.check()
        head, model = self.chats.head(), self.model
        assert [[m.number, m.id, m.version, m.data["m"]] for m in self.chats.stored()] == model.messages
        assert (head.fields, head.version if head.rev else 0) == (model.fields, model.version)
        assert head.extracted.get("ed/extract", 0) == model.extracted
        if head.rev:
            assert (head.base, head.trimmed) == (model.base, model.trimmed)
        stored = self.chats.store.execute("HGET", self.chats.key("sum"), "version")
        assert int(stored or 0) == model.summary


@pytest.mark.parametrize("chats", [{"max_messages": CAP}], indirect=True)
def test_model(chats: Chats) -> None:
    """The server and the model agree after every step, and every step and status has occurred."""
    fired: Counter[str] = Counter()

    @settings(
        max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
    )
    @given(st.lists(steps, min_size=12, max_size=25))
    def play(drawn: list[tuple[str, Any]]) -> None:
        chats.start_afresh()
        game = Play(chats, fired)
        for name, value in drawn:
            game.step(name, value)

    play()
    words = "append upsert patch pop truncate meta summarize clear repeat fenced lose expire extracted"
    assert {*words.split(" "), "not covered", "conflict", "full", "changed", "ok"} <= set(fired)
