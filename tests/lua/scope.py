"""A scope for script tests of locks: short calls with the wrappers behind them, and a clock that a test moves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.core.ids import new_task_id
from orchestrator.locks import scripts
from orchestrator.locks.model import TakeReply, TakeStatus, new_nonce
from orchestrator.store.keys import PoolKeys, ScopeKeys
from orchestrator.store.store import Endpoint, SyncStore
from tests.lua.keyspace import names, snapshot
from tests.lua.pool import START_US

if TYPE_CHECKING:
    from orchestrator.locks.model import LockInfo
    from orchestrator.store.calls import Call

T = TypeVar("T")
TTL_MS = 60_000


class Scope:
    """One scope on one server.

    Attributes:
        now_us: the time that every call is given.
        to_wake: the task that the last release asked to wake.
    """

    def __init__(self, url: str, prefix: str, kind: str = "session", id_: str = "s 1") -> None:
        self.keys = ScopeKeys(prefix, kind, id_)
        self.url = url
        self.store = SyncStore(Endpoint.at(url), PoolKeys(prefix, "p"), name="test")
        self.link = self.store._router
        self.now_us = START_US
        self.to_wake = ""

    def sleep(self, ms: int) -> None:
        """Move the clock of the scripts; times to live follow the server's."""
        self.now_us += ms * 1000

    def call(self, call: Call[T]) -> T:
        """Run a call under the scope's clock."""
        if "now_arg" in call.args:
            call = replace(call, args={**call.args, "now_arg": str(self.now_us)})
        return self.store.call(call)

    def take(self, lock: str = "lock:n", nonce: str | None = None, **options: Any) -> TakeReply:
        """Run take."""
        options = {"owner": "me", "ttl_ms": TTL_MS, **options}
        return self.call(scripts.take(self.keys, lock=lock, nonce=nonce or new_nonce(), **options))

    def claim(
        self, lock: str, task: str, generation: str = "10", nonce: str | None = None, **options: Any
    ) -> TakeReply:
        """Run claim."""
        options = {"ttl_ms": TTL_MS, **options}
        return self.call(
            scripts.claim(self.keys, lock=lock, task=task, generation=generation, nonce=nonce or new_nonce(), **options)
        )

    def renew(self, lock: str, value: str, ttl_ms: int = TTL_MS) -> tuple[bool, str]:
        """Renew one lock."""
        (answer,) = self.call(scripts.renew(self.keys, rows=[(lock, value, ttl_ms)]))
        return answer

    def drop(self, lock: str, nonce: str) -> bool:
        """Give one lock up."""
        (reply,) = self.call(scripts.drop(self.keys, rows=[(lock, nonce)]))
        self.to_wake = reply.wake
        return reply.released

    def free(self, lock: str, task: str, generation: str) -> bool:
        """Release the lock of a dead attempt."""
        (reply,) = self.call(scripts.free(self.keys, rows=[(lock, task, generation)]))
        self.to_wake = reply.wake
        return reply.released

    def peek(self, lock: str = "") -> list[LockInfo]:
        """Run look."""
        return self.call(scripts.peek(self.keys, lock=lock))

    def lapse(self, lock: str) -> None:
        """Let a lock's time be over."""
        self.store.execute("DEL", self.keys.key(lock))

    def left_ms(self, suffix: str) -> int:
        """What a key has left."""
        return int(self.store.execute("PTTL", self.keys.key(suffix)))

    def token(self, lock: str) -> bool:
        """Take the token of the wake list, as whoever is blocked there would."""
        return self.store.execute("LPOP", self.keys.wake(lock)) is not None

    def names(self) -> list[str]:
        """Every key of this namespace."""
        return names(self.link, f"{self.keys.prefix}:")

    def snapshot(self) -> dict[str, Any]:
        """Everything that this namespace holds."""
        return snapshot(self.link, f"{self.keys.prefix}:")

    def close(self) -> None:
        """Close the connection."""
        self.store.close()


def task_id() -> str:
    """The id of some task."""
    return new_task_id()


TAKEN, HELD, AWAITED, FENCED = TakeStatus.TAKEN, TakeStatus.HELD, TakeStatus.AWAITED, TakeStatus.FENCED
FREE = TakeStatus.FREE
