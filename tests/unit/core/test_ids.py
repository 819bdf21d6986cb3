"""Ids are unique, ordered and checked; foreign ids survive encoding whatever they hold."""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
import uuid
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core import ids
from orchestrator.core.errors import InvalidInput
from orchestrator.locks.model import new_nonce
from orchestrator.store.scoped import OpIds
from tests.helpers.cases import each_case

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=64)


def test_task_ids_are_version_7_uuids_of_now() -> None:
    """A task id is a UUIDv7 in canonical text whose time is the present."""
    before_ms = time.time_ns() // 1_000_000
    made = uuid.UUID(ids.new_task_id())
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert before_ms - 1000 <= made.int >> 80 <= time.time_ns() // 1_000_000 + 1000
    assert ids.check_task_id(str(made)) == str(made)


def test_task_ids_grow_within_a_process() -> None:
    """Ten thousand ids made in a row are distinct and in order."""
    made = [ids.new_task_id() for _ in range(10_000)]
    assert made == sorted(set(made))


def test_task_ids_grow_although_the_clock_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is set back an hour does not make ids go back."""
    first = ids.new_task_id()
    earlier_ns = time.time_ns() - 3_600_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: earlier_ns)
    made = [first, *(ids.new_task_id() for _ in range(1000))]
    assert made == sorted(set(made))


@each_case("count, high", [(0, 0), (3, 0), (1000, 5), (300, 0xFFE)], ids=["none", "few", "counters", "milliseconds"])
def test_ids_taken_together_are_those_that_follow(count: int, high: int) -> None:
    """Ids of one call are those that `next` gives one by one, also when a counter or a millisecond is used up."""
    together, alone = ids.TaskIds(listens=True), ids.TaskIds(listens=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
        patch.setattr(os, "urandom", bytes)
        for source in (together, alone):
            source._format_head(1_700_000_000_000, high, ids._LOW_MIN)
        taken = [*together.take(count), together.next()]
        expected = [alone.next() for _ in range(count + 1)]
    assert [id_[:23] for id_ in taken] == [id_[:23] for id_ in expected]
    assert taken == sorted(set(taken))


def test_task_ids_go_on_when_a_millisecond_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A millisecond whose numbers are used up lends from the next one instead of wrapping."""
    source = ids.TaskIds(listens=True)
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    made = [source.next() for _ in range(200_000)]
    assert {uuid.UUID(each).int >> 80 for each in made} == {1_700_000_000_000}, "there is room for 262,144"
    source._high = 0xFFF
    made += [source.next() for _ in range(200)]
    assert made == sorted(set(made))
    assert uuid.UUID(made[-1]).int >> 80 == 1_700_000_000_001


@given(st.lists(st.integers(0, 3), min_size=1, max_size=400), st.integers(0, 0xFFF))
def test_task_ids_leave_the_bits_of_a_shard_free(steps: list[int], high: int) -> None:
    """Whatever the clock does and wherever the counter stands, ids grow, are valid, and their shard is 0."""
    source = ids.TaskIds(listens=True)
    now_ms = 1_700_000_000_000
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: now_ms * 1_000_000)
        for step in steps:
            now_ms += step - 1  # also back
            made.append(source.next())
            source._high = max(source._high, high)
    assert made == sorted(set(made))
    for each in made:
        assert ids.check_task_id(each) == each
        assert uuid.UUID(each).int >> 48 & (1 << ids.SHARD_BITS) - 1 == 0


def test_short_ids() -> None:
    """14 characters that no key has to encode, in the order of their making as Redis sorts them, none twice."""
    made = [ids.new_short_id() for _ in range(50_000)]
    assert made == sorted(set(made))
    for each in made[:100]:
        assert len(each) == 14
        assert ids.encode_foreign("id", each) == each


def test_threads_never_make_the_same_id() -> None:
    """Eight threads at once make no id twice."""
    made: list[str] = []

    def work() -> None:
        made.extend([ids.new_task_id() for _ in range(2000)])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 16_000


def test_forked_children_start_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child does not count on from its parent's last id, and is not stuck on a lock that was held at the fork."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)  # both in one millisecond
    parent = ids.new_task_id()
    read_end, write_end = os.pipe()
    with ids._task_ids._lock:
        child = os.fork()
        if child == 0:  # pragma: no cover - the child is not measured
            os.write(write_end, ids.new_task_id().encode())
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        made = pipe.read()
    os.waitpid(child, 0)
    # Counting on would keep the maker.
    assert ids.check_task_id(made)[24:] != parent[24:]


@pytest.mark.parametrize(("listens", "digits"), [(True, "89abcdef"), (False, "01234567")])
def test_the_last_group_tells_who_made_an_id(*, listens: bool, digits: str) -> None:
    """All ids of a maker end in its node, no two makers share one, and its first digit says whether it listens."""
    makers = [ids.TaskIds(listens=listens) for _ in range(100)]
    for maker in makers:
        made = uuid.UUID(maker.next())
        assert (made.version, made.variant) == (7, uuid.RFC_4122)
        assert {str(made)[24:], maker.next()[24:]} == {maker.node}
        assert maker.node[0] in digits
    assert len({maker.node for maker in makers}) == len(makers)


