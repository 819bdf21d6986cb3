"""Sends one change of a workspace: names it, shows the lock, gets a lapsed lock back once, says why it was refused."""

from __future__ import annotations

import itertools
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.errors import InvalidInput, OrchestratorError, WorkspaceFull
from orchestrator.core.ids import check_name, check_text
from orchestrator.core.payload import encode_json
from orchestrator.store.keys import ScopeKeys
from orchestrator.workspace.limits import pack_limits
from orchestrator.workspace.scripts import CallerRow, ChangeReply

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.core.settings import Settings, WorkspaceSettings
    from orchestrator.locks.model import WriteGuard
    from orchestrator.store.calls import Call
    from orchestrator.store.store import Store

MAX_ROWS: Final = 500
"""What one change may touch: a script is one step, and others wait for it."""
MAX_CALL_BYTES: Final = 4 * 1024 * 1024
MAX_INBOX: Final = 1000
MAX_DIRECTIVE_BYTES: Final = 16 * 1024
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class WorkspaceBackend:
    """Where a workspace lies and what its changes are bound by; shared by all handles of a process."""

    store: Store
    keys: ScopeKeys
    settings: WorkspaceSettings
    max_depth: int
    retry_for_s: float
    workspace_limits: bytes


def make_backend(store: Store, session: str, settings: Settings) -> WorkspaceBackend:
    """The place of one session's workspace.

    Raises:
        InvalidInput: an id that no key can hold.
    """
    return WorkspaceBackend(
        store,
        ScopeKeys(settings.prefix, "session", session),
        settings.workspace,
        settings.queue.max_depth,
        settings.redis.command_timeout_s,
        pack_limits(settings.workspace),
    )


class WorkspaceWriter:
    """The changes of one handle: under one lock, in the name of one agent."""

    __slots__ = ("_guard", "_numbers", "_stem", "agent", "backend")

    def __init__(self, backend: WorkspaceBackend, guard: WriteGuard, *, agent: str) -> None:
        self.backend, self.agent = backend, check_name("agent", agent) if agent else ""
        self._guard = guard
        self._stem, self._numbers = self.new_stem(), itertools.count()

    @staticmethod
    def new_stem() -> str:
        """The random part of names that are given here."""
        return secrets.token_urlsafe(9)

    async def send(self, make: Callable[[CallerRow], Call[ChangeReply]], op_id: str | None) -> ChangeReply:
        """Make a change, whose refusals for other reasons than the lock or a cap are left to the caller.

        Raises:
            Fenced, LockLost: somebody else has the lock by now.
            WorkspaceFull: a cap was reached.
            StoreError: Redis did not do it; repeated with the same `op_id` it is not done twice.
        """
        # A name is given also when the caller gave none: the store repeats a call whose answer was lost.
        op = f"{self._stem}{next(self._numbers)}" if op_id is None else f"={check_text('op_id', op_id)}"
        proof = await self._guard.proof()
        for _ in range(_TRIES):
            if proof.keys != self.backend.keys:
                raise InvalidInput(
                    f"this lock is of {proof.keys.kind} {proof.keys.id!r}, the workspace of session "
                    f"{self.backend.keys.id!r}; a lock guards its own scope alone"
                )
            call = make(CallerRow(op, proof.lock, proof.value, self.agent))
            answer = await self.backend.store.call(call, retry_for_s=self.backend.retry_for_s)
            if answer.status != "fenced":
                break
            proof = await self._guard.reacquire(proof, answer.rest[0].decode())
        else:
            raise OrchestratorError(f"the lock of session {self.backend.keys.id!r} lapses faster than it can be used")
        if answer.status == "full":
            raise self._full(answer.rest[0].decode())
        return answer

    def _full(self, what: str) -> WorkspaceFull:
        settings = self.backend.settings
        name, cap = {
            "items": ("workspace.max_items", settings.max_items),
            "bytes": ("workspace.max_bytes", settings.max_bytes),
            "parts": ("workspace.max_parts", settings.max_parts),
            "agents": ("workspace.max_parts", settings.max_parts),
            "inbox": ("the cap of waiting directives", MAX_INBOX),
        }[what]
        return WorkspaceFull(self.backend.keys.id, what, name, cap)

    def encode(self, what: str, value: Any) -> bytes:
        """Make JSON of a value.

        Raises:
            InvalidInput: JSON cannot hold it, or it is too large.
        """
        data = value.model_dump(mode="json") if hasattr(value, "model_dump") else value
        return encode_json(
            what, data, max_bytes=self.backend.settings.max_value_bytes, max_depth=self.backend.max_depth
        )


def check_rows(what: str, count: int, sizes: int = 0) -> None:
    """See that one change is not too much for one step of the server.

    Raises:
        InvalidInput: nothing at all, more than 500 rows, or more than 4 MiB.
    """
    if count == 0:
        raise InvalidInput(f"no {what} given; nothing would be changed")
    if count > MAX_ROWS or sizes > MAX_CALL_BYTES:
        raise InvalidInput(
            f"{count} {what} of {sizes} bytes are too much for one change; "
            f"send at most {MAX_ROWS} and {MAX_CALL_BYTES} bytes at a time"
        )
