"""Services for tests without Redis; every call raises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

from orchestrator.core.errors import OrchestratorError
from orchestrator.core.formats import FORMAT
from orchestrator.core.live_settings import LiveSettings
from orchestrator.services import Endpoint, Services, pool_keys
from orchestrator.store.calls import opaque
from orchestrator.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.core.settings import Settings
    from orchestrator.store.router import Router
    from orchestrator.tasks.scripts import SubmitRow

OPAQUE_MARK_BYTES: Final = len(bytes(opaque(b"")))


class NoStore(Store):
    """Refuses every call."""

    async def call(self, call: Any, *, retry_for_s: float = 0.0) -> NoReturn:  # noqa: ARG002
        """Refuse a script."""
        raise _refusal(call.script)

    async def execute(self, *command: Any) -> NoReturn:
        """Refuse a command."""
        raise _refusal(command[0])

    async def pipeline(self, commands: Any) -> NoReturn:
        """Refuse commands."""
        raise _refusal(commands[0][0])

    def blocking_link(
        self,
        block_s: float,  # noqa: ARG002
        *,
        name: str = "block",
        opened: Callable[[], None] | None = None,  # noqa: ARG002
    ) -> Router:
        """Refuse to block."""
        raise _refusal(name)


def _refusal(what: object) -> OrchestratorError:
    return OrchestratorError(
        f"there is no server here to ask ({what}); run a whole team for this: orchestrator.workers.testing.Team"
    )


def packed_envelope(row: SubmitRow) -> bytes:
    """Return the envelope of a row as a delivery carries it, without the mark for scripts."""
    return bytes(row.envelope)[OPAQUE_MARK_BYTES:]


def offline_services(settings: Settings) -> Services:
    """Return services for parts of a worker that need no server."""
    where, keys = Endpoint.at("unix:///no/server"), pool_keys(settings)
    store = NoStore(where, keys, name="offline")
    store.floor.note(FORMAT)  # no older program shares the tests
    return Services(LiveSettings(settings), where, keys, store)