@each_case("host", ["web-1", "käse brot", "a" * 300, "-.-", "", None])
def test_worker_ids_are_names(host: str | None) -> None:
    """A worker id is a valid name whatever the machine is called, and never the same twice."""
    first, second = ids.new_worker_id(host), ids.new_worker_id(host)
    assert ids.check_name("worker", first) == first
    assert first != second


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every clock of this process stands still."""
    for name in ("time", "monotonic", "perf_counter"):
        now_ns = getattr(time, f"{name}_ns")()
        monkeypatch.setattr(time, name, lambda now_ns=now_ns: now_ns / 1e9)
        monkeypatch.setattr(time, f"{name}_ns", lambda now_ns=now_ns: now_ns)


RANDOM: dict[str, Callable[[], str]] = {
    "nonce of a lock": new_nonce,
    "token of a request": ids.new_token,
    "op id": lambda: OpIds().take(None),
    "maker of task ids": lambda: ids.TaskIds(listens=True).node,
    "worker id": lambda: ids.new_worker_id("host").rpartition(":")[2],
}


@each_case("make", RANDOM.values(), ids=RANDOM)
def test_identifying_texts_are_random(make: Callable[[], str], *, stopped_clock: None) -> None:
    """They differ while every clock stands still and `random` repeats itself, and each character takes many values."""
    made = []
    for _ in range(500):
        random.seed(1)
        made.append(make())
    assert len(set(made)) == 500
    # The first digit of a node has a bit that is set, and the last character of an op id is a number.
    varied = [len(set(column)) for column in zip(*(text[:8] for text in made), strict=True)]
    assert varied[0] >= 8
    assert min(varied[1:]) == 16 or min(varied[1:]) > 50


def test_a_text_made_from_a_clock_is_found(*, stopped_clock: None) -> None:
    """A twin: what a clock or `random` makes repeats itself there, also behind a digest."""
    made = set()
    for _ in range(2):
        random.seed(1)
        made.add((time.time_ns(), time.monotonic(), hashlib.sha256(b"%f" % time.time()).digest(), random.random()))
    assert len(made) == 1


@each_case("name", ["a", "A9", "summarize", "model:gpt-4.1@eu", "0x_y", "a" * 128])
def test_names_are_accepted(name: str) -> None:
    """Letters, digits and . _ @ : - make a name."""
    assert ids.check_name("skill", name) == name


@each_case("name", ["", " ", "a b", "-a", ":a", "a\n", "a{b}", "a/b", "ä", "a" * 129, "a\x00", "\ud800", None, 7, b"a"])
def test_other_names_are_refused(name: str) -> None:
    """Anything else is refused in one line that says what a name may be."""
    with pytest.raises(InvalidInput, match=r"skill .* is not a valid name; use 1 to 128 letters") as refused:
        ids.check_name("skill", name)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 300


@each_case(
    "task_id",
    [
        "",
        "x",
        "0190f6e5-4d2a-4c3b-9f10-2b6c8d4e1a55",
        "0190F6E5-4D2A-7C3B-9F10-2B6C8D4E1A55",
        "0190f6e54d2a7c3b9f102b6c8d4e1a55",
        "0190f6e5-4d2a-7c3b-9f10-2b6c8d4e1a55\n",
        "{0190f6e5-4d2a-7c3b-9f10-2b6c8d4e1a55}",
    ],
)
def test_what_is_no_task_id_is_refused(task_id: str) -> None:
    """Only the canonical lower-case form of a version 7 UUID can be a task."""
    with pytest.raises(InvalidInput, match="is not a task id"):
        ids.check_task_id(task_id)


@given(TEXT)
def test_foreign_ids_survive(value: str) -> None:
    """Encoding is reversible and leaves only characters that no key can be harmed by."""
    encoded = ids.encode_foreign("session", value)
    assert set(encoded) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-%")
    assert ids.decode_foreign(encoded) == value


@given(TEXT, TEXT)
def test_different_foreign_ids_stay_different(one: str, other: str) -> None:
    """Two ids share a key only if they are equal."""
    assert (ids.encode_foreign("key", one) == ids.encode_foreign("key", other)) == (one == other)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [("user-7.a_b", "user-7.a_b"), ("a b/{c}", "a%20b%2F%7Bc%7D"), ("é~%", "%C3%A9%7E%25"), ("\x00\n", "%00%0A")],
)
def test_common_ids_stay_readable(value: str, encoded: str) -> None:
    """Only what is unsafe is encoded."""
    assert ids.encode_foreign("lane", value) == encoded


@each_case(
    ("value", "reason"),
    [
        ("", "give a text of 1 to 256 bytes"),
        ("\ud800", "unpaired surrogate"),
        ("a" * 257, "257 bytes of at most 256"),
        ("é" * 129, "258 bytes"),
        (b"bytes", "give a text"),
        (None, "give a text"),
    ],
)
def test_bad_foreign_ids_are_refused(value: str, reason: str) -> None:
    """Empty, too long and broken ids are refused with the reason."""
    with pytest.raises(InvalidInput, match=reason):
        ids.encode_foreign("session", value)


def test_the_longest_foreign_id_passes() -> None:
    """256 bytes are allowed, counted in UTF-8."""
    assert ids.decode_foreign(ids.encode_foreign("key", "é" * 128)) == "é" * 128


@each_case("encoded", ["", "%", "%2", "%zz", "a b", "%c3%a9", "%FF", "a\n"])
def test_what_was_not_encoded_is_not_decoded(encoded: str) -> None:
    """Decoding refuses what encoding never makes."""
    with pytest.raises(InvalidInput, match="is not an encoded id"):
        ids.decode_foreign(encoded)
