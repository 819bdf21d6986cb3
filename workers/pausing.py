"""Pauses with an end, as `ctx.pause_agent` and `ctx.limit(name).pause` give them: one 429 holds back all workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from orchestrator.control.commands import make_command
from orchestrator.control.scripts import AppendStatus
from orchestrator.control.sending import send
from orchestrator.core.command_record import SAID_CHARS
from orchestrator.core.durations import to_seconds
from orchestrator.core.errors import CommandRefused, InvalidInput

if TYPE_CHECKING:
    from orchestrator.control.commands import Command
    from orchestrator.core.durations import Duration
    from orchestrator.services import Services


class Pausing(Protocol):
    """Gives the commands that pause an agent or a limit."""

    async def give(self, command: Command, reason: str) -> None:
        """Give a command; do nothing when a pause of the same target ends later."""

    async def check_limit(self, name: str) -> None:
        """Raise InvalidInput if the pool has no such limit."""


class AttemptPausing:
    """Gives commands in the name of an attempt."""

    def __init__(self, services: Services, *, actor: str) -> None:
        self._services, self._actor = services, actor[:SAID_CHARS]

    async def give(self, command: Command, reason: str) -> None:
        """See `Pausing`."""
        services = self._services
        retry_for_s = services.settings.redis.command_timeout_s
        # Often the text of an answer, which may be long and must not fail the attempt.
        reason = reason[:SAID_CHARS]
        try:
            await send(
                services.store, services.settings, command, actor=self._actor, reason=reason, retry_for_s=retry_for_s
            )
        except CommandRefused as refused:
            if refused.status != AppendStatus.HELD:
                raise

    async def check_limit(self, name: str) -> None:
        """See `Pausing`."""
        services = self._services
        if not await services.store.execute("HEXISTS", services.keys.limits, name):
            raise InvalidInput(f"the pool has no limit {name!r}; `orc limits list` shows those of its agents")


class PausableLimit:
    """A limit of agents (`Agent(limits=[...])`), as `ctx.limit(name)` returns it."""

    def __init__(self, name: str, pausing: Pausing) -> None:
        self._name, self._pausing = name, pausing

    async def pause(self, for_s: Duration, reason: str = "") -> None:
        """Let the limit allow no start for a time, on all workers. Attempts that run go on.

        A longer pause replaces a shorter one; a shorter one changes nothing. `orc start --limit NAME` ends it early.

        Args:
            for_s: seconds or timedelta, as the `Retry-After` of an answer; rounded up to the next full second. 0 pauses
                nothing.
            reason: shown with the pause; 500 characters of it.

        Raises:
            InvalidInput: the pool has no such limit, or `for_s` is no duration or too long.
            CommandRefused: too many commands were given in this minute.
            UpgradeUnfinished: the pool admits programs that do not know pauses with an end.
            StoreError: Redis did not answer.
        """
        seconds = to_seconds("for_s", for_s)
        command = make_command("hold-limit", {"limit": self._name, "for_s": seconds}) if seconds else None
        await self._pausing.check_limit(self._name)
        if command is not None:
            await self._pausing.give(command, reason)


async def pause_agent(pausing: Pausing, agent: str, for_s: Duration, reason: str) -> None:
    """Pause an agent; see `TaskContext.pause_agent`."""
    if seconds := to_seconds("for_s", for_s):
        await pausing.give(make_command("hold-agent", {"agent": agent, "for_s": seconds}), reason)
