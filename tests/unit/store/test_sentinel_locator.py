"""Which server the answers and announcements of sentinels make the master."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

from orchestrator.core.errors import ServerUnavailable
from orchestrator.core.redis_url import Node, parse_url
from orchestrator.store import sentinel_locator as module
from orchestrator.store.locating import locate
from orchestrator.store.locator import Address
from orchestrator.store.sentinel_locator import Answer, SentinelLocator

SENTINELS = [Node("127.0.0.1", port) for port in (1, 2, 3)]
OLD, NEW, THIRD = (Node(host, 6379) for host in ("old", "new", "third"))


class Leaving:
    """A store that notes what it had to leave."""

    def __init__(self) -> None:
        self.left: list[str] = []

    def leave(self, address: Address) -> None:
        """Note the address."""
        self.left.append(str(address))


class Silent:
    """In place of the thread that asks a sentinel."""

    def __init__(self, *_: object) -> None:
        self.asked = 0

    def start(self) -> None:
        """Ask nothing."""

    def ask(self) -> None:
        """Count the question."""
        self.asked += 1

    def close(self) -> None:
        """End nothing."""


@pytest.fixture
def locator(monkeypatch: pytest.MonkeyPatch) -> SentinelLocator:
    """A locator of three sentinels that a test lets speak; at first all name `OLD`."""
    monkeypatch.setattr(module, "_Listener", Silent)
    made = SentinelLocator(parse_url("redis+sentinel://:pw@127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/group/2"))
    for sentinel in SENTINELS:
        made.note(sentinel, Answer(OLD, 5))
    assert made.single == Address("redis://:pw@old:6379/2")
    return made


def test_the_newest_configuration_counts(locator: SentinelLocator) -> None:
    """One sentinel that knows a newer one is right, and those that do not know it yet change nothing."""
    store = Leaving()
    locator.watch(store)
    locator.note(SENTINELS[0], Answer(NEW, 6))
    assert (str(locator.single), store.left) == ("new:6379", ["old:6379"])
    locator.note(SENTINELS[1], Answer(OLD, 5))
    locator.note(SENTINELS[0], "closed")
    locator.note(SENTINELS[2], Answer(OLD, 5))
    assert (str(locator.single), store.left) == ("new:6379", ["old:6379"])


def test_the_address_is_the_same_object(locator: SentinelLocator) -> None:
    """The usual command compares identities."""
    before = locator.single
    locator.note(SENTINELS[0], Answer(OLD, 5))
    assert locator.single is before
    assert before.is_master


def test_a_replica_that_is_about_to_be_promoted(locator: SentinelLocator, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the master at once, and stays it when the sentinels have the new configuration."""
    store = Leaving()
    locator.watch(store)
    locator.expect(NEW)
    assert (str(locator.single), store.left) == ("new:6379", ["old:6379"])
    for sentinel in SENTINELS:
        locator.note(sentinel, Answer(OLD, 5))
    assert str(locator.single) == "new:6379"
    locator.note(SENTINELS[1], Answer(NEW, 6))
    _let_pass(monkeypatch)
    locator.note(SENTINELS[0], Answer(OLD, 5))
    assert str(locator.single) == "new:6379"


@pytest.mark.parametrize("told", [True, False], ids=["given-up", "nothing-follows"])
def test_a_promotion_that_does_not_happen(
    locator: SentinelLocator, monkeypatch: pytest.MonkeyPatch, *, told: bool
) -> None:
    """The old master is used again, when a sentinel says that it gave up, and after a while in any case."""
    locator.expect(NEW)
    if told:
        locator.stop_expecting()
    else:
        _let_pass(monkeypatch)
        locator.note(SENTINELS[0], Answer(OLD, 5))
    assert str(locator.single) == "old:6379"


def test_sentinels_that_were_cut_off(locator: SentinelLocator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A minority that knows an older configuration is not believed; the majority is, for example after a new set-up."""
    locator.note(SENTINELS[0], Answer(NEW, 6))
    _let_pass(monkeypatch)
    locator.note(SENTINELS[1], "closed")
    locator.note(SENTINELS[0], "closed")
    locator.note(SENTINELS[2], Answer(OLD, 5))
    assert str(locator.single) == "new:6379"
    locator.note(SENTINELS[1], Answer(THIRD, 0))
    locator.note(SENTINELS[2], Answer(THIRD, 0))
    assert str(locator.single) == "third:6379"


def test_no_sentinel_answers() -> None:
    """A call fails with the reason of each sentinel, and no later call waits."""
    locator = locate("redis+sentinel://:hunter2@127.0.0.1:1,127.0.0.1:2/group")
    with pytest.raises(
        ServerUnavailable, match=r"no sentinel names the master \(127.0.0.1:1: .*127.0.0.1:2: "
    ) as failed:
        _ = locator.single
    assert "hunter2" not in str(failed.value)


def test_a_name_that_cannot_be_encoded() -> None:
    """Its thread tells the reason like any other."""
    with pytest.raises(ServerUnavailable, match=r"a\.\.b:1: .*idna"):
        _ = locate("redis+sentinel://a..b:1/group").single


def test_doubts_do_not_open_connections() -> None:
    """Each connection that fails in an outage is a doubt; a sentinel that refuses is asked a few times a second."""
    with socket.create_server(("127.0.0.1", 0)) as refusing:
        locator = locate(f"redis+sentinel://127.0.0.1:{refusing.getsockname()[1]}/group")
        opened = []

        def refuse() -> None:
            with contextlib.suppress(OSError):
                while True:
                    refusing.accept()[0].close()
                    opened.append(time.monotonic())

        refuser = threading.Thread(target=refuse)
        refuser.start()
        until_s = time.monotonic() + 2.0
        while time.monotonic() < until_s:
            with pytest.raises(ServerUnavailable):
                _ = locator.single
            locator.doubt(Address("redis://127.0.0.1:1/0"))
            time.sleep(0.01)
        refusing.shutdown(socket.SHUT_RDWR)
        refuser.join()
    assert 2 <= len(opened) <= 2.0 / module.DOUBTED_S + 1


def test_stores_of_a_process_share_the_threads() -> None:
    """The same URL gives the same locator while one is in use."""
    url = "redis+sentinel://127.0.0.1:1/group"
    first = locate(url)
    assert locate(url) is first
    assert locate(f"{url}/1") is not first


def _let_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + module.PROMOTED_S + 0.1)
