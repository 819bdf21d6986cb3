"""Sends the changes of one workspace handle, and checks their sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import InvalidInput, WorkspaceFull
from orchestrator.core.reading import read_text
from orchestrator.locks.fenced_writer import WRITE_WAIT_S, FencedWriter
from orchestrator.workspace.scripts import ChangeCall, pack_limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.core.settings import WorkspaceSettings
    from orchestrator.locks.model import WriteGuard
    from orchestrator.locks.waiter import LockWaiter
    from orchestrator.store.calls import Call
    from orchestrator.store.scoped import ScopedStore, StateAction
    from orchestrator.workspace.scripts import ChangeReply

MAX_ROWS: Final = 500
"""Rows in one change: the server runs nothing else while a script runs."""
MAX_CALL_BYTES: Final = 4 * 1024 * 1024
MAX_INBOX: Final = 1000
MAX_DIRECTIVE_BYTES: Final = 16 * 1024


class WorkspaceWriter(FencedWriter):
    """Makes the changes of one handle, under one lock and in the name of one agent."""

    __slots__ = ()

    def __init__(
        self,
        scope: ScopedStore,
        guard: WriteGuard | None,
        *,
        waiter: LockWaiter,
        enclosing: WriteGuard | None = None,
        agent: str,
        wait_s: float = WRITE_WAIT_S,
    ) -> None:
        super().__init__(
            scope, guard, waiter=waiter, enclosing=enclosing, agent=agent, wait_s=wait_s,
            max_value_bytes=lambda settings: settings.workspace.max_value_bytes,
        )  # fmt: skip

    @property
    def settings(self) -> WorkspaceSettings:
        """The settings of now."""
        return self.scope.settings.workspace

    async def change(
        self,
        make_call: Callable[[ChangeCall], Call[ChangeReply]],
        op_id: str | None,
        action: StateAction | None = "change-workspace",
    ) -> ChangeReply:
        """Send a change. The caller handles every status but `fenced`, `occupied` and `full`.

        Raises:
            Fenced, LockLost: another owner has the lock.
            Occupied: another owner holds the session alone.
            WorkspaceFull: a cap was reached.
            StoreError: Redis did not do it; a repeat with the same `op_id` is made once.
        """
        reply = await self.send(
            lambda caller: make_call(ChangeCall(self.scope.keys, caller, pack_limits(self.settings))), op_id, action
        )
        if reply.status == "full":
            raise self._full(read_text(reply.rest[0]))
        return reply

    def _full(self, what: str) -> WorkspaceFull:
        settings = self.settings
        name, cap = {
            "items": ("workspace.max_items", settings.max_items),
            "bytes": ("workspace.max_bytes", settings.max_bytes),
            "parts": ("workspace.max_parts", settings.max_parts),
            "agents": ("workspace.max_parts", settings.max_parts),
            "inbox": ("the cap of waiting directives", MAX_INBOX),
        }[what]
        return WorkspaceFull(self.scope.keys.id, what, name, cap)


def check_rows(what: str, count: int, sizes: int = 0) -> None:
    """Limit the work of one change.

    Raises:
        InvalidInput: no rows, more than 500 rows, or more than 4 MiB.
    """
    if count == 0:
        raise InvalidInput(f"no {what} given; nothing would be changed")
    if count > MAX_ROWS or sizes > MAX_CALL_BYTES:
        raise InvalidInput(
            f"{count} {what} of {sizes} bytes are too much for one change; "
            f"send at most {MAX_ROWS} and {MAX_CALL_BYTES} bytes at a time"
        )
