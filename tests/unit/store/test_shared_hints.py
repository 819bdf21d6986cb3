"""Listeners that share a connection for hints: what they hear when it ends meanwhile, and what is checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from orchestrator.core.errors import ServerUnavailable
from orchestrator.store.hints import Hints
from orchestrator.store.shared_hints import SharedHints

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestrator.store.router import Router

pytestmark = pytest.mark.anyio


class FakeHints:
    """A connection that ends while a subscription is under way, as often as the test says."""

    def __init__(self, received: Callable[[str, str], None], ended: Callable[[], None]) -> None:
        self.received, self._ended = received, ended
        self.ends = 0

    async def open(self) -> None:
        """Open."""

    async def subscribe(self, channels: Sequence[str]) -> None:
        """Subscribe."""
        if self.ends:
            self.ends -= 1
            self._ended()

    async def unsubscribe(self, channels: Sequence[str]) -> None:
        """Unsubscribe."""

    async def close(self) -> None:
        """Close."""

    def discard_idle(self) -> None:
        """Close."""


class Ear:
    """Notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.interruptions = 0

    def received(self, channel: str, message: str) -> None:
        """Note a message."""
        self.heard.append(message)

    def interrupted(self) -> None:
        """Count an end."""
        self.interruptions += 1


def make_hints() -> tuple[SharedHints, FakeHints]:
    """Hints over a fake connection."""
    made: list[FakeHints] = []

    def open_hints(received: Callable[[str, str], None], ended: Callable[[], None]) -> Hints:
        made.append(FakeHints(received, ended))
        return cast("Hints", made[0])

    return SharedHints(open_hints), made[0]


async def test_a_connection_that_ends_meanwhile() -> None:
    """The listener is told to subscribe again, and then hears."""
    hints, connection = make_hints()
    ear, connection.ends = Ear(), 1
    with pytest.raises(ServerUnavailable, match="subscribe again"):
        await hints.subscribe(["c"], ear)
    assert ear.interruptions == 1
    await hints.subscribe(["c"], ear)
    connection.received("c", "news")
    assert ear.heard == ["news"]
    await hints.close()


async def test_each_open_connection_is_checked() -> None:
    """In a cluster a process listens at several servers, and each of these connections may be frozen."""
    pinged: list[str] = []

    class FakeLink:
        def __init__(self, name: str) -> None:
            self._name = name

        async def execute(self, *command: str) -> None:
            pinged.append(f"{self._name} {command[0]}")

    class FakeRouter:
        open_links = (FakeLink("a"), FakeLink("b"))

        async def close(self) -> None:
            """Close."""

        def discard_idle(self) -> None:
            """Close."""

    await Hints(cast("Router", FakeRouter())).check()
    assert pinged == ["a PING", "b PING"]
