"""The client of a command line that ends soon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.client.client import Orchestrator
from orchestrator.services import open_services

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from orchestrator.services import Services


class CommandClient(Orchestrator):
    """Reads and loads each script when its first call needs it."""

    def _open_services(self) -> AbstractAsyncContextManager[Services]:
        return open_services(self._live, name="client", brief=True)
