"""Counts the chats of a tenant in the background, and refuses messages beyond its limits."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.chat import scripts
from orchestrator.chat.scripts import SizeRow
from orchestrator.core.errors import OrchestratorError, StoreError, TenantFull
from orchestrator.core.ids import encode_foreign
from orchestrator.core.log import get_logger
from orchestrator.core.reading import read_whole
from orchestrator.store.keys import ScopeKeys
from orchestrator.store.scoped import read_many

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.core.live_settings import LiveSettings
    from orchestrator.core.settings import Settings
    from orchestrator.store.store import Store

EVERY_S: Final = 5.0
_MAX_NOTED: Final = 10_000
"""Changed chats that a process remembers between two flushes; more are counted at their next change."""
_CHUNK: Final = 100
_CLOSE_WITHIN_S: Final = 2.0
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ChatUsage:
    """Totals of the chats of a tenant, as last counted.

    Attributes:
        bytes: size of their messages, fields and summaries.
        messages: number of their messages.
        chats: number of chats that hold any of these.
    """

    bytes: int
    messages: int
    chats: int


class ChatAccounts:
    """Counts the chats that one process changes, for all tenants' limits.

    Every 5 s it reads the sizes of the chats that were changed, and stores them in the counts of the tenant. These are
    sizes and not differences: a process that crashes leaves counts that are old until the next change of its chats, and
    the count of a chat ends with the chat. Where a limit is set, the first message of a process waits for the counts,
    and so does one that would be refused. Counts that cannot be read refuse nothing.
    """

    __slots__ = ("_live", "_noted", "_pause_until_s", "_store", "_wanted", "usage")

    def __init__(self, store: Store, live: LiveSettings) -> None:
        self._store, self._live = store, live
        self._noted: dict[str, tuple[ScopeKeys, str]] = {}
        self._wanted = anyio.Event()
        self._pause_until_s = 0.0
        self.usage: ChatUsage | None = None

    @property
    def _settings(self) -> Settings:
        return self._live.current

    @property
    def _keys(self) -> ScopeKeys:
        prefix = self._settings.prefix
        return ScopeKeys(prefix, "usage", prefix.rpartition(":")[2])

    def note(self, keys: ScopeKeys, source: str) -> None:
        """Note that a chat has changed; `source` is encoded."""
        if len(self._noted) < _MAX_NOTED:
            self._noted[_name_of(keys, source)] = keys, source
        self._wanted.set()

    async def admit(self, keys: ScopeKeys, source: str, *, growing: bool) -> None:
        """Refuse a change if the tenant has reached a limit.

        Args:
            keys: session of the chat.
            source: source of the chat, encoded.
            growing: whether the limit of bytes holds for it too.

        Raises:
            TenantFull: it has.
        """
        chat = self._settings.chat
        if not chat.tenant_max_bytes and not chat.tenant_max_chats:
            return
        if self.usage is not None and not await self._refused_by(self.usage, keys, source, growing=growing):
            return
        # Before a refusal the counts are read again: chats may have been cleared meanwhile.
        match await self._try_flush() and await self._refused_by(self.usage, keys, source, growing=growing):
            case "bytes":
                raise TenantFull(self._keys.id, "bytes", "chat.tenant_max_bytes", chat.tenant_max_bytes)
            case "chats":
                raise TenantFull(self._keys.id, "chats", "chat.tenant_max_chats", chat.tenant_max_chats)

    async def _refused_by(self, usage: ChatUsage | None, keys: ScopeKeys, source: str, *, growing: bool) -> str:
        """Return the limit that refuses a change, or an empty text."""
        chat = self._settings.chat
        if usage is None:
            return ""
        if growing and 0 < chat.tenant_max_bytes <= usage.bytes:
            return "bytes"
        if 0 < chat.tenant_max_chats <= usage.chats and not await self._is_counted(keys, source):
            return "chats"
        return ""

    async def _is_counted(self, keys: ScopeKeys, source: str) -> bool:
        """Return whether a chat exists: this process changed it a moment ago, or it holds something."""
        name = _name_of(keys, source)
        if name in self._noted:
            return True
        try:
            (row,) = await self._read_sizes({name: (keys, source)})
        except StoreError:
            # The change itself says what is wrong.
            return True
        return row.ends > 0

    async def run(self) -> None:
        """Count until cancelled; then count the rest, unless Redis takes too long."""
        try:
            while True:
                await self._wanted.wait()
                await anyio.sleep(EVERY_S)
                await self._try_flush()
        finally:
            if self._noted:
                with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_WITHIN_S):
                    await self._try_flush()

    async def _try_flush(self) -> bool:
        """Flush; after a failure not again before the next interval. Return whether the counts were read."""
        if time.monotonic() < self._pause_until_s:
            return False
        try:
            await self.flush()
        except OrchestratorError as failed:
            self._pause_until_s = time.monotonic() + EVERY_S
            _log.failure("chats_not_counted", error=failed)
            return False
        return True

    async def flush(self) -> ChatUsage:
        """Store the sizes of the chats that this process has changed, and return the counts of the tenant.

        Raises:
            StoreError: Redis did not answer; the next flush counts them.
        """
        settings = self._settings.chat
        if not settings.tenant_max_bytes and not settings.tenant_max_chats:
            # Where a limit is set, the changes of other processes count too.
            self._wanted = anyio.Event()
        noted, self._noted = self._noted, {}
        waiting = list(noted)
        try:
            while True:
                chunk = waiting[:_CHUNK]
                rows = await self._read_sizes({chat: noted[chat] for chat in chunk})
                usage = await self._store.call(scripts.account(self._keys, rows=rows), retry_for_s=self._retry_for_s)
                self.usage = ChatUsage(*usage)
                waiting = waiting[_CHUNK:]
                if not waiting:
                    return self.usage
        finally:
            for chat in waiting:
                self.note(*noted[chat])

    async def _read_sizes(self, chats: dict[str, tuple[ScopeKeys, str]]) -> list[SizeRow]:
        if not chats:
            return []
        commands: list[tuple[str, ...]] = []
        for keys, source in chats.values():
            meta, summary = (keys.key(f"chat:{source}:{part}") for part in ("meta", "sum"))
            commands += [
                ("HMGET", meta, "bytes", "own", "count", "dies"), ("HSTRLEN", summary, "text"), ("PEXPIRETIME", summary)
            ]  # fmt: skip
        replies = iter(await read_many(self._store, commands, retry_for_s=self._retry_for_s))
        return [_size_row(chat, *found) for chat, *found in zip(chats, replies, replies, replies, strict=False)]

    @property
    def _retry_for_s(self) -> float:
        return self._settings.redis.command_timeout_s


def _name_of(keys: ScopeKeys, source: str) -> str:
    return f"{encode_foreign('session', keys.id)}:{source}"


def _size_row(chat: str, counts: Sequence[bytes | None], summary: int, summary_ends: int) -> SizeRow:
    """Return the size of a chat; an empty one has ended."""
    size, own, messages, dies = [read_whole(value) for value in counts]
    ends = dies if messages or own else 0
    return SizeRow(chat, size + own + summary, messages, max(ends, summary_ends) if summary else ends)
