"""Redis clients: `Store` for asyncio, `SyncStore` for threads. They run script calls and read-only commands.

A call is sent once. With `retry_for_s` it is repeated while Redis does not answer, also after an unknown outcome,
because every script is safe to send twice.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import WeakSet

import anyio

from orchestrator.core.errors import ConfigError, FormatMismatch, ServerFull, ServerUnavailable
from orchestrator.core.formats import FORMAT, OLDEST_FORMAT, Floor, outdated, read_floor
from orchestrator.store.failures import ScriptMissing
from orchestrator.store.links import Hints, Link, SyncLink
from orchestrator.store.long_read import LongRead
from orchestrator.store.retry import repeat, repeat_sync
from orchestrator.store.script_files import all_scripts
from orchestrator.store.server_info import OLDEST, SECTIONS, read_info

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from orchestrator.store.calls import Argument, Call
    from orchestrator.store.keys import PoolKeys
    from orchestrator.store.server_info import ServerInfo

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of Redis, and time-outs.

    Attributes:
        url: `redis://`, `rediss://` or `unix://`; never shown, because it may contain a password.
        connect_timeout_s: for the connection.
        command_timeout_s: for the reply to a short command.
    """

    url: str
    connect_timeout_s: float = 5.0
    command_timeout_s: float = 10.0

    def __repr__(self) -> str:
        return "Endpoint(…)"


