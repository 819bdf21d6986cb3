"""Implements `ctx.provider`: calls of outside services within limits that all workers of a pool share."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from random import uniform
from typing import TYPE_CHECKING, Final, Protocol, Self

import anyio

from orchestrator.core.durations import from_instant_ms, to_seconds
from orchestrator.core.errors import InvalidInput, ProviderUnavailable
from orchestrator.core.ids import check_name
from orchestrator.core.log import get_logger
from orchestrator.core.redaction import HIDDEN
from orchestrator.limits.providers import read_blocked
from orchestrator.limits.scripts import CallStatus
from orchestrator.workers.provider_answers import SHORT_MS, is_failure, read_told, single

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from orchestrator.core.durations import Duration
    from orchestrator.limits.scripts import BlockReply, CallReply
    from orchestrator.workers.provider_answers import Told

WAIT_S: Final = 30.0
"""How long a call waits for room by default, before its task is snoozed."""
SETTLE_S: Final = 5.0
"""How long the end of a call may take, also while the attempt is cancelled."""
_POLL_S: Final = (0.05, 0.5)
"""First and longest pause between two looks whether a call has ended."""
_TRYING_S: Final = (1.0, 3.0)
"""Range of the random delay of a task while another call tries a broken provider."""
_LOOK_S: Final = (45.0, 75.0)
"""Range of the longest delay of a task whose agent has not the limit, because an operator may end the pause."""
_MARK: Final = "_orc_told_pause"
_JUDGED: Final = "_orc_judged"
"""Attribute of an exception that a block has judged: the attempt, and a number that grows with each judgement."""
_judgements = count(1)
_log = get_logger("agent")


class ProviderGate(Protocol):
    """Begins and ends calls of providers in the name of one attempt."""

    @property
    def attempt(self) -> tuple[str, str]:
        """Task and generation."""

    @property
    def who(self) -> str:
        """Agent, task and worker, as operators read them."""

    @property
    def hides_texts(self) -> bool:
        """Return whether the skill is redacted, so that no text of its exceptions is stored."""

    @property
    def lease_s(self) -> float:
        """Time for which the place of a call stays taken without a renewal."""

    def check(self, name: str, tokens: int) -> None:
        """Refuse an unknown provider, or more tokens than a window has.

        Raises:
            InvalidInput: as above.
        """

    async def take(self, name: str, call: str, tokens: int) -> CallReply:
        """Begin a call if the provider has room."""

    async def settle(self, name: str, call: str, used: int, outcome: str, reason: str) -> None:
        """End a call; `used`: its tokens, -1 for those that it reserved."""

    async def block(self, name: str, told: Told) -> BlockReply:
        """Hold all workers back."""

    def new_call(self) -> str:
        """Return the id of a new call."""

    def holds_tasks(self, name: str) -> bool:
        """Return whether the agent has the limit, so that its tasks wait in the queue while the provider is blocked."""


@dataclass(frozen=True, slots=True)
class ToldPause:
    """When a task runs again whose attempt ended with what its provider told.

    Attributes:
        attempt: task and generation.
        delay_ms: after this time.
        text: provider, end, and who told it; empty: the text of the exception says that.
        own: whether the provider told it to a call of the attempt, and not to another one before.
    """

    attempt: tuple[str, str]
    delay_ms: int
    text: str
    own: bool


def told_pause(failure: BaseException, attempt: tuple[str, str]) -> ToldPause | None:
    """Return when the task runs again, if the attempt ended because of providers and for no other reason."""
    found = failure.__dict__.get(_MARK)
    if isinstance(found, ToldPause) and found.attempt == attempt:
        return found
    if isinstance(failure, ProviderUnavailable):
        return ToldPause(attempt, round(failure.delay_s * 1000), "", own=False)
    if isinstance(failure, BaseExceptionGroup):
        pauses = [pause for one in failure.exceptions if (pause := told_pause(one, attempt))]
        if len(pauses) == len(failure.exceptions):
            longest = max(pauses, key=lambda pause: pause.delay_ms)
            return replace(longest, own=any(pause.own for pause in pauses))
    return None


class ProviderCall:
    """A call of a provider, as `ctx.provider` returns it.

    Attributes:
        provider: the limit.
        tokens: reserved tokens.
    """

    __slots__ = ("_call", "_ended", "_entered_at", "_gate", "_sign", "_used", "_wait_s", "provider", "tokens")

    def __init__(
        self, gate: ProviderGate, provider: str, *, tokens: int, wait: Duration, sign: Callable[[], None]
    ) -> None:
        check_name("limit", provider)
        self.provider, self.tokens = provider, _check_tokens(tokens)
        self._gate, self._wait_s, self._sign = gate, to_seconds("wait", wait), sign
        self._call, self._used, self._ended = "", -1, False
        self._entered_at = 0
        gate.check(provider, tokens)

    def settle(self, *, tokens: int) -> None:
        """Say how many tokens the call has used. Those that it reserved beyond return when the block ends.

        Args:
            tokens: all tokens of the call; a later call of this method replaces an earlier one.

        Raises:
            InvalidInput: it is no number, or negative; or the block has ended.
        """
        if self._ended:
            raise InvalidInput("the block of this provider call has ended; call settle inside it")
        self._used = _check_tokens(tokens)

    async def __aenter__(self) -> Self:
        """Begin the call, or wait for room."""
        if self._call:
            raise InvalidInput("a provider call is entered once; call ctx.provider for each")
        self._call, self._entered_at = self._gate.new_call(), next(_judgements)
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
            sent_s = anyio.current_time()
            taken = await self._gate.take(self.provider, self._call, self.tokens)
            if taken.status is CallStatus.TAKEN:
                if anyio.current_time() < sent_s + self._gate.lease_s / 2:
                    return None
                # The worker stood still meanwhile, and its place may be another's.
                await self._end(0, "unknown", "")
                self._call = self._gate.new_call()
                continue
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
        self._ended = True
        if failure is None:
            await self._end(self._used, "ok", "")
            return
        new = [one for one in single(failure) if not self._is_judged(one)]
        told = next(filter(None, (_read_told(one, redact=self._gate.hides_texts) for one in new)), None)
        failed = told is None and any(map(is_failure, new))
        if told is not None or failed:
            for one in new:
                _note(one, _JUDGED, (self._gate.attempt, next(_judgements)))
        if told is not None:
            await self._hold(failure, told)
            # An answer came, and a call that was refused has used nothing, unless the handler says otherwise.
            await self._end(max(0, self._used), "ok", "")
        else:
            await self._end(self._used, "failed" if failed else "unknown", type(failure).__name__ if failed else "")

    def _is_judged(self, failure: BaseException) -> bool:
        """Return whether a block inside this one has judged an exception, so that it is about that provider."""
        judged: tuple[tuple[str, str], int] | None = failure.__dict__.get(_JUDGED)
        return judged is not None and judged[0] == self._gate.attempt and judged[1] > self._entered_at

    async def _hold(self, failure: BaseException, told: Told) -> None:
        blocked = None
        with anyio.move_on_after(SETTLE_S, shield=True) as waited:
            try:
                blocked = await self._gate.block(self.provider, told)
            except Exception as ours:  # noqa: BLE001 - the handler must get its own exception
                _log.warning("provider_not_blocked", provider=self.provider, state=told.state, error=str(ours))
        if waited.cancelled_caught:
            _log.warning("provider_not_blocked", provider=self.provider, state=told.state, error="no answer in time")
        if blocked is None:
            # No other task learns of the pause, so this one waits for all of it.
            until_ms, delay_ms = told.until_ms, told.for_ms or round(uniform(*_LOOK_S) * 1000)
        else:
            left_ms = SHORT_MS if blocked.has_passed else blocked.left_ms
            until_ms, delay_ms = blocked.until_ms, round(self._delay_s(left_ms) * 1000)
        until = from_instant_ms(until_ms) if until_ms > 0 else None
        text = str(ProviderUnavailable(self.provider, told.state, until, self._gate.who, told.reason))
        _note(failure, _MARK, ToldPause(self._gate.attempt, delay_ms, text, own=True))

    def _delay_s(self, left_ms: int) -> float:
        """Return the delay before the task runs again; `left_ms` is the time until the block ends, 0 without an end."""
        longest_s = SHORT_MS / 1000 if self._gate.holds_tasks(self.provider) else uniform(*_LOOK_S)
        return min(left_ms / 1000, longest_s) if left_ms else longest_s

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
            delay_s, until_ms = self._delay_s(taken.left_ms), taken.until_ms
        until = from_instant_ms(until_ms) if until_ms else None
        unavailable = ProviderUnavailable(self.provider, taken.what, until, told.by, told.reason, delay_s=delay_s)
        pause = ToldPause(self._gate.attempt, round(delay_s * 1000), str(unavailable), own=False)
        _note(unavailable, _MARK, pause)
        return unavailable


def _note(failure: BaseException, name: str, value: object) -> None:
    with suppress(Exception):  # the exception of another library may refuse it
        failure.__dict__[name] = value


def _read_told(failure: BaseException, *, redact: bool) -> Told | None:
    try:
        return read_told(failure, redact=redact)
    except Exception as unreadable:  # noqa: BLE001 - attributes of another library's exception may be anything
        text = HIDDEN if redact else unreadable
        _log.warning("provider_answer_unreadable", error=f"{type(failure).__name__}: {text}"[:500])
        return None


def _check_tokens(tokens: int) -> int:
    if not isinstance(tokens, int) or isinstance(tokens, bool) or not 0 <= tokens <= 10**12:
        raise InvalidInput(f"tokens must be a whole number from 0 to {10**12:,}, not {tokens!r:.80}")
    return tokens
