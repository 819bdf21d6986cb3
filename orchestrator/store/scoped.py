"""Binds a store to one scope of shared state, and makes the operation ids of its changes."""

from __future__ import annotations

import itertools
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from orchestrator.core.errors import StoreError
from orchestrator.core.ids import check_name, check_text
from orchestrator.core.live_settings import LiveSettings
from orchestrator.store.keys import ScopeKeys

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestrator.core.settings import Settings
    from orchestrator.store.calls import Argument, Call
    from orchestrator.store.store import Store

T = TypeVar("T")
StateAction = Literal[
    "change-workspace", "clear-workspace", "direct-agent", "change-chat", "clear-chat", "change-memory",
    "forget-memory", "change-agent-state",
]  # fmt: skip
"""Changes of what others have stored, as `orc control list` names them; an addition is none."""
OnChange: TypeAlias = "Callable[[StateAction, ScopeKeys], None]"


@dataclass(frozen=True, slots=True)
class ScopedStore:
    """Runs the reads and scripts of one scope; repeats them while Redis does not answer."""

    store: Store
    keys: ScopeKeys
    live: Settings | LiveSettings
    on_change: OnChange | None = None
    """Gets each change that a program makes outside a task, and its scope."""

    def note_change(self, action: StateAction) -> None:
        """Tell that the state of the scope was changed."""
        if self.on_change is not None:
            self.on_change(action, self.keys)

    @property
    def settings(self) -> Settings:
        """The settings of now. Read a `Live` one at each use, because a handle may be held for long."""
        return self.live.current if isinstance(self.live, LiveSettings) else self.live

    @property
    def retry_for_s(self) -> float:
        """Seconds for which a call is repeated while Redis does not answer."""
        return self.settings.redis.command_timeout_s

    async def call(self, call: Call[T]) -> T:
        """Run a script, which must be safe to send twice."""
        return await self.store.call(call, retry_for_s=self.retry_for_s)

    async def read(self, *command: Argument) -> Any:
        """Run a command that only reads."""
        return await self.store.read_with_retry(lambda: self.store.execute(*command), retry_for_s=self.retry_for_s)

    async def read_many(self, commands: Sequence[Sequence[Argument]], *, aside: bool = False) -> list[Any]:
        """Run commands that only read; see the function `read_many`."""
        return await read_many(self.store, commands, retry_for_s=self.retry_for_s, aside=aside)


def bind_scope(
    store: Store,
    settings: Settings | LiveSettings,
    kind: str,
    id_: str,
    *,
    on_change: OnChange | None = None,
) -> ScopedStore:
    """Bind a store to one scope.

    Args:
        store: the store.
        settings: with the prefix of the scope.
        kind: kind of scope, as `session` or `agent`.
        id_: id of the scope.
        on_change: of a client outside tasks: gets its changes.

    Raises:
        InvalidInput: an unknown kind, or an invalid id.
    """
    if kind == "agent":
        check_name("agent", id_)
    return ScopedStore(store, ScopeKeys(LiveSettings.of(settings).current.prefix, kind, id_), settings, on_change)


async def read_many(
    store: Store, commands: Sequence[Sequence[Argument]], *, retry_for_s: float, aside: bool = False
) -> list[Any]:
    """Run commands that only read in one round trip, repeated while Redis does not answer.

    Args:
        store: the store.
        commands: the commands.
        retry_for_s: seconds for which they are repeated.
        aside: send them over links of their own, because they are slow or their replies are large.

    Raises:
        StoreError: one of them failed.
    """

    async def read() -> list[Any]:
        replies = await (store.pipeline_aside(commands) if aside else store.pipeline(commands))
        for reply in replies:
            # EXEC replies with a list.
            for part in reply if isinstance(reply, list) else (reply,):
                if isinstance(part, StoreError):
                    raise part
        return replies

    return await store.read_with_retry(read, retry_for_s=retry_for_s)


class OpIds:
    """Op ids for the calls of one handle. A script makes a change once per op id."""

    __slots__ = ("_numbers", "_stem")

    def __init__(self) -> None:
        self._stem, self._numbers = secrets.token_urlsafe(9), itertools.count()

    def take(self, op_id: str | None) -> str:
        """Return the caller's op id as scripts store it, or a new one.

        A call without an op id needs one too, because the store repeats a call whose reply was lost.

        Raises:
            InvalidInput: `op_id` is not printable text of up to 256 bytes.
        """
        return f"{self._stem}{next(self._numbers)}" if op_id is None else f"={check_text('op_id', op_id)}"
