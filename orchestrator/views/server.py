"""Reads facts about the Redis server."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.services import Services
    from orchestrator.store.server_info import ServerInfo


async def read_server(services: Services) -> ServerInfo:
    """Read facts about the server."""
    return await services.store.server_info()


async def ping(services: Services) -> None:
    """Ask the server for an answer.

    Raises:
        StoreError: it does not give one.
    """
    await services.store.execute("PING")
