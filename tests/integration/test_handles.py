"""Waiting for a result: how long may be said in two ways, and a closed client says that it is."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import anyio
import pytest

from orchestrator.client.client import Orchestrator
from orchestrator.core.errors import InvalidInput, OrchestratorError

if TYPE_CHECKING:
    from orchestrator.core.settings import Settings
    from tests.helpers.local_team import LocalTeam


async def test_a_wait_is_seconds_or_a_timedelta(team: LocalTeam) -> None:
    """Both forms of a duration end a wait; what is no duration is refused."""
    handle = await team.orc.submit("nobody_can", {})
    with pytest.raises(TimeoutError, match=r"has not ended after 0\.05 s"):
        await handle.result(timeout=timedelta(milliseconds=50))
    with pytest.raises(TimeoutError, match="has not ended after 0 s"):
        await handle.result(timeout=0)
    with pytest.raises(InvalidInput, match="timeout must not be negative"):
        await handle.result(timeout=-1)
    with pytest.raises(InvalidInput, match="timeout is not a finite number"):
        await handle.result(timeout=float("nan"))


async def test_a_handle_of_a_closed_client_waits_for_nothing(settings: Settings) -> None:
    """Nobody would ever answer, so it is an error at once."""
    async with Orchestrator(settings=settings) as orc:
        handle = await orc.submit("nobody_can", {})
    with (
        anyio.fail_after(5),
        pytest.raises(OrchestratorError, match=f"is closed; ask an open one for task {handle.id}"),
    ):
        await handle.result()
