"""Limits of outside services that handlers call, such as models: requests and tokens in windows, and calls at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.core.ids import check_name
from orchestrator.core.rates import parse_amount
from orchestrator.core.reading import read_text, read_whole, reads_stored

if TYPE_CHECKING:
    from orchestrator.core.settings import ProviderSettings

THROTTLED: Final = "throttled"
QUOTA: Final = "quota"
BROKEN: Final = "broken"
STATES: Final = (THROTTLED, QUOTA, BROKEN)
"""What keeps calls from a provider: a pause that it told, no quota, or failures in a row."""
_SHARED: Final = "shared"
"""Last word of a stored definition that pools share."""


@dataclass(frozen=True, slots=True)
class ProviderLimit:
    """Limits of the calls of a provider; a count of 0 is no limit.

    Attributes:
        requests: calls that begin in a window of `requests_us`.
        tokens: reserved and used tokens in a window of `tokens_us`.
        at_once: calls that run at a time.
        shared: whether pools share them, in the scope of the limit.
    """

    requests: int = 0
    requests_us: int = 0
    tokens: int = 0
    tokens_us: int = 0
    at_once: int = 0
    shared: bool = False

    @classmethod
    def of(cls, entry: str | ProviderSettings) -> ProviderLimit:
        """Return the limits of an entry of the settings; a rate of starts limits no calls."""
        if isinstance(entry, str):
            return cls()
        return cls(*_pair(entry.requests), *_pair(entry.tokens), entry.at_once or 0, entry.shared)

    @property
    def row(self) -> tuple[int, int, int, int, int]:
        """The numbers in the order of `lua/limits/take.lua`."""
        return self.requests, self.requests_us, self.tokens, self.tokens_us, self.at_once

    @property
    def text(self) -> str:
        """The numbers as they are stored."""
        return " ".join([*map(str, self.row), *([_SHARED] if self.shared else [])])


def _pair(amount: str | None) -> tuple[int, int]:
    rate = None if amount is None else parse_amount(amount)
    return (0, 0) if rate is None else (rate.count, rate.window_us)


@reads_stored
def read_limit(stored: bytes) -> ProviderLimit:
    """Decode a stored definition."""
    numbers = stored.removesuffix(f" {_SHARED}".encode())
    requests, requests_us, tokens, tokens_us, at_once = map(read_whole, numbers.split(b" "))
    return ProviderLimit(requests, requests_us, tokens, tokens_us, at_once, shared=numbers != stored)


def read_named_limit(named: tuple[str, bytes]) -> tuple[str, ProviderLimit]:
    """Decode a stored definition with its name.

    Raises:
        DamagedData, InvalidInput: no program stores such a one.
    """
    name, stored = named
    limit = read_limit(stored)
    if limit.shared:
        check_name("limit", name)  # of which a scope is named
    return name, limit


@dataclass(frozen=True, slots=True)
class BlockedState:
    """A state that keeps calls from a provider.

    Attributes:
        state: `throttled`, `quota` or `broken`.
        until_ms: its end; 0: until an operator clears it.
        since_ms: when it was told.
        by: who told it.
        reason: why.
    """

    state: str
    until_ms: int
    since_ms: int
    by: str
    reason: str


def pack_told(by: str, reason: str) -> bytes:
    """Encode who tells a state, and why."""
    return f"{' '.join(by.split())}\n{' '.join(reason.split())}".encode(errors="replace")


@reads_stored
def read_blocked(named: tuple[str, bytes]) -> BlockedState:
    """Decode a state and its stored value."""
    state, stored = named
    until_ms, since_ms, told = stored.split(b" ", 2)
    by, _, reason = told.partition(b"\n")
    return BlockedState(state, read_whole(until_ms), read_whole(since_ms), read_text(by), read_text(reason))
