"""Asks the server once which commands it has beyond those of Redis 7.0."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.errors import ServerRefused
from orchestrator.core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from orchestrator.store.calls import Argument

_PROBED: Final = ("VADD", "VSIM", "VREM", "VCARD", "FT.SEARCH")
_REFUSALS: Final = ("unknown command", "NOPERM")
ASKED_AGAIN_S: Final = 60.0
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Commands of a server beyond those of Redis 7.0.

    Attributes:
        vector_sets: VADD, VSIM, VREM and VCARD, which Redis has from 8.0 on.
        search: FT.SEARCH, which the module RediSearch brings. Nothing uses it; `orc doctor` shows it.
    """

    vector_sets: bool = False
    search: bool = False


class CapabilityProbe:
    """Asks on the first use, and keeps the answer until Redis refuses a command that it seemed to have."""

    __slots__ = ("_asked_at", "_execute", "_known", "_lock", "_refused")

    def __init__(self, execute: Callable[..., Awaitable[list[object]]]) -> None:
        self._execute = execute
        self._known: Capabilities | None = None
        self._asked_at: float | None = None
        self._refused = False
        self._lock = anyio.Lock()

    async def get(self) -> Capabilities:
        """Return what the server has. A server that refuses the question counts as one that has nothing more.

        Raises:
            StoreError: no reply.
        """
        known = self._current()
        if known is None:
            async with self._lock:
                known = self._current()
                if known is None:
                    known = self._known = await self._ask()
        return known

    def _current(self) -> Capabilities | None:
        """Return the answer, None if the server has to be asked."""
        if self._asked_at is not None and time.monotonic() - self._asked_at > ASKED_AGAIN_S:
            self._known = self._asked_at = None
        return self._known

    def refused(self, refused: ServerRefused) -> bool:
        """Note that Redis refused a command of vector sets; return whether it knows none or does not permit it.

        A failover may lead to an older server, and rights may change: the server is asked again after a minute.
        """
        if not any(word in str(refused) for word in _REFUSALS):
            return False
        known, self._asked_at = self._known or Capabilities(), time.monotonic()
        self._known = replace(known, vector_sets=False)
        if not self._refused:
            _log.warning("vector_sets_refused", error=str(refused))
        self._refused = True
        return True

    async def _ask(self) -> Capabilities:
        command: tuple[Argument, ...] = ("COMMAND", "INFO", *_PROBED)
        try:
            replies = await self._execute(*command)
        except ServerRefused as refused:
            _log.warning("capabilities_unknown", error=str(refused))
            return Capabilities()
        has = {name: reply is not None for name, reply in zip(_PROBED, replies, strict=True)}
        return Capabilities(
            vector_sets=all(has[name] for name in ("VADD", "VSIM", "VREM", "VCARD")), search=has["FT.SEARCH"]
        )
