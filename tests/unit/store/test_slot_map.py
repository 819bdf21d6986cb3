"""What a locator of a cluster answers, from replies of CLUSTER SLOTS that a test gives."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.core.errors import ConfigError, ServerRefused, ServerUnavailable
from orchestrator.store import slot_map
from orchestrator.store.locating import locate
from orchestrator.store.locator import SLOTS, Address
from orchestrator.store.slot_map import ClusterLocator, parse_slots
from orchestrator.testing.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

A, B, C = (Address(f"redis://{name}:1/0") for name in "abc")


class Nodes:
    """Answers for each node; counts the questions."""

    def __init__(self) -> None:
        self.answers: dict[Address, list[tuple[int, int, Address]] | Exception] = {}
        self.asked: list[Address] = []
        self.gate = threading.Event()
        self.gate.set()

    def ask(self, node: Address) -> list[tuple[int, int, Address]]:
        """Answer."""
        self.asked.append(node)
        self.gate.wait(5)
        answer = self.answers.get(node, ServerUnavailable("refused"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def know(self, *shards: tuple[int, int, Address]) -> None:
        """Let all nodes answer the same."""
        self.answers = {node: list(shards) for node in (A, B, C)}


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """Nodes that do not answer yet; the pause between two reads is short."""
    made = Nodes()
    monkeypatch.setattr(slot_map, "ask", made.ask)
    monkeypatch.setattr(slot_map, "ASKED_EVERY_S", 0.02)
    return made


def settled(locator: ClusterLocator, found: Callable[[], bool]) -> None:
    """Wait until the thread has read the map and ended."""
    wait_until(lambda: found() and locator._reader is None, "the map", 5)


def test_the_url_names_the_seeds() -> None:
    """They have the login, the options and the encryption of the URL."""
    locator = locate("rediss+cluster://u:p%40@h1:7000,[::1]:7001/0?username=x")
    assert isinstance(locator, ClusterLocator)
    assert {seed.url for seed in locator._seeds} == {
        "rediss://u:p%40@h1:7000/0?username=x",
        "rediss://u:p%40@[::1]:7001/0?username=x",
    }


def test_a_seed_that_answers_is_enough(nodes: Nodes) -> None:
    """The others are skipped; the map has the masters, and a cluster of one master has one address for all slots."""
    nodes.answers[C] = [(0, 99, A), (100, SLOTS - 1, C)]
    locator = ClusterLocator([A, B, C])
    locator.prepare()
    assert (locator.address(0), locator.address(99), locator.address(100)) == (A, A, C)
    assert (list(locator.servers), locator.single) == ([A, C], None)
    asked = len(nodes.asked)
    locator.prepare()
    assert len(nodes.asked) == asked
    nodes.know((0, SLOTS - 1, B))
    locator.doubt(A)
    settled(locator, lambda: locator.address(0) == B)
    assert locator.single is locator.address(5)


def test_no_seed_answers(nodes: Nodes) -> None:
    """The message names each, without the login; the next try asks again."""
    locator = ClusterLocator([Address(f"redis://u:hunter2@{name}:1/0") for name in "ab"])
    with pytest.raises(ServerUnavailable, match=r"no node of the cluster answers \([ab]:1: refused; ") as failure:
        locator.prepare()
    assert "hunter2" not in str(failure.value)
    assert not failure.value.outcome_unknown
    with pytest.raises(ServerUnavailable):
        locator.prepare()
    assert len(nodes.asked) == 4


def test_a_node_without_slots_is_skipped(nodes: Nodes) -> None:
    """A node that was reset answers with an empty list."""
    nodes.answers = {A: [], B: [(0, SLOTS - 1, B)], C: []}
    locator = ClusterLocator([A, B, C])
    locator.prepare()
    assert locator.single == B


def test_a_server_that_is_no_cluster(nodes: Nodes) -> None:
    """The message says which scheme to use."""
    nodes.answers[A] = ServerRefused("Redis refused CLUSTER: ERR This instance has cluster support disabled")
    with pytest.raises(ConfigError, match=r"a:1 is not part of a cluster; use redis://"):
        ClusterLocator([A]).prepare()


def test_a_user_who_may_not_ask(nodes: Nodes) -> None:
    """Each slot is learned from a MOVED reply."""
    nodes.answers = dict.fromkeys((A, B), ServerRefused("NOPERM"))
    locator = ClusterLocator([A, B])
    locator.prepare()
    first = locator.address(7)
    assert locator.single == first
    locator.moved(7, C)
    assert (locator.address(7), locator.address(8)) == (C, first)
    settled(locator, lambda: True)


def test_seeds_without_a_map(nodes: Nodes) -> None:
    """A doubt leads to the next seed at once, before any node has answered."""
    locator = ClusterLocator([A, B])
    first = locator.address(0)
    locator.doubt(first)
    assert locator.address(0) == locator.single == ({A, B} - {first}).pop()
    nodes.know((0, SLOTS - 1, C))
    settled(locator, lambda: locator.single == C)


def test_a_redirect_is_learned_at_once(nodes: Nodes) -> None:
    """The node that it names is asked first, because it knows best."""
    nodes.know((0, SLOTS - 1, A))
    locator = ClusterLocator([A])
    locator.prepare()
    nodes.know((0, 6, A), (7, 7, C), (8, SLOTS - 1, A))
    nodes.asked.clear()
    locator.moved(7, C)
    assert (locator.address(7), locator.address(8), locator.single) == (C, A, None)
    settled(locator, lambda: bool(nodes.asked))
    assert nodes.asked[0] == C
    assert (locator.address(7), locator.address(8)) == (C, A)


@pytest.mark.parametrize("reason", ["doubt", "late"])
def test_a_doubted_node_is_asked_last(nodes: Nodes, reason: str) -> None:
    """A node that is cut off from the others answers with an old map, and a frozen one costs a time-out."""
    nodes.know((0, 9, A), (10, 19, B), (20, SLOTS - 1, C))
    for _ in range(20):
        locator = ClusterLocator([A, B, C])
        locator.prepare()
        for node in (A, B, C):
            nodes.asked.clear()
            getattr(locator, reason)(node)
            settled(locator, lambda: bool(nodes.asked))
            assert nodes.asked[0] != node


def test_a_defect_of_a_reply_does_not_end_the_reading(nodes: Nodes) -> None:
    """The next doubt asks again."""
    nodes.know((0, SLOTS - 1, A))
    locator = ClusterLocator([A])
    locator.prepare()
    nodes.answers[A] = TypeError("no list")
    asked = len(nodes.asked)
    locator.doubt(A)
    wait_until(lambda: len(nodes.asked) > asked, "a question", 5)
    nodes.know((0, SLOTS - 1, B))
    locator.doubt(A)
    settled(locator, lambda: locator.single == B)


def test_many_doubts_are_one_question(nodes: Nodes) -> None:
    """While a node is asked, doubts only note that it is to be asked once more."""
    nodes.know((0, SLOTS - 1, A))
    locator = ClusterLocator([A, B])
    locator.prepare()
    nodes.asked.clear()
    nodes.gate.clear()
    locator.doubt(A)
    wait_until(lambda: bool(nodes.asked), "the first question", 5)
    for _ in range(500):
        locator.doubt(A)
        locator.late(B)
    nodes.gate.set()
    settled(locator, lambda: len(nodes.asked) >= 2)
    assert len(nodes.asked) == 2


def test_an_outage_is_outlived(nodes: Nodes) -> None:
    """No node answers for a while; the old map is kept, and the next doubt finds the new one."""
    nodes.know((0, SLOTS - 1, A))
    locator = ClusterLocator([A])
    locator.prepare()
    nodes.answers.clear()
    locator.doubt(A)
    settled(locator, lambda: len(nodes.asked) >= 2)
    assert locator.single == A
    nodes.know((0, SLOTS - 1, B))
    locator.doubt(A)
    settled(locator, lambda: locator.single == B)


def test_replies() -> None:
    """A node without a host is the one that answered; one without a port is reached over its socket."""
    replies: list[Any] = [[0, 9, [b"h", 7, b"id", []], [b"replica", 8, b"id", []]], [10, 11, [b"", 7, b"id", []]]]
    assert parse_slots([*replies, [12, 12, [None, 9, b"id", []]]], A) == [
        (0, 9, Address("redis://h:7/0")),
        (10, 11, Address("redis://a:7/0")),
        (12, 12, Address("redis://a:9/0")),
    ]
    socket = Address("unix:///run/s")
    assert parse_slots([[0, 1, [b"", 0, b"id", []]]], socket) == [(0, 1, socket)]


class Leavings:
    """Collects the addresses that it is told to leave."""

    def __init__(self) -> None:
        self.addresses: list[Address] = []

    def leave(self, address: Address) -> None:
        """Note it."""
        self.addresses.append(address)


def test_a_node_without_slots_is_left(nodes: Nodes) -> None:
    """Stores close their connections to it; a node that keeps some of its slots is not left."""
    nodes.know((0, 99, A), (100, SLOTS - 1, B))
    locator, leavings = ClusterLocator([A, B]), Leavings()
    locator.watch(leavings)
    locator.prepare()
    nodes.know((0, 9, A), (10, SLOTS - 1, B))
    locator.doubt(A)
    settled(locator, lambda: locator.address(10) == B)
    assert leavings.addresses == []
    nodes.know((0, 9, C), (10, SLOTS - 1, B))
    locator.late(A)
    settled(locator, lambda: locator.address(0) == C)
    assert leavings.addresses == [A]
