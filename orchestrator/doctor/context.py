"""Input of the checks of server and pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.core.settings import Settings
    from orchestrator.store.server_info import ServerInfo
    from orchestrator.store.store import Store


@dataclass(frozen=True, slots=True)
class CheckContext:
    """One server and one pool on it.

    Attributes:
        config: reply of CONFIG GET; empty if the user may not run it.
    """

    settings: Settings
    store: Store
    info: ServerInfo
    config: Mapping[str, str]
