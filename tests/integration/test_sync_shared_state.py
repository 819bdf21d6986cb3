"""Locks, workspaces, boards, limits, agents and configuration through the blocking client."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import anyio
import pytest

from orchestrator import LockBusy, LockLost, NotHeld
from orchestrator.sync import Lease, Orchestrator
from tests.faultkit.proxy import FaultProxy
from tests.helpers.local_team import local_settings
from tests.helpers.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orchestrator.core.settings import Settings
    from tests.faultkit.servers import RedisServer


@pytest.fixture
def orc(settings: Settings) -> Iterator[Orchestrator]:
    """An open client."""
    with Orchestrator(settings=settings) as client:
        yield client


def take_away(orc: Orchestrator) -> None:
    """Release the lock as an operator does."""
    seen = orc.locks().peek("doc")
    assert seen is not None
    assert orc.locks().take_away(seen)


def lose(orc: Orchestrator, lease: Lease) -> None:
    """Wait until the renewal has noticed that the lock was taken away."""
    take_away(orc)
    wait_until(lambda: bool(lease.lost), "the renewal to notice it")


def test_a_lock_is_renewed_while_the_block_blocks(orc: Orchestrator) -> None:
    """A block that only sleeps keeps its lock, which its end releases."""
    locks = orc.locks("session:101", owner="script")
    with locks.hold("doc", ttl=0.5) as lease:
        began_s = time.monotonic()
        wait_until(lambda: time.monotonic() - began_s > 2 * 0.5, "two lifetimes of the lock to pass")
        assert lease.held
        seen = locks.peek("doc")
        assert seen is not None
        assert "script" in seen.holder
        with pytest.raises(LockBusy), locks.hold("doc", wait=0):
            pass
    assert locks.peek("doc") is None
    assert not lease.held


def test_a_lock_is_taken_and_released_by_hand(orc: Orchestrator) -> None:
    """`try_acquire` returns a lease, whose calls block."""
    lease = orc.locks().try_acquire("doc", ttl=5)
    assert lease is not None
    assert orc.locks().try_acquire("doc") is None
    lease.extend(10)
    lease.release()
    with pytest.raises(NotHeld):
        lease.release()
    again = orc.locks().try_acquire("doc")
    assert again is not None
    assert again.fence > lease.fence


def test_an_error_in_the_block_releases_the_lock(orc: Orchestrator) -> None:
    """The error of the block comes out as it is."""
    with pytest.raises(ZeroDivisionError), orc.locks().hold("doc"):
        raise ZeroDivisionError
    assert orc.locks().peek("doc") is None


def test_a_lost_lock_is_raised_by_the_next_call(orc: Orchestrator) -> None:
    """Another owner took the lock away: calls of this thread fail, and those of other threads go on."""
    elsewhere: list[object] = []

    def block() -> None:
        with orc.locks().hold("doc", ttl=0.3) as lease:
            lose(orc, lease)
            thread = threading.Thread(target=lambda: elsewhere.append(orc.config.all()))
            thread.start()
            thread.join()
            elsewhere.append(orc.config.all())

    with pytest.raises(LockLost):
        block()
    assert elsewhere == [{}]
    assert orc.config.all() == {}, "the block has ended"


def test_a_lost_lock_is_raised_at_the_end_of_the_block(orc: Orchestrator) -> None:
    """A block without calls learns of it at its end."""
    with pytest.raises(LockLost), orc.locks().hold("doc", ttl=0.3) as lease:
        lose(orc, lease)


def test_a_lost_lock_ends_a_call_that_waits(orc: Orchestrator) -> None:
    """A wait for a result does not outlast the lock that it is made under."""
    handle = orc.submit("nobody")
    taking = threading.Timer(0.2, lambda: take_away(orc))
    taking.start()
    with pytest.raises(LockLost), orc.locks().hold("doc", ttl=0.5):
        handle.result(timeout=20)
    taking.join()


async def test_a_lock_is_lost_in_an_outage(redis_server: RedisServer, prefix: str) -> None:
    """A lock that cannot be renewed in time is lost, too."""

    def block(url: str, cut: Callable[[], None]) -> None:
        settings = local_settings(url, prefix, redis__command_timeout_s=0.2)
        with Orchestrator(settings=settings) as orc, orc.locks().hold("doc", ttl=0.6) as lease:
            cut()
            wait_until(lambda: bool(lease.lost), "the loss")

    async with FaultProxy(redis_server.url) as proxy:

        def cut() -> None:
            anyio.from_thread.run_sync(proxy.refuse)
            anyio.from_thread.run_sync(proxy.cut)

        with pytest.raises(LockLost):
            await anyio.to_thread.run_sync(block, proxy.url, cut)


def test_a_workspace_is_edited(orc: Orchestrator) -> None:
    """Views read, an edit changes, events are iterated."""
    view = orc.workspace("101")
    with view.edit(agent="editor") as workspace:
        workspace.set("title", "Rain")
        workspace.append("notes", {"n": 1}, [2])
        workspace.scratch.set("draft", 1)
        assert workspace.scratch.get("draft")["draft"].value == 1
    assert view.get("title")["title"].value == "Rain"
    assert [entry.value for entry in view.log("notes")] == [{"n": 1}, [2]]
    assert list(view.events("0-0", block=0))
    with orc.locks("session:101").hold("doc") as lease:
        view.under(lease, agent="editor").incr("count", 2)
    assert view.get("count")["count"].value == 2


def test_boards_limits_agents_and_configuration(orc: Orchestrator) -> None:
    """Their calls block, and return what the asynchronous ones return."""
    board = orc.board("sales")
    assert board.add("ada", 3) == 3
    assert [(each.member, each.count) for each in board.top()] == [("ada", 3)]
    assert orc.board().top() == []
    assert orc.limits.check("mail", 1, 60).allowed
    assert not orc.limits.check("mail", 1, 60).allowed
    assert orc.agents.active() == {}
    orc.agents.set_state("editor", {"mood": "calm"})
    assert orc.agents.state("editor") == {"mood": "calm"}
    orc.admin.publish_config("greeting", ["hello"])
    assert orc.config.get("greeting") == ["hello"]
    assert [change.key for change in orc.config.changes("0-0", block=0)] == ["greeting"]


def test_chats(orc: Orchestrator) -> None:
    """A script appends, changes and reads a chat, alone and under a lock that it holds."""
    chat = orc.chat("101")
    assert chat.append([{"role": "user", "content": "a"}], op_id="one").numbers == (1,)
    assert chat.append([{"role": "user", "content": "a"}], op_id="one").duplicate
    with orc.locks("session:101").hold("turn") as lease:
        locked = chat.under(lease).source("web")
        locked.append([{"role": "user", "content": "b"}])
    with pytest.raises((LockLost, NotHeld)):
        locked.append([{"role": "user", "content": "c"}])
    chat.set_meta({"topic": "x"})
    held = chat.hydrate(cached=True)
    assert (held.data, held.meta) == ([{"role": "user", "content": "a"}], {"topic": "x"})
    assert chat.hydrate(known=held).not_modified
    assert chat.sources() == ["main", "web"]
    popped = chat.pop()
    assert popped is not None
    assert popped.id == "one.1"
