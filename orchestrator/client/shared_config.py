"""`SharedConfig`: configuration values that an operator publishes while programs run, and the changes as they come.

A value is an order of the desired state, the news of it an entry of the control stream: stored before it is told,
signed where commands are, and kept on record.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orchestrator.control.commands import PublishConfig, WithdrawConfig
from orchestrator.control.desired import read_desired
from orchestrator.control.entries import read_entry
from orchestrator.control.records import without_replays
from orchestrator.control.signing import signer_of
from orchestrator.core.durations import Duration, from_instant_ms, to_seconds
from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import check_name
from orchestrator.core.reading import read_json, read_text, read_whole
from orchestrator.core.slots import VERIFIED, config_slot
from orchestrator.store.following import END, follow_stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from datetime import datetime

    from orchestrator.control.desired import Desired
    from orchestrator.control.entries import ControlEntry
    from orchestrator.control.signing import Signer
    from orchestrator.services import Services

_PLACE: Final = re.compile(r"\d{1,20}-\d{1,20}")


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A value was published or withdrawn.

    Attributes:
        id: of the change; `changes(after=id)` goes on behind it.
        key: which one.
        value: what it is from then on; None when it was withdrawn.
        withdrawn: True if an operator withdrew the value.
        actor: who did it.
        reason: why.
        at: when, by the server's clock.
    """

    id: str
    key: str
    value: Any
    withdrawn: bool
    actor: str
    reason: str
    at: datetime


class SharedConfig:
    """The published values of a pool: `orc.config`, and `ctx.config` in handlers.

    In a handler `get` and `all` answer from what the worker knows, without asking Redis: it receives each change at
    once, and polls with every heartbeat.
    """

    __slots__ = ("_known", "_services")

    def __init__(self, services: Services, *, known: Callable[[], Desired] | None = None) -> None:
        self._services, self._known = services, known

    async def get(self, key: str, default: Any = None) -> Any:
        """The value of a key.

        Args:
            key: its name.
            default: what is returned if nothing is published.

        Raises:
            InvalidInput, StoreError: that is no key; no answer.
        """
        slot = config_slot(check_name("config key", key))
        if self._known is not None:
            return _values(self._known()).get(key, default)
        names = (slot, VERIFIED + slot)
        desired_key = self._services.keys.desired
        found = await self._ask("HMGET", desired_key, *names)
        pairs = [(name.encode(), value) for name, value in zip(names, found, strict=True) if value is not None]
        flat = [part for pair in pairs for part in pair]
        return _values(read_desired(flat, self._signer())).get(key, default)

    async def all(self) -> dict[str, Any]:
        """All published values by their keys.

        Raises:
            StoreError: no answer.
        """
        if self._known is not None:
            return _values(self._known())
        return _values(read_desired(await self._ask("HGETALL", self._services.keys.desired), self._signer()))

    async def changes(self, after: str = END, *, block: Duration | None = None) -> AsyncIterator[ConfigChange]:
        """Give the changes as they come, over a connection of its own: `async for change in orc.config.changes():`.

        The record holds about the last 10,000 commands of all kinds. Who may have missed more reads `all`.

        Args:
            after: `id` of the last change that was seen; `$` is now, `0-0` all that are on record.
            block: end when nothing has come for so many seconds, or that timedelta; None never ends.

        Raises:
            InvalidInput: that is no id of a change.
            StoreError: Redis refused; while it only does not answer, it is asked again.
        """
        if after != END and not _PLACE.fullmatch(after):
            raise InvalidInput(f"{after!r} is no id of a change; take one from a change, 0-0 or $")
        store, signer = self._services.store, self._signer()
        idle_s = None if block is None else to_seconds("block", block)
        entries = follow_stream(store, self._services.keys.control, after=after, idle_s=idle_s, name="config")
        try:
            async for entry, fields in entries:
                received = read_entry(read_text(entry), fields, signer)
                if received.problem or not isinstance(received.command, PublishConfig | WithdrawConfig):
                    continue
                one = await self._unless_replayed(received)
                if one.problem or one.issued is None:
                    continue
                command, withdrawn = received.command, isinstance(received.command, WithdrawConfig)
                value = read_json(command.value.encode()) if isinstance(command, PublishConfig) else None
                at = from_instant_ms(read_whole(received.entry.partition("-")[0]))
                yield ConfigChange(
                    received.entry, command.key, value, withdrawn, one.issued.actor, one.issued.reason, at
                )
        finally:
            await entries.aclose()

    async def _unless_replayed(self, received: ControlEntry) -> ControlEntry:
        store = self._services.store
        stream = store.keys.control
        (one,) = await store.read_with_retry(
            lambda: without_replays(store, stream, [received]), retry_for_s=self._retry_for_s
        )
        return one

    @property
    def _retry_for_s(self) -> float:
        return self._services.settings.redis.command_timeout_s

    def _signer(self) -> Signer:
        return signer_of(self._services.settings, place=self._services.keys.root)

    async def _ask(self, *command: str) -> Any:
        store = self._services.store
        return await store.read_with_retry(lambda: store.execute(*command), retry_for_s=self._retry_for_s)


def _values(desired: Desired) -> dict[str, Any]:
    found = {}
    for key, active in desired.config.items():
        command = active.command
        if isinstance(command, PublishConfig):
            found[key] = read_json(command.value.encode())
    return found
