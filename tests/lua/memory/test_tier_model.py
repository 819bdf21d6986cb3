"""The scripts that move records against a model in plain Python: each record is in one place, with all its entries."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.lua.keyspace import clear
from tests.lua.memory.records import Records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faultkit.servers import RedisServer

pytestmark = pytest.mark.every_server

MOST_STM, AGE_MS, KEEP = 4, 1000, 0.5
STM_MS, IM_MS = 86_400_000, 14 * 86_400_000
IDS = ("a", "b", "c", "d", "e", "f")


@dataclass
class Held:
    """A record in the model."""

    tier: str
    content: int
    step: int
    importance: float
    stored_ms: int
    deadline_ms: int
    own: bool
    order: int


@dataclass
class Model:
    """Where each record is."""

    records: dict[str, Held] = field(default_factory=dict)
    outbox: dict[str, int] = field(default_factory=dict)
    saved: dict[str, int] = field(default_factory=dict)
    count: int = 0

    def expire(self, now_ms: int) -> None:
        """Remove what has expired."""
        self.records = {id_: held for id_, held in self.records.items() if held.deadline_ms > now_ms}

    def put(self, id_: str, content: int, *, step: int, importance: float, ttl_ms: int, now_ms: int) -> None:
        """Store in the short-term tier; the oldest beyond the cap move."""
        self.count += 1
        before = self.records.get(id_)
        order = before.order if before and before.step == step else self.count
        self.records[id_] = Held(
            "stm", content, step, importance, now_ms, now_ms + (ttl_ms or STM_MS), ttl_ms > 0, order
        )
        stm = sorted((held.step, held.order, other) for other, held in self.records.items() if held.tier == "stm")
        for _, _, other in stm[: max(0, len(stm) - MOST_STM)]:
            self.move(other, now_ms)

    def move(self, id_: str, now_ms: int) -> None:
        """Move to the intermediate tier."""
        held = self.records[id_]
        held.tier = "im"
        if not held.own:
            held.deadline_ms = now_ms + IM_MS

    def transition(self, now_ms: int) -> None:
        """Move what is due."""
        for id_, held in self.records.items():
            due = held.deadline_ms <= now_ms + STM_MS - AGE_MS
            if held.tier == "stm" and due and held.stored_ms <= now_ms - AGE_MS and held.importance >= KEEP:
                self.move(id_, now_ms)

    def offload(self) -> None:
        """Move the intermediate tier to the outbox."""
        for id_ in [id_ for id_, held in self.records.items() if held.tier == "im"]:
            self.outbox[id_] = self.records.pop(id_).content

    def acknowledge(self) -> None:
        """Save the outbox."""
        self.saved |= self.outbox
        self.outbox = {}


steps = st.one_of(
    st.tuples(
        st.just("put"), st.sampled_from(IDS), st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0]),
        st.sampled_from([0, 0, 0, 2500]),
    ),
    st.tuples(st.just("transition")),
    st.tuples(st.just("offload")),
    st.tuples(st.just("acknowledge")),
    st.tuples(st.just("remove"), st.sampled_from(IDS)),
    st.tuples(st.just("sweep")),
    st.tuples(st.just("sleep"), st.sampled_from([1, 999, 1000, STM_MS])),
)  # fmt: skip


@pytest.fixture
def records(redis_server: RedisServer, prefix: str) -> Iterator[Records]:
    """A memory with a small short-term tier."""
    records = Records(redis_server.url, prefix, max_stm_records=MOST_STM)
    yield records
    records.close()


@settings(
    deadline=None, max_examples=int(os.environ.get("ORC_TEST_EXAMPLES", "40")),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(st.lists(steps, min_size=5, max_size=25))
def test_each_record_is_in_one_place(records: Records, actions: list[tuple[str, ...]]) -> None:  # noqa: C901
    """After every step the tiers and the outbox hold what the model holds, and no index differs from the records."""
    clear(records.link, f"{records.keys.prefix}:")
    model, number = Model(), 0
    for action, *args in actions:
        now_ms = records.now_us // 1000
        model.expire(now_ms)
        match action, args:
            case "put", [id_, step, importance, ttl_ms]:
                number += 1
                records.put(id_, step, content=str(number).encode(), importance=importance, ttl_ms=ttl_ms)  # type: ignore[arg-type]
                model.put(id_, number, step=step, importance=importance, ttl_ms=ttl_ms, now_ms=now_ms)  # type: ignore[arg-type]
            case "transition", _:
                records.transition(age_ms=AGE_MS, least=KEEP)
                model.transition(now_ms)
            case "offload", _:
                records.offload()
                model.offload()
            case "acknowledge", _:
                rows = records.outbox()
                if rows:
                    records.acknowledge(*rows)
                model.acknowledge()
            case "remove", [id_]:
                records.remove(id_)
                model.records.pop(id_, None)
                model.outbox.pop(id_, None)
            case "sweep", _:
                for tier in ("stm", "im"):
                    for part in ("time", "exp", "hdr", "kind:state"):
                        reply = records.sweep(tier, part, *IDS)
                        assert reply.rest[1] + reply.rest[2] + reply.rest[3] == 0 or part in {"time", "kind:state"}
            case "sleep", [ms]:
                records.sleep(int(ms))
        assert records.contradictions() == []
        now_ms = records.now_us // 1000
        held = {
            id_: (tier, int(records.contents(tier)[id_]))
            for tier in ("stm", "im")
            for id_, header in records.headers(tier).items()
            if header.deadline > now_ms
        }
        model.expire(now_ms)
        assert held == {id_: (one.tier, one.content) for id_, one in model.records.items()}
        assert [id_ for id_, _ in records.outbox()] == sorted(model.outbox, key=lambda id_: _place(records, id_))
        assert [found.id for found in records.find(order="old").records] == [
            id_ for id_, _ in sorted(model.records.items(), key=lambda pair: (pair[1].step, pair[1].order))
        ]


def _place(records: Records, id_: str) -> int:
    return [other for other, _ in records.outbox()].index(id_)


def test_the_model_feels_a_lost_entry(records: Records) -> None:
    """A twin: one missing index entry is a contradiction."""
    records.put("a", 1, content=json.dumps(1).encode())
    records.store.execute("ZREM", records.keys.key("stm:imp"), "a")
    assert records.contradictions() != []
