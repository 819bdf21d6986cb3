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
from orchestrator.workspace.scripts import Answer, Caller
from orchestrator.workspace.terms import pack_terms

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.core.settings import Settings, WorkspaceSettings
    from orchestrator.locks.model import Authority
    from orchestrator.store.calls import Call
    from orchestrator.store.store import Store

MAX_ROWS: Final = 500
"""What one change may touch: a script is one step, and others wait for it."""
MAX_CALL_BYTES: Final = 4 * 1024 * 1024
MAX_INBOX: Final = 1000
MAX_DIRECTIVE_BYTES: Final = 16 * 1024
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Place:
    """Where a workspace lies and what its changes are bound by; shared by all handles of a process."""

    store: Store
    keys: ScopeKeys
    settings: WorkspaceSettings
    max_depth: int
    patience_s: float
    packed_terms: bytes


def make_place(store: Store, session: str, settings: Settings) -> Place:
    """The place of one session's workspace.

    Raises:
        InvalidInput: an id that no key can hold.
    """
    return Place(
        store,
        ScopeKeys(settings.prefix, "session", session),
        settings.workspace,
        settings.queue.max_depth,
        settings.redis.command_timeout_s,
        pack_terms(settings.workspace),
    )


class Changes:
    """The changes of one handle: under one lock, in the name of one agent."""

    __slots__ = ("_authority", "_numbers", "_stem", "agent", "place")

    def __init__(self, place: Place, authority: Authority, *, agent: str) -> None:
        self.place, self.agent = place, check_name("agent", agent) if agent else ""
        self._authority = authority
        self._stem, self._numbers = self.new_stem(), itertools.count()

    @staticmethod
    def new_stem() -> str:
        """The random part of names that are given here."""
        return secrets.token_urlsafe(9)

    async def send(self, make: Callable[[Caller], Call[Answer]], op_id: str | None) -> Answer:
        """Make a change, whose refusals for other reasons than the lock or a cap are left to the caller.

        Raises:
            Fenced, LockLost: somebody else has the lock by now.
            WorkspaceFull: a cap was reached.
            StoreError: Redis did not do it; repeated with the same `op_id` it is not done twice.
        """
        # A name is given also when the caller gave none: the store repeats a call whose answer was lost.
        op = f"{self._stem}{next(self._numbers)}" if op_id is None else f"={check_text('op_id', op_id)}"
        claim = await self._authority.claim()
        for _ in range(_TRIES):
            if claim.keys != self.place.keys:
                raise InvalidInput(
                    f"this lock is of {claim.keys.kind} {claim.keys.id!r}, the workspace of session "
                    f"{self.place.keys.id!r}; a lock guards its own scope alone"
                )
            call = make(Caller(op, claim.lock, claim.value, self.agent))
            answer = await self.place.store.call(call, patience_s=self.place.patience_s)
            if answer.status != "fenced":
                break
            claim = await self._authority.refused(claim, answer.rest[0].decode())
        else:
            raise OrchestratorError(f"the lock of session {self.place.keys.id!r} lapses faster than it can be used")
        if answer.status == "full":
            raise self._full(answer.rest[0].decode())
        return answer

    def _full(self, what: str) -> WorkspaceFull:
        settings = self.place.settings
        name, cap = {
            "items": ("workspace.max_items", settings.max_items),
            "bytes": ("workspace.max_bytes", settings.max_bytes),
            "parts": ("workspace.max_parts", settings.max_parts),
            "agents": ("workspace.max_parts", settings.max_parts),
            "inbox": ("the cap of waiting directives", MAX_INBOX),
        }[what]
        return WorkspaceFull(self.place.keys.id, what, name, cap)

    def encode(self, what: str, value: Any) -> bytes:
        """Make JSON of a value.

        Raises:
            InvalidInput: JSON cannot hold it, or it is too large.
        """
        data = value.model_dump(mode="json") if hasattr(value, "model_dump") else value
        return encode_json(what, data, max_bytes=self.place.settings.max_value_bytes, max_depth=self.place.max_depth)


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
