"""Implements `ctx.provider`: calls of outside services within limits that all workers of a pool share."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from random import uniform
from typing import TYPE_CHECKING, Final, Protocol, Self

import anyio

from orchestrator.core.durations import from_instant_ms, instant_ms, to_seconds
from orchestrator.core.errors import InvalidInput, ProviderUnavailable
from orchestrator.core.ids import check_name
from orchestrator.core.log import get_logger
from orchestrator.limits.providers import read_blocked
from orchestrator.limits.scripts import CallStatus
from orchestrator.workers.provider_answers import is_failure, read_told

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from orchestrator.core.durations import Duration
    from orchestrator.limits.scripts import CallReply
    from orchestrator.workers.provider_answers import Told

WAIT_S: Final = 30.0
"""How long a call waits for room by default, before its task is snoozed."""
SETTLE_S: Final = 5.0
"""How long the end of a call may take, also while the attempt is cancelled."""
_POLL_S: Final = (0.05, 0.5)
"""First and longest pause between two looks whether a call has ended."""
_TRYING_S: Final = (1.0, 3.0)
"""Range of the random delay of a task while another call tries a broken provider."""
_QUOTA_S: Final = (45.0, 75.0)
"""Range of the random delay of a task while an operator must clear its provider."""
_MARK: Final = "_orc_told_pause"
_log = get_logger("agent")


class ProviderGate(Protocol):
    """Begins and ends calls of providers in the name of one attempt."""

    @property
    def attempt(self) -> tuple[str, str]:
        """Task and generation."""

    def check(self, name: str, tokens: int) -> None:
        """Refuse an unknown provider, or more tokens than a window has.

        Raises:
            InvalidInput: as above.
        """

    async def take(self, name: str, call: str, tokens: int) -> CallReply:
        """Begin a call if the provider has room."""

    async def settle(self, name: str, call: str, used: int, outcome: str, reason: str) -> None:
        """End a call; `used`: its tokens, -1 for those that it reserved."""

    async def block(self, name: str, told: Told) -> int:
        """Hold all workers back; return the end in ms, 0 for none, -1 if it has passed."""

    def new_call(self) -> str:
        """Return the id of a new call."""

    def holds_tasks(self, name: str) -> bool:
        """Return whether the agent has the limit, so that its tasks wait in the queue while the provider is blocked."""


@dataclass(frozen=True, slots=True)
class ToldPause:
    """When a task runs again whose attempt ended with what its provider told.

    Attributes:
        attempt: task and generation.
        at_ms: that time; 0: after `delay_ms`.
    """

    attempt: tuple[str, str]
    at_ms: int
    delay_ms: int


def told_pause(failure: BaseException, attempt: tuple[str, str]) -> ToldPause | None:
    """Return when the task runs again, if the attempt ended because of providers and for no other reason."""
    found = failure.__dict__.get(_MARK)
    if isinstance(found, ToldPause) and found.attempt == attempt:
        return found
    if isinstance(failure, ProviderUnavailable):
        at_ms = 0 if failure.until is None else instant_ms("until", failure.until)
        return ToldPause(attempt, at_ms, round(failure.delay_s * 1000))
    if isinstance(failure, BaseExceptionGroup):
        pauses = [pause for one in failure.exceptions if (pause := told_pause(one, attempt))]
        if len(pauses) == len(failure.exceptions):
            return max(pauses, key=lambda pause: (pause.at_ms, pause.delay_ms))
    return None


class ProviderCall:
    """A call of a provider, as `ctx.provider` returns it.

    Attributes:
        provider: the limit.
        tokens: reserved tokens.
    """

    __slots__ = ("_call", "_gate", "_sign", "_used", "_wait_s", "provider", "tokens")

    def __init__(
        self, gate: ProviderGate, provider: str, *, tokens: int, wait: Duration, sign: Callable[[], None]
    ) -> None:
        check_name("limit", provider)
        self.provider, self.tokens = provider, _check_tokens(tokens)
        self._gate, self._wait_s, self._sign = gate, to_seconds("wait", wait), sign
        self._call, self._used = "", -1
        gate.check(provider, tokens)

    def settle(self, *, tokens: int) -> None:
        """Say how many tokens the call has used. Those that it reserved beyond return when the block ends.

        Args:
            tokens: all tokens of the call; a later call of this method replaces an earlier one.

        Raises:
            InvalidInput: it is no number, or negative.
        """
        self._used = _check_tokens(tokens)

    async def __aenter__(self) -> Self:
        """Begin the call, or wait for room."""
        if self._call:
            raise InvalidInput("a provider call is entered once; call ctx.provider for each")
        self._call = self._gate.new_call()
        try:
            refused = await self._begin()
        except BaseException:
            # Redis may have begun the call.
            await self._end(0, "unknown", "")
            raise
        if refused is not None:
            raise self._unavailable(refused)
        return self

    async def _begin(self) -> CallReply | None:
        """Begin the call; return the refusal if the provider is blocked, or has no room for too long."""
        began_s, pause_s = anyio.current_time(), _POLL_S[0]
        while True:
            self._sign()
            taken = await self._gate.take(self.provider, self._call, self.tokens)
            if taken.status is CallStatus.TAKEN:
                return None
            wait_s = taken.wait_us / 1_000_000
            if taken.status is CallStatus.BLOCKED or anyio.current_time() + wait_s > began_s + self._wait_s:
                return taken
            if not wait_s:
                wait_s, pause_s = uniform(pause_s / 2, pause_s), min(2 * pause_s, _POLL_S[1])
            await anyio.sleep(wait_s)

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the call. Any exception of the block goes on to the handler."""
        if failure is None:
            await self._end(self._used, "ok", "")
            return
        told = _read_told(failure)
        if told is not None:
            await self._hold(failure, told)
            # An answer came, and a call that was refused has used nothing, unless the handler says otherwise.
            await self._end(max(0, self._used), "ok", "")
        elif is_failure(failure):
            await self._end(self._used, "failed", type(failure).__name__)
        else:
            await self._end(self._used, "unknown", "")

    async def _hold(self, failure: BaseException, told: Told) -> None:
        until_ms = told.until_ms
        with anyio.move_on_after(SETTLE_S, shield=True) as waited:
            try:
                until_ms = await self._gate.block(self.provider, told)
            except Exception as ours:  # noqa: BLE001 - the handler must get its own exception
                _log.warning("provider_not_blocked", provider=self.provider, state=told.state, error=str(ours))
        if waited.cancelled_caught:
            _log.warning("provider_not_blocked", provider=self.provider, state=told.state, error="no answer in time")
        delay_ms = told.for_ms or round(uniform(*_QUOTA_S) * 1000)
        if until_ms == 0 and self._gate.holds_tasks(self.provider):
            delay_ms = told.for_ms or 1000
        with suppress(Exception):  # the exception of another library may refuse it
            failure.__dict__[_MARK] = ToldPause(self._gate.attempt, max(0, until_ms), delay_ms)

    async def _end(self, used: int, outcome: str, reason: str) -> None:
        with anyio.move_on_after(SETTLE_S, shield=True) as waited:
            try:
                await self._gate.settle(self.provider, self._call, used, outcome, reason)
            except Exception as ours:  # noqa: BLE001 - its lease ends by itself; the result of the call must not be lost
                _log.warning("provider_call_not_settled", provider=self.provider, error=str(ours))
        if waited.cancelled_caught:
            _log.warning("provider_call_not_settled", provider=self.provider, error="no answer in time")

    def _unavailable(self, taken: CallReply) -> ProviderUnavailable:
        if taken.status is CallStatus.FULL:
            delay_s = max(taken.wait_us / 1_000_000, uniform(*_TRYING_S))
            return ProviderUnavailable(self.provider, taken.what, None, delay_s=delay_s)
        told = read_blocked((taken.what, taken.told))
        if taken.what == "trying":
            delay_s, until_ms = uniform(*_TRYING_S), 0
        else:
            delay_s, until_ms = 1.0 if self._gate.holds_tasks(self.provider) else uniform(*_QUOTA_S), taken.until_ms
        until = from_instant_ms(until_ms) if until_ms else None
        return ProviderUnavailable(self.provider, taken.what, until, told.by, told.reason, delay_s=delay_s)


def _read_told(failure: BaseException) -> Told | None:
    try:
        return read_told(failure)
    except Exception as unreadable:  # noqa: BLE001 - attributes of another library's exception may be anything
        _log.warning("provider_answer_unreadable", error=f"{type(failure).__name__}: {unreadable}"[:500])
        return None


def _check_tokens(tokens: int) -> int:
    if not isinstance(tokens, int) or isinstance(tokens, bool) or not 0 <= tokens <= 10**12:
        raise InvalidInput(f"tokens must be a whole number from 0 to {10**12:,}, not {tokens!r:.80}")
    return tokens
