"""Sends changes of shared state under a lock, each of them once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from orchestrator.core.errors import InvalidInput, Occupied, OrchestratorError
from orchestrator.core.ids import check_name
from orchestrator.core.payload import encode_json
from orchestrator.core.reading import read_text
from orchestrator.locks import scripts
from orchestrator.locks.model import PROFILES, TakeReply, TakeStatus, describe, new_nonce, scope_name
from orchestrator.store.keys import EXECUTION
from orchestrator.store.scoped import OpIds

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.core.settings import Settings
    from orchestrator.locks.model import LockProof, WriteGuard
    from orchestrator.locks.waiter import LockWaiter
    from orchestrator.store.calls import Call
    from orchestrator.store.scoped import ScopedStore, StateAction

WRITE_WAIT_S: Final = PROFILES["memory"].wait
"""Time that a change waits while another owner holds its scope alone."""
_TRIES: Final = 3
_NEVER_MS: Final = 10**9


class CallerRow(NamedTuple):
    """The caller of a change.

    Attributes:
        op: op id; a second call with the same one changes nothing.
        lock: suffix of the lock that the change presents, or empty if there is none.
        token: value that the lock must hold.
        agent: agent in whose name the change is made; may be empty.
        exclusive: value of the scope's exclusive lock if the caller holds that too; empty otherwise.
    """

    op: str
    lock: str
    token: str
    agent: str
    exclusive: str = ""


class WriteReply(Protocol):
    """Reply of a script that changes shared state."""

    @property
    def status(self) -> str:
        """Outcome; nothing was changed if it is one of these two.

        `fenced`: the lock does not hold the caller's token. `occupied`: another owner holds the scope's exclusive lock.
        """

    @property
    def rest(self) -> tuple[Any, ...]:
        """For `fenced`: the bytes that the lock holds instead, empty when it has lapsed.

        For `occupied`: the bytes of the exclusive lock, and the ms that it has left.
        """


R = TypeVar("R", bound=WriteReply)


class FencedWriter:
    """Sends the changes of one handle to one scope.

    A change waits while another owner holds the scope's exclusive lock: a task with `lock="session"` or `"agent"`, or
    an exclusive editor.

    Attributes:
        scope: scope whose state is changed.
        agent: agent in whose name; may be empty.
        waiter: waits for locks.
        wait_s: time that a change waits.
        guard: right to change the scope; None: changes present no lock.
        enclosing: right to change the scope that the caller of the handle has; `guard` by default.
    """

    __slots__ = ("_max_value_bytes", "_op_ids", "agent", "enclosing", "guard", "scope", "wait_s", "waiter")

    def __init__(
        self,
        scope: ScopedStore,
        guard: WriteGuard | None = None,
        *,
        waiter: LockWaiter,
        enclosing: WriteGuard | None = None,
        agent: str = "",
        wait_s: float = WRITE_WAIT_S,
        max_value_bytes: Callable[[Settings], int],
    ) -> None:
        self.scope, self.agent = scope, check_name("agent", agent) if agent else ""
        self.waiter, self.wait_s = waiter, wait_s
        self.guard, self.enclosing, self._max_value_bytes = guard, enclosing or guard, max_value_bytes
        self._op_ids = OpIds()

    async def send(
        self, make_call: Callable[[CallerRow], Call[R]], op_id: str | None, action: StateAction | None = None
    ) -> R:
        """Send a change. The caller handles every status but `fenced` and `occupied`.

        Args:
            make_call: makes the call of a script.
            op_id: id of the change.
            action: what the record of the programs' actions calls the change; None: it has no record.

        Raises:
            Fenced, LockLost: another owner has the lock.
            Occupied: another owner holds the scope alone.
            InvalidInput: the lock belongs to another scope.
            StoreError: Redis did not do it; a repeat with the same `op_id` is made once.
        """
        op = self._op_ids.take(op_id)
        reply = await self._send(make_call, op)
        if reply.status == "occupied":
            reply = await self._send_when_free(make_call, op, reply)
        if action is not None and reply.status == "ok":
            self.scope.note_change(action)
        return reply

    async def _send(self, make_call: Callable[[CallerRow], Call[R]], op: str) -> R:
        guard, exclusive = self.guard, self.enclosing.exclusive_value if self.enclosing is not None else ""
        if guard is None:
            return await self.scope.call(make_call(CallerRow(op, "", "", self.agent, exclusive)))
        proof = await guard.proof()
        for _ in range(_TRIES):
            self._check_scope(proof)
            reply = await self.scope.call(make_call(CallerRow(op, proof.lock, proof.value, self.agent, exclusive)))
            if reply.status != "fenced":
                return reply
            proof = await guard.reacquire(proof, read_text(reply.rest[0]))
        raise OrchestratorError(
            f"the lock of {self.scope.keys.words} lapsed {_TRIES} times in a row; nothing was changed"
        )

    async def _send_when_free(self, make_call: Callable[[CallerRow], Call[R]], op: str, reply: R) -> R:
        """Wait for the exclusive lock of the scope in order of arrival, and send a change again."""
        keys, nonce, began_s = self.scope.keys, new_nonce(), time.monotonic()
        task = self.enclosing.task if self.enclosing is not None else ""

        def make_enter_call(wait_ms: int, *, woken: bool, listens: bool) -> Call[TakeReply]:  # noqa: ARG001 - it takes nothing
            return scripts.enter(keys, task=task, nonce=nonce, wait_ms=wait_ms, listens=listens)

        refused = TakeReply(TakeStatus.HELD, read_text(reply.rest[0]), reply.rest[1])
        try:
            while (left_s := began_s + self.wait_s - time.monotonic()) > 0:
                got = await self.waiter.get(
                    keys, EXECUTION, nonce=nonce, ttl_ms=_NEVER_MS, wait_s=left_s, make_call=make_enter_call
                )
                if got.reply.status is not TakeStatus.FREE:
                    refused = got.reply
                    break
                reply = await self._send(make_call, op)
                if reply.status != "occupied":
                    return reply
                refused = TakeReply(TakeStatus.HELD, read_text(reply.rest[0]), reply.rest[1])
        finally:
            await self.waiter.release(keys, EXECUTION, nonce)
        raise Occupied(
            scope_name(keys),
            describe(refused.value),
            refused.left_ms,
            time.monotonic() - began_s,
            deadlock=refused.status is TakeStatus.AWAITED,
        )

    def _check_scope(self, proof: LockProof) -> None:
        if proof.keys != self.scope.keys:
            raise InvalidInput(
                f"this lock is of {proof.keys.words} and cannot guard {self.scope.keys.words}; "
                "a lock guards its own scope alone"
            )

    def encode(self, what: str, value: Any) -> bytes:
        """Encode a value or pydantic model as JSON.

        Raises:
            InvalidInput: JSON cannot hold it, or it is too large.
        """
        data = value.model_dump(mode="json") if hasattr(value, "model_dump") else value
        max_depth = self.scope.settings.queue.max_depth
        return encode_json(what, data, max_bytes=self._max_value_bytes(self.scope.settings), max_depth=max_depth)
