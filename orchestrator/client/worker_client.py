"""The client of a worker's handlers."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from orchestrator.client.client import Orchestrator
from orchestrator.core.log import get_logger

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from orchestrator.services import Services

_log = get_logger(__name__)


class WorkerClient(Orchestrator):
    """Submits the children of a worker's tasks, also once the pool no longer admits the worker.

    It shares the store of the worker, so that it opens no further connection for short commands and for hints.

    A worker below the floor of its pool takes no more tasks, but finishes those that it has (protocol rule 30).
    """

    def __init__(self, services: Services) -> None:
        super().__init__(settings=services.settings)
        self._live, self._shared = services.live, services
        self._worker_floor = services.store.floor

    def _open_services(self) -> AbstractAsyncContextManager[Services]:
        return nullcontext(self._shared)

    def _warn_of_absence(self, absence: str) -> None:
        _log.warning("no_agent_for_child", error=absence)
