"""Sends changes of shared state under a lock, each of them once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from orchestrator.core.errors import InvalidInput, OrchestratorError
from orchestrator.core.ids import check_name
from orchestrator.core.payload import encode_json
from orchestrator.store.scoped import OpIds

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.locks.model import LockProof, WriteGuard
    from orchestrator.store.calls import Call
    from orchestrator.store.scoped import ScopedStore

_TRIES: Final = 3


class CallerRow(NamedTuple):
    """The caller of a change.

    Attributes:
        op: op id; a second call with the same one changes nothing.
        lock: suffix of the lock that the change presents, or empty if there is none.
        token: value that the lock must hold.
        agent: agent in whose name the change is made; may be empty.
    """

    op: str
    lock: str
    token: str
    agent: str


class WriteReply(Protocol):
    """Reply of a script that changes shared state."""

    @property
    def status(self) -> str:
        """`fenced`: the lock does not hold the caller's token, and nothing was changed."""

    @property
    def rest(self) -> tuple[Any, ...]:
        """For `fenced`: the bytes that the lock holds instead, empty when it has lapsed."""


R = TypeVar("R", bound=WriteReply)


class FencedWriter:
    """Sends the changes of one handle to one scope.

    Attributes:
        scope: scope whose state is changed.
        agent: agent in whose name; may be empty.
    """

    __slots__ = ("_guard", "_max_value_bytes", "_op_ids", "agent", "scope")

    def __init__(
        self, scope: ScopedStore, guard: WriteGuard | None = None, *, agent: str = "", max_value_bytes: int
    ) -> None:
        self.scope, self.agent = scope, check_name("agent", agent) if agent else ""
        self._guard, self._max_value_bytes = guard, max_value_bytes
        self._op_ids = OpIds()

    async def send(self, make_call: Callable[[CallerRow], Call[R]], op_id: str | None) -> R:
        """Send a change. The caller handles every status but `fenced`.

        Raises:
            Fenced, LockLost: another owner has the lock.
            InvalidInput: the lock belongs to another scope.
            StoreError: Redis did not do it; a repeat with the same `op_id` is made once.
        """
        op, guard = self._op_ids.take(op_id), self._guard
        if guard is None:
            return await self.scope.call(make_call(CallerRow(op, "", "", self.agent)))
        proof = await guard.proof()
        for _ in range(_TRIES):
            self._check_scope(proof)
            reply = await self.scope.call(make_call(CallerRow(op, proof.lock, proof.value, self.agent)))
            if reply.status != "fenced":
                return reply
            proof = await guard.reacquire(proof, reply.rest[0].decode())
        raise OrchestratorError(f"the lock of {self._scope_text} lapsed {_TRIES} times in a row; nothing was changed")

    def _check_scope(self, proof: LockProof) -> None:
        if proof.keys != self.scope.keys:
            raise InvalidInput(
                f"this lock is of {proof.keys.kind} {proof.keys.id!r} and cannot guard {self._scope_text}; "
                "a lock guards its own scope alone"
            )

    @property
    def _scope_text(self) -> str:
        return f"{self.scope.keys.kind} {self.scope.keys.id!r}"

    def encode(self, what: str, value: Any) -> bytes:
        """Encode a value or pydantic model as JSON.

        Raises:
            InvalidInput: JSON cannot hold it, or it is too large.
        """
        data = value.model_dump(mode="json") if hasattr(value, "model_dump") else value
        max_depth = self.scope.settings.queue.max_depth
        return encode_json(what, data, max_bytes=self._max_value_bytes, max_depth=max_depth)
