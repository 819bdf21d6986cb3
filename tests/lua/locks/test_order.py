"""Waiters of a lock that listen for a hint: the server calls them in order of arrival, and passes over who has gone."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import redis

from orchestrator.locks.model import new_nonce
from tests.lua.scope import HELD, TAKEN, Scope

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.every_server


class Calls:
    """What one connection hears."""

    def __init__(self, listener: Any, channels: dict[bytes, str]) -> None:
        self._listener, self._channels = listener, channels
        self._heard: list[str] = []

    def read(self) -> list[str]:
        """Return who was called so far."""
        while (message := self._listener.get_sharded_message(timeout=0.05)) is not None:
            self._heard.append(self._channels[message["channel"]])
        return self._heard


@contextmanager
def listening(scope: Scope, *nonces: str) -> Iterator[Calls]:
    """Listen for these waiters; the list gets who is called."""
    connected: Any = redis.Redis.from_url(scope.url)
    with connected as client, client.pubsub() as listener:
        channels = {f"{scope.keys.wake('lock:n')}:{nonce}".encode(): nonce for nonce in nonces}
        for channel in channels:
            listener.ssubscribe(channel)
            assert listener.get_sharded_message(timeout=5) is not None
        yield Calls(listener, channels)


def wait(scope: Scope, nonce: str, *, wait_ms: int = 5_000) -> None:
    """Wait in the order of the lock."""
    assert scope.take(nonce=nonce, wait_ms=wait_ms, listens=True).status == HELD
    scope.sleep(1)


def test_order_of_arrival(scope: Scope) -> None:
    """Each release calls the one that has waited the longest, and leaves no token for anyone else."""
    holder, waiters = new_nonce(), [new_nonce() for _ in range(5)]
    scope.take(nonce=holder)
    with listening(scope, *waiters) as calls:
        for nonce in waiters:
            wait(scope, nonce)
        wait(scope, waiters[0])  # asking again costs no place
        for number, nonce in enumerate(waiters, 1):
            assert scope.drop("lock:n", holder)
            assert calls.read() == waiters[:number]
            assert not scope.token("lock:n")
            assert scope.take().status == HELD, "no caller overtakes"
            assert scope.take(nonce=nonce, woken=True, listens=True).status == TAKEN
            holder = nonce
    assert scope.drop("lock:n", holder)
    assert scope.names() == [scope.keys.key("fence")]


def test_who_no_longer_listens_is_passed_over(scope: Scope) -> None:
    """Waiters of a process that died cost no time: the next that listens is called; without any, the lock is free."""
    holder, dead, live, late = (new_nonce() for _ in range(4))
    scope.take(nonce=holder)
    for nonce in (dead, live, late):
        wait(scope, nonce)
    with listening(scope, live) as calls:
        scope.drop("lock:n", holder)
        assert calls.read() == [live]
    assert scope.take(nonce=live, woken=True).status == TAKEN
    scope.drop("lock:n", live)
    assert scope.names() == [scope.keys.key("fence")]


def test_who_gave_up_is_passed_over(scope: Scope) -> None:
    """A waiter whose time is over, or that left, is not called, though it still listens."""
    holder, short, left, live = (new_nonce() for _ in range(4))
    scope.take(nonce=holder)
    wait(scope, short, wait_ms=100)
    wait(scope, left)
    wait(scope, live)
    scope.drop("lock:n", left)
    scope.sleep(200)
    with listening(scope, short, left, live) as calls:
        scope.drop("lock:n", holder)
        assert calls.read() == [live]


def test_called_waiter_that_leaves_passes_its_turn_on(scope: Scope) -> None:
    """One that is cancelled when it has its turn calls the next."""
    holder, first, second = (new_nonce() for _ in range(3))
    scope.take(nonce=holder)
    wait(scope, first)
    wait(scope, second)
    with listening(scope, first, second) as calls:
        scope.drop("lock:n", holder)
        scope.drop("lock:n", first)
        assert calls.read() == [first, second]


def test_called_waiter_that_dies_is_forgotten(scope: Scope) -> None:
    """A waiter that dies with its turn is no longer a waiter a second later, so that it delays no further release."""
    holder, dead = new_nonce(), new_nonce()
    scope.take(nonce=holder)
    wait(scope, dead, wait_ms=60_000)
    with listening(scope, dead) as calls:
        scope.drop("lock:n", holder)
        assert calls.read() == [dead]
        assert 0 < scope.left_ms("lock:n") <= 500
    scope.lapse("lock:n")
    scope.sleep(1_100)
    other = new_nonce()
    assert scope.take(nonce=other).status == TAKEN
    scope.drop("lock:n", other)
    assert not scope.token("lock:n")
    assert scope.take().status == TAKEN


def test_both_kinds_have_turns(scope: Scope) -> None:
    """Where programs that listen share a lock with programs that block on the wake list, each kind gets some turns."""
    holder, silent = new_nonce(), new_nonce()
    scope.take(nonce=holder)
    scope.take(nonce=silent, wait_ms=60_000)
    turns = set()
    for _ in range(10):
        nonce = new_nonce()
        with listening(scope, nonce) as calls:
            scope.take(nonce=nonce, wait_ms=5_000, listens=True)
            scope.sleep(1)
            scope.drop("lock:n", holder)
            heard = bool(calls.read())
            assert scope.token("lock:n") is not heard
            turns.add(heard)
            holder = nonce if heard else silent
            assert scope.take(nonce=holder, woken=True).status == TAKEN
            if not heard:
                scope.drop("lock:n", nonce)
                scope.drop("lock:n", holder)
                holder = new_nonce()
                assert scope.take(nonce=holder).status == TAKEN
                scope.take(nonce=silent, wait_ms=60_000)
    assert turns == {True, False}


@pytest.mark.parametrize("may", ["+spublish", "-spublish"])
def test_a_user_that_may_not_publish_leaves_the_token(scope: Scope, may: str) -> None:
    """Without the right to publish a release falls back on the wake list, and the script does not fail halfway."""
    holder, waiter = new_nonce(), new_nonce()
    scope.take(nonce=holder)
    wait(scope, waiter)
    user = f"u{scope.keys.prefix.partition(':')[0]}"
    connected: Any = redis.Redis.from_url(scope.url)
    with connected as admin, listening(scope, waiter) as calls:
        admin.execute_command("ACL", "SETUSER", user, "on", ">pw", "~*", "&*", "+@all", may)
        try:
            limited = Scope(scope.url, scope.keys.prefix)
            limited.store.execute("AUTH", user, "pw")
            limited.now_us = scope.now_us
            assert limited.drop("lock:n", holder)
            limited.close()
        finally:
            admin.execute_command("ACL", "DELUSER", user)
        called = calls.read() == [waiter]
    assert (called, scope.token("lock:n")) == ((True, False) if may[0] == "+" else (False, True))