class Store:
    """Runs scripts and short commands over one shared link; makes links for blocking reads."""

    def __init__(self, endpoint: Endpoint, keys: PoolKeys, *, name: str = "orc") -> None:
        self.keys = keys
        self._endpoint, self._name = endpoint, name
        self.floor = Floor(keys.pool)
        """The lowest format that the pool admits. `check_format`, heartbeats and the leader's lease renew it."""
        self._closed = anyio.Event()
        self.last_outage_s = -math.inf
        """Monotonic time of the last call that Redis did not answer or refused because it was full."""
        self._links: WeakSet[Link | Hints] = WeakSet()
        self._link = self._new_link(name, endpoint.command_timeout_s)

    def _new_link(self, name: str, read_timeout_s: float) -> Link:
        link = Link(
            self._endpoint.url,
            connect_timeout_s=self._endpoint.connect_timeout_s,
            read_timeout_s=read_timeout_s,
            name=name,
            demoted=self._leave_replica,
        )
        self._links.add(link)
        return link

    def _leave_replica(self) -> None:
        # A link that only reads gets no error from a replica, and a replica without its master stays silent.
        for link in list(self._links):
            link.leave_replica()

    async def call(self, call: Call[T], *, retry_for_s: float = 0.0) -> T:
        """Run a script.

        Args:
            call: made by a script wrapper.
            retry_for_s: how long to repeat while Redis does not answer; 0 sends once.

        Raises:
            StoreError: the call failed; see `core.errors`.
        """
        try:
            return call.parse(await self._run(call))
        except ServerUnavailable as failure:
            if not retry_for_s or self._closed.is_set():
                raise
            first = failure

        async def again() -> T:
            return call.parse(await self._run(call))

        return await repeat(again, retry_for_s=retry_for_s, after=first, closed=self._closed)

    async def read_with_retry(self, read: Callable[[], Awaitable[T]], *, retry_for_s: float) -> T:
        """Run `read`, and repeat it while Redis does not answer.

        Args:
            read: uses this store, and only reads.
            retry_for_s: how long to repeat.

        Raises:
            StoreError: the read failed.
        """
        try:
            return await read()
        except ServerUnavailable as failure:
            if self._closed.is_set():
                raise
            first = failure
        # The time limit starts now, because the first try may have taken a whole command time-out.
        return await repeat(read, retry_for_s=retry_for_s, after=first, closed=self._closed)

    async def _run(self, call: Call[Any]) -> Any:
        command = call.command()
        try:
            return await self.execute(*command)
        except ScriptMissing:
            await self.execute("SCRIPT", "LOAD", all_scripts()[call.script].text)
            return await self.execute(*command)

    async def execute(self, *command: Argument) -> Any:
        """Send one command."""
        self._check_open(command)
        try:
            return await self._link.execute(*command)
        except (ServerUnavailable, ServerFull):
            self.last_outage_s = time.monotonic()
            raise

    async def pipeline(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send commands together; an error reply becomes a `StoreError` in the list."""
        if commands:
            self._check_open(commands[0])
        try:
            return await self._link.pipeline(commands)
        except ServerUnavailable:
            self.last_outage_s = time.monotonic()
            raise

    def _check_open(self, command: Sequence[Argument]) -> None:
        # A closed link would connect again and stay open.
        if self._closed.is_set():
            raise ServerUnavailable(f"{command[0]!s} was not sent: the connection has been closed")

    def blocking_link(self, block_s: float, *, name: str = "block") -> Link:
        """Return a link for reads that block up to `block_s`."""
        # The margin lets a busy server reply "nothing" before the read times out.
        return self._new_link(f"{self._name}:{name}", block_s + self._endpoint.command_timeout_s)

    def hints(self, *, name: str, received: Callable[[str, str], None], ended: Callable[[], None]) -> Hints:
        """Return a connection for subscriptions; see `Hints`."""
        hints = Hints(
            self._endpoint.url,
            connect_timeout_s=self._endpoint.connect_timeout_s,
            reply_timeout_s=self._endpoint.command_timeout_s,
            name=f"{self._name}:{name}",
            received=received,
            ended=ended,
        )
        self._links.add(hints)
        return hints

    async def load_scripts(self) -> None:
        """Load the scripts that the server does not know."""
        scripts = list(all_scripts().values())

        async def load() -> None:
            known = await self.execute("SCRIPT", "EXISTS", *[script.sha for script in scripts])
            missing = [script for script, is_known in zip(scripts, known, strict=True) if not is_known]
            for reply in await self.pipeline([("SCRIPT", "LOAD", script.text) for script in missing]):
                if isinstance(reply, Exception):
                    raise reply

        await self._retry_if_interrupted(load)

    async def check_format(self) -> None:
        """Read the floor of the pool; set it to the format of this program if the pool is empty.

        Raises:
            FormatMismatch: the pool does not admit this program, or its data is too old.
        """

        async def read() -> bytes | None:
            stored: bytes | None = await self.execute("GET", self.keys.format)
            if stored is None:
                # Programs that are there have an unknown format, when Redis has lost the floor.
                is_used = await self.execute("EXISTS", self.keys.workers, self.keys.leader)
                # Write only if missing: a full server refuses every SET, but workers must start to drain it.
                await self.execute("SET", self.keys.format, OLDEST_FORMAT if is_used else FORMAT, "NX")
                stored = await self.execute("GET", self.keys.format)
            return stored

        stored = await self._retry_if_interrupted(read)
        self.floor.note(read_floor(stored))
        if mismatch := format_mismatch(stored, self.keys):
            raise FormatMismatch("; ".join(mismatch))

    async def _retry_if_interrupted(self, send: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call that a broken connection interrupted; a server that cannot be reached is an error at once."""
        try:
            return await send()
        except ServerUnavailable as failure:
            if not failure.outcome_unknown:
                raise
        return await repeat(send, retry_for_s=self._endpoint.command_timeout_s, closed=self._closed)

    async def check_server(self, *, allow_eviction: bool) -> list[str]:
        """Check the server's version and settings.

        Returns:
            Warnings, one sentence each.

        Raises:
            ConfigError: the server is older than 7.0, or may evict keys.
        """
        info = await self.server_info()
        if info.line < OLDEST:
            raise ConfigError(f"Redis {info.version} is too old; 7.0 or newer is needed")
        if info.eviction not in {"noeviction", "?"} and not allow_eviction:
            raise ConfigError(
                f"Redis may evict keys (maxmemory-policy {info.eviction}), which loses tasks; "
                "set maxmemory-policy noeviction, or redis.allow_eviction = true if that is meant"
            )
        if not info.append_only:
            return ["Redis has no append-only file: what was accepted is lost when Redis stops (set appendonly yes)"]
        return []

    async def server_info(self) -> ServerInfo:
        """Return the server's version, limits and state."""
        # One INFO per section, because servers before 7.0 accept no list and must be recognised as too old.
        replies = await self.pipeline([("INFO", section) for section in SECTIONS])
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return read_info("".join(reply.decode(errors="replace") for reply in replies))

    async def run_id(self) -> str:
        """Return the server's run id, which changes with every start."""
        return read_info((await self.execute("INFO", "server")).decode(errors="replace")).run_id

    def stop_sending(self) -> None:
        """Stop sending and repeating; the caller must still `close`."""
        self._closed.set()

    async def close(self) -> None:
        """Close the shared link; calls in flight are not repeated."""
        self.stop_sending()
        await self._link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class SyncStore:
    """Runs scripts from a thread, or from a process without an event loop."""

    def __init__(self, endpoint: Endpoint, keys: PoolKeys, *, name: str) -> None:
        self.keys = keys
        self._endpoint, self._name = endpoint, name
        self._link = SyncLink(
            endpoint.url,
            connect_timeout_s=endpoint.connect_timeout_s,
            read_timeout_s=endpoint.command_timeout_s,
            name=name,
            demoted=self._leave_replica,
        )
        self._long_reads: WeakSet[LongRead] = WeakSet()

    def _leave_replica(self) -> None:
        for long_read in list(self._long_reads):
            long_read.leave_replica()

    def call(self, call: Call[T], *, retry_for_s: float = 0.0) -> T:
        """Run a script; see `Store.call`."""
        if retry_for_s:
            return repeat_sync(lambda: call.parse(self._run(call)), retry_for_s=retry_for_s)
        return call.parse(self._run(call))

    def call_all(self, calls: Sequence[Call[T]]) -> list[T]:
        """Run script calls in one round trip."""
        replies = self._link.pipeline([call.command() for call in calls])
        answers = []
        for call, reply in zip(calls, replies, strict=True):
            if isinstance(reply, ScriptMissing):
                answers.append(self.call(call))
            elif isinstance(reply, Exception):
                raise reply
            else:
                answers.append(call.parse(reply))
        return answers

    def _run(self, call: Call[Any]) -> Any:
        command = call.command()
        try:
            return self._link.execute(*command)
        except ScriptMissing:
            self._link.execute("SCRIPT", "LOAD", all_scripts()[call.script].text)
            return self._link.execute(*command)

    def execute(self, *command: Argument) -> Any:
        """Send one command."""
        return self._link.execute(*command)

    def long_read(self, *, name: str, connect_timeout_s: float, max_bytes: int) -> LongRead:
        """Return a dedicated connection for a long read; see `LongRead`."""
        long_read = LongRead(
            self._endpoint.url,
            connect_timeout_s=connect_timeout_s,
            name=f"{self._name}:{name}",
            max_bytes=max_bytes,
        )
        self._long_reads.add(long_read)
        return long_read

    def close(self) -> None:
        """Close the connection."""
        self._link.close()


def format_mismatch(stored: bytes | None, keys: PoolKeys) -> tuple[str, str] | None:
    """Compare the stored floor with the formats of this program; return the difference and the fix, or None."""
    floor = read_floor(stored)
    if stored is None or (floor is not None and OLDEST_FORMAT <= floor <= FORMAT):
        return None
    if floor is not None and floor > FORMAT:
        return outdated(keys.pool, floor)
    found = (
        f"the data in pool {keys.pool!r} has format {stored.decode(errors='replace')}, and this version reads formats "
        f"{OLDEST_FORMAT} to {FORMAT}"
    )
    return found, (
        "run the version that wrote it until the pool has no open tasks, stop it, then delete the key "
        f"{keys.format}; or use another prefix"
    )
