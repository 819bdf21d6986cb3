"""Implements `ctx.once`: calls a function once per task and keeps its result for later attempts."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
from anyio import to_thread

from orchestrator.core.errors import InvalidInput
from orchestrator.core.payload import encode_json
from orchestrator.core.reading import read_json

if TYPE_CHECKING:
    from collections.abc import Callable

NAME_BYTES: Final = 256
RESULT_BYTES: Final = 65_536
RESULT_DEPTH: Final = 64


class OnceResults(Protocol):
    """Stores the results of one task."""

    async def load_result(self, name: str) -> bytes | None:
        """Return the kept result as JSON, or None.

        Raises:
            Fenced: the task was taken away from this attempt.
        """

    async def store_result(self, name: str, result: bytes) -> bytes:
        """Store a result unless one is stored, and return the stored result.

        Raises:
            Fenced: the task was taken away from this attempt.
        """


class OnceCalls:
    """The `once` calls of one attempt."""

    __slots__ = ("_done", "_locks", "_results")

    def __init__(self, results: OnceResults) -> None:
        self._results = results
        self._done: dict[str, bytes] = {}
        self._locks: dict[str, anyio.Lock] = {}

    async def run(self, name: str, do: Callable[..., Any], *args: Any) -> Any:
        """Call `do` unless the result is known; see `TaskContext.once`."""
        check_name(name, "once() call")
        async with self._locks.setdefault(name, anyio.Lock()):
            if name not in self._done:
                known = await self._results.load_result(name)
                self._done[name] = await self._do(name, partial(do, *args)) if known is None else known
        return read_json(self._done[name])

    async def _do(self, name: str, do: Callable[[], Any]) -> bytes:
        value = await call_plain(do)
        if hasattr(value, "model_dump"):
            value = value.model_dump(mode="json")
        result = encode_json(f"what {name!r} returned", value, max_bytes=RESULT_BYTES, max_depth=RESULT_DEPTH)
        # A cancellation must not lose the result of a call that has happened.
        with anyio.CancelScope(shield=True):
            result = await self._results.store_result(name, result)
        return result  # noqa: RET504 - a type checker cannot see that the block never swallows


async def call_plain(do: Callable[[], Any]) -> Any:
    """Call a function: an `async def` in the event loop, a plain one in a thread, because it may block."""
    if inspect.iscoroutinefunction(do):
        return await do()
    value = await to_thread.run_sync(do)
    return await value if inspect.isawaitable(value) else value


def check_name(name: str, what: str) -> None:
    """Check the name of a call.

    Raises:
        InvalidInput: it is no text, empty, too long, or not valid Unicode.
    """
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"the name of the {what} must be a non-empty string, not {name!r}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"the name of the {what} contains an unpaired surrogate") from None
    if size > NAME_BYTES:
        raise InvalidInput(f"the name of the {what} has {size} bytes, more than {NAME_BYTES}")
