"""Measures delays of the event loop in a test."""

from __future__ import annotations

import asyncio

from orchestrator.core.errors import OrchestratorError


def check_event_loop() -> None:
    """Check that asyncio runs.

    Raises:
        OrchestratorError: no event loop runs, or that of another library.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise OrchestratorError(
            "this needs a running asyncio event loop; for anyio's pytest plugin write a fixture `anyio_backend` that "
            'returns "asyncio"'
        ) from None
