"""Redis clients: `Store` for asyncio, `SyncStore` for threads. They run script calls and read-only commands.

A call is sent once. With `retry_for_s` it is repeated while Redis does not answer, also after an unknown outcome,
because every script is safe to send twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from weakref import WeakSet

import anyio
from anyio import to_thread

from orchestrator.core.durability import DEFAULT
from orchestrator.core.errors import (
    ConfigError,
    FormatMismatch,
    ServerFull,
    ServerRefused,
    ServerUnavailable,
    StoreError,
)
from orchestrator.core.formats import (
    FORMAT,
    OLDEST_FORMAT,
    RESTORING,
    Floor,
    outdated,
    read_floor,
    unfinished_restore,
)
from orchestrator.core.reading import read_text
from orchestrator.store.capabilities import CapabilityProbe
from orchestrator.store.failures import Redirected, ScriptMissing
from orchestrator.store.hints import Hints
from orchestrator.store.levels import level_problem
from orchestrator.store.links import Link, SyncLink
from orchestrator.store.locating import locate
from orchestrator.store.locator import FixedLocator, slot_of
from orchestrator.store.long_read import LongRead
from orchestrator.store.outage import Outages
from orchestrator.store.retry import repeat, repeat_sync
from orchestrator.store.router import Router, SyncRouter
from orchestrator.store.script_files import all_scripts, read_all_scripts
from orchestrator.store.sentinel_locator import SentinelLocator
from orchestrator.store.server_info import COMMAND_SECTIONS, OLDEST, SECTIONS, read_command_stats, read_info
from orchestrator.store.shared_hints import SharedHints
from orchestrator.store.slot_map import ClusterLocator
from orchestrator.tracing.active import active

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from orchestrator.core.durability import Level
    from orchestrator.core.formats import Feature
    from orchestrator.core.redis_url import RedisUrl
    from orchestrator.store.calls import Argument, Call
    from orchestrator.store.keys import PoolKeys
    from orchestrator.store.locator import Address, Locator
from orchestrator.store.server_info import CommandStats, ServerInfo

T = TypeVar("T")


MOST_LOADS: Final = 3
"""How often a call loads its script: once at each server to which its slot moves meanwhile."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Place of Redis, and time-outs. All stores of a process share it, so that one tells the others what it learned.

    Attributes:
        locator: answers the address of a slot.
        connect_timeout_s: for the connection.
        command_timeout_s: for the reply to a short command.
        outages: what its stores have told of outages.
    """

    locator: Locator
    connect_timeout_s: float = 5.0
    command_timeout_s: float = 10.0
    outages: Outages = field(default_factory=lambda: Outages(by_address=False), compare=False)

    @classmethod
    def at(cls, url: str | RedisUrl, *, connect_timeout_s: float = 5.0, command_timeout_s: float = 10.0) -> Self:
        """Return the place with this URL; `core.redis_url` has the forms.

        Raises:
            ConfigError: it is not the address of Redis, or a file that TLS needs is wrong.
        """
        locator = locate(url)
        outages = Outages(by_address=isinstance(locator, ClusterLocator))
        return cls(locator, connect_timeout_s, command_timeout_s, outages)

    async def prepare(self) -> None:
        """Learn where the servers are, before the first command.

        Raises:
            ServerUnavailable: none answers.
        """
        if isinstance(self.locator, ClusterLocator | SentinelLocator):
            await to_thread.run_sync(self.locator.prepare)


class Store:
    """Runs scripts and short commands over shared links, one per address; makes links for blocking reads.

    Args:
        endpoint: the server.
        keys: of the pool.
        name: shown in CLIENT LIST.
        floor: the floor of the pool, if the caller watches it.
        reads_replica: the server may be a replica, and the store changes nothing.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        keys: PoolKeys,
        *,
        name: str = "orc",
        floor: Floor | None = None,
        reads_replica: bool = False,
    ) -> None:
        self.keys, self._reads_replica = keys, reads_replica
        self._endpoint, self._name = endpoint, name
        self.floor = floor or Floor(keys.pool, keys.root)
        """The lowest format that the pool admits. `check_format`, heartbeats and the leader's lease renew it."""
        self._closed = anyio.Event()
        self.last_outage_s = -math.inf
        """Monotonic time of the last call that Redis did not answer or refused because it was full."""
        self.connected: Callable[[], None] = lambda: None
        """Called when a shared connection has been opened, also again after a loss."""
        self.capabilities = CapabilityProbe(self.execute)
        self._slot = slot_of(keys.root)
        self._routers: WeakSet[Router] = WeakSet()
        self._router = self._new_router(name, endpoint.command_timeout_s, shared=True, opened=self._tell_connected)
        self._aside: Router | None = None
        self._in_turn: Router | None = None
        self._turn = anyio.Lock()
        self.hints = SharedHints(lambda received, ended: self.open_hints(name="hints", received=received, ended=ended))
        """Shared by all that listens for hints in this process."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._moved = anyio.Event()
        endpoint.locator.watch(self)

    def leave(self, address: Address) -> None:
        """Close the connections to an address that another server has replaced. Any thread may call it."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._leave, address)

    def _leave(self, address: Address) -> None:
        for router in list(self._routers):
            router.leave(address)
        # Calls that pause between two tries go on.
        self._moved.set()
        if not self._closed.is_set():
            self._moved = anyio.Event()

    def _new_router(
        self,
        name: str,
        read_timeout_s: float,
        *,
        shared: bool = False,
        keep: bool = False,
        opened: Callable[[], None] | None = None,
        received: Callable[[str, str], None] | None = None,
        ended: Callable[[], None] | None = None,
    ) -> Router:
        def open_link(address: Address) -> Link:
            self._loop = asyncio.get_running_loop()
            return Link(
                address,
                connect_timeout_s=self._endpoint.connect_timeout_s,
                read_timeout_s=read_timeout_s,
                name=name,
                published=received,
                ended=ended,
                demoted=self._leave_replica,
                doubted=self._endpoint.locator.doubt,
                opened=opened,
                # A blocking read may take long.
                late=locator.late if shared and isinstance(locator, ClusterLocator) else None,
                reads_replica=self._reads_replica,
                outage=self._endpoint.outages.of(address),
            )

        locator = self._endpoint.locator

        router = Router(
            locator, slot=self._slot, open_link=open_link, shared=shared, keep=keep, learned=self._leave_moved
        )
        self._routers.add(router)
        return router

    def _tell_connected(self) -> None:
        self.connected()

    def _leave_replica(self, address: Address) -> None:
        # A link that only reads gets no error from a replica, and a replica without its master stays silent.
        self._endpoint.locator.doubt(address)
        for router in list(self._routers):
            router.leave_replica(address)

    def _leave_moved(self, slot: int) -> None:
        # Redis tells blocked readers up to a second later.
        for router in list(self._routers):
            router.leave_moved(slot)

    def call(self, call: Call[T], *, retry_for_s: float = 0.0) -> Coroutine[Any, Any, T]:
        """Run a script.

        Args:
            call: made by a script wrapper.
            retry_for_s: how long to repeat while Redis does not answer; 0 sends once.

        Raises:
            StoreError: the call failed; see `core.errors`.
        """
        tracing = active()
        if tracing is None or not tracing.traces_scripts():
            return self._call(call, retry_for_s)
        return tracing.script(call.script, self._call(call, retry_for_s))

    async def call_untraced(self, call: Call[T]) -> T:
        """Run a script once, without a span; see `call`."""
        return call.read(await self._run(call))

    async def _call(self, call: Call[T], retry_for_s: float) -> T:
        try:
            return call.read(await self._run(call))
        except ServerUnavailable as failure:
            if not retry_for_s or self._closed.is_set():
                raise
            first = failure

        async def again() -> T:
            return call.read(await self._run(call))

        return await repeat(
            again, retry_for_s=retry_for_s, after=first, closed=self._closed, interrupt=lambda: self._moved
        )

    def call_behind(
        self, commands: Sequence[Sequence[Argument]], call: Call[T], *, retry_for_s: float = 0.0
    ) -> Coroutine[Any, Any, T]:
        """Run a script behind plain commands, in one round trip; see `call`.

        The script must find out which of them failed.
        """
        tracing = active()
        if tracing is None or not tracing.traces_scripts():
            return self._call_behind(commands, call, retry_for_s)
        return tracing.script(call.script, self._call_behind(commands, call, retry_for_s))

    async def _call_behind(self, commands: Sequence[Sequence[Argument]], call: Call[T], retry_for_s: float) -> T:
        async def send() -> T:
            command = self._command(call)
            reply = (await self.pipeline([*commands, command]))[-1]
            if isinstance(reply, ScriptMissing):
                reply = await self._load_and_run(all_scripts()[call.script].text, command)
            elif isinstance(reply, StoreError):
                raise reply
            return call.read(reply)

        return await self.read_with_retry(send, retry_for_s=retry_for_s)

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
        return await repeat(
            read, retry_for_s=retry_for_s, after=first, closed=self._closed, interrupt=lambda: self._moved
        )

    async def repeat(self, attempt: Callable[[], Awaitable[T]], *, retry_for_s: float) -> T:
        """Run `attempt`, which must be safe to run twice, and repeat it while Redis does not answer.

        Raises:
            StoreError: the attempt failed.
        """
        try:
            return await self.read_with_retry(attempt, retry_for_s=retry_for_s)
        except ServerUnavailable:
            self.last_outage_s = time.monotonic()
            raise

    def _command(self, call: Call[Any]) -> list[Argument]:
        return call.reading_command() if self._reads_replica else call.command()

    async def _run(self, call: Call[Any]) -> Any:
        command = self._command(call)
        try:
            return await self.execute(*command)
        except ScriptMissing:
            return await self._load_and_run(all_scripts()[call.script].text, command)

    async def _load_and_run(self, script: str, command: Sequence[Argument]) -> Any:
        # At the server that has the slot of the call. If the slot moves in between, the next server lacks the script.
        for _ in range(MOST_LOADS - 1):
            await self._router.link(command).execute("SCRIPT", "LOAD", script)
            with contextlib.suppress(ScriptMissing):
                return await self.execute(*command)
        await self._router.link(command).execute("SCRIPT", "LOAD", script)
        return await self.execute(*command)

    async def execute(self, *command: Argument) -> Any:
        """Send one command."""
        self._check_open(command)
        try:
            # Not `Router.execute`, because another coroutine costs each command a microsecond.
            return await self._router.link(command).execute(*command)
        except Redirected as redirect:
            return await self._follow(command, redirect)
        except (ServerUnavailable, ServerFull):
            self.last_outage_s = time.monotonic()
            raise

    async def _follow(self, command: Sequence[Argument], redirect: Redirected) -> Any:
        try:
            return await self._router.follow(command, redirect)
        except (ServerUnavailable, ServerFull):
            self.last_outage_s = time.monotonic()
            raise

    async def pipeline(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send commands together; an error reply becomes a `StoreError` in the list."""
        if commands:
            self._check_open(commands[0])
        try:
            replies = await self._router.pipeline(commands)
        except ServerUnavailable:
            self.last_outage_s = time.monotonic()
            raise
        if any(isinstance(reply, ServerUnavailable | ServerFull) for reply in replies):
            self.last_outage_s = time.monotonic()
        return replies

    async def pipeline_aside(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send slow commands together over links of their own; see `pipeline`.

        While a thread of the server works for a command, as for VADD CAS and VSIM, Redis reads nothing more from its
        connection: over the shared one, heartbeats and results of the process would wait behind it.
        """
        if self._aside is None:
            self._aside = self._new_router(f"{self._name}:aside", self._endpoint.command_timeout_s, shared=True)
        if commands:
            self._check_open(commands[0])
        return await self._aside.pipeline(commands)

    async def pipeline_in_turn(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send slow changes together over further links of their own, one caller after the other; see `pipeline`.

        A caller waits before it sends. Behind hundreds of commands of others it would take the server for dead.
        """
        if self._in_turn is None:
            self._in_turn = self._new_router(f"{self._name}:in-turn", self._endpoint.command_timeout_s, shared=True)
        async with self._turn:
            if commands:
                self._check_open(commands[0])
            return await self._in_turn.pipeline(commands)

    async def call_all(self, calls: Sequence[Call[T]]) -> list[T]:
        """Run script calls in one round trip.

        Raises:
            StoreError: one of them failed.
        """
        replies = await self.pipeline([self._command(call) for call in calls]) if calls else []
        answers = []
        for call, reply in zip(calls, replies, strict=True):
            if isinstance(reply, ScriptMissing):
                answers.append(await self.call(call))
            elif isinstance(reply, Exception):
                raise reply
            else:
                answers.append(call.read(reply))
        return answers

    def _check_open(self, command: Sequence[Argument]) -> None:
        # A closed link would connect again and stay open.
        if self._closed.is_set():
            raise ServerUnavailable(f"{command[0]!s} was not sent: the connection has been closed")

    def blocking_link(self, block_s: float, *, name: str = "block", opened: Callable[[], None] | None = None) -> Router:
        """Return a link of its own for reads that block up to `block_s`; it calls `opened` for each new connection."""
        # The margin lets a busy server reply "nothing" before the read times out.
        return self._new_router(f"{self._name}:{name}", block_s + self._endpoint.command_timeout_s, opened=opened)

    def open_hints(self, *, name: str, received: Callable[[str, str], None], ended: Callable[[], None]) -> Hints:
        """Return a connection for subscriptions; see `Hints`."""
        timeout_s = self._endpoint.command_timeout_s
        # A connection with subscriptions may send nothing for long.
        router = self._new_router(
            f"{self._name}:{name}", timeout_s, shared=True, keep=True, received=received, ended=ended
        )
        return Hints(router)

    async def load_scripts(self, *, every: bool = False) -> int:
        """Read all scripts from disk, and load those for users who may only read, unless the server knows them.

        Such users may load nothing. Each other script is loaded by its first call, because the garbage
        collector of Lua visits every loaded script (docs/internals/adr/0070). Return how many were missing.

        Args:
            every: load all scripts, for programs whose users may load none.
        """
        # The first call reads and compiles all files, for longer than a loop may stand still.
        read = await to_thread.run_sync(read_all_scripts)
        scripts = [script for script in read if every or script.may_only_read]

        async def load() -> int:
            known = await self.execute("SCRIPT", "EXISTS", *[script.sha for script in scripts])
            missing = [script for script, is_known in zip(scripts, known, strict=True) if not is_known]
            for reply in await self.pipeline([("SCRIPT", "LOAD", script.text) for script in missing]):
                if isinstance(reply, Exception):
                    raise reply
            return len(missing)

        return await self._retry_if_interrupted(load)

    async def check_format(self) -> None:
        """Read the floor of the pool; set it to the format of this program if the pool is empty.

        Raises:
            FormatMismatch: the pool does not admit this program, or its data is too old.
        """
        stored = await self._read_floor()
        if self.floor.shuts_out:
            raise self.floor.refusal()
        if mismatch := format_mismatch(stored, self.keys):
            raise FormatMismatch("; ".join(mismatch))

    async def _read_floor(self) -> bytes | None:
        async def read() -> bytes | None:
            stored: bytes | None = await self.execute("GET", self.keys.format)
            if stored is None and not self._reads_replica:
                # Redis may have lost the floor. The formats of the programs that are there are unknown, but not below
                # a floor that this program has seen.
                is_used = await self.execute("EXISTS", self.keys.workers, self.keys.leader)
                least = OLDEST_FORMAT if is_used else FORMAT
                # Write only if missing: a full server refuses every SET, but workers must start to drain it.
                try:
                    await self.execute("SET", self.keys.format, max(self.floor.value, least), "NX")
                except ServerRefused as refused:
                    # Only supervisors and operators may: the next one sets it. It shuts programs out.
                    if "NOPERM" not in str(refused):
                        raise
                stored = await self.execute("GET", self.keys.format)
            return stored

        stored = await self._retry_if_interrupted(read)
        self.floor.note(read_floor(stored))
        return stored

    async def require(self, feature: Feature) -> None:
        """Refuse a feature that some programs of the pool may not understand. Reads Redis only before a refusal.

        Raises:
            UpgradeUnfinished: the pool admits programs that are too old for it.
        """
        if not self.floor.admits(feature):
            await self._read_floor()
            self.floor.check(feature)

    async def _retry_if_interrupted(self, send: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call that a broken connection interrupted; a server that cannot be reached is an error at once."""
        try:
            return await send()
        except ServerUnavailable as failure:
            if not failure.outcome_unknown:
                raise
        return await repeat(
            send, retry_for_s=self._endpoint.command_timeout_s, closed=self._closed, interrupt=lambda: self._moved
        )

    async def check_server(self, *, allow_eviction: bool, durability: Level = DEFAULT) -> list[str]:
        """Check version and settings of the server of the pool, and of each other server that has slots.

        Args:
            allow_eviction: the server may evict keys.
            durability: level that submits ask for.

        Returns:
            Warnings, one sentence each.

        Raises:
            ConfigError: the server is older than 7.0, or may evict keys.
        """
        info = await self.server_info()
        warnings = _check_info(info, "", allow_eviction=allow_eviction)
        for other in self.others:
            warnings += _check_info(await self.server_info(at=other), f" at {other}", allow_eviction=allow_eviction)
        if durability != DEFAULT:
            try:
                pairs = [read_text(text) for text in await self.execute("CONFIG", "GET", "appendfsync")]
            except ServerRefused:
                pairs = []
            if problem := level_problem(durability, info, dict(zip(pairs[::2], pairs[1::2], strict=True))):
                warnings.append(problem)
        return warnings

    @property
    def place(self) -> Address:
        """Address of the server that has the pool."""
        return self._endpoint.locator.address(self._slot)

    @property
    def others(self) -> Sequence[Address]:
        """Addresses of the other servers that have slots, sorted."""
        return [address for address in self._endpoint.locator.servers if address != self.place]

    async def pipeline_at(self, address: Address, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send commands about one of several servers; see `pipeline`."""
        return await self._router.link_to(address).pipeline(commands)

    async def server_info(self, *, at: Address | None = None) -> ServerInfo:
        """Return version, limits and state of the server of the pool, or of another one."""
        # One INFO per section, because servers before 7.0 accept no list and must be recognised as too old.
        commands = [("INFO", section) for section in SECTIONS]
        replies = await (self.pipeline(commands) if at is None else self.pipeline_at(at, commands))
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return read_info("".join(read_text(reply) for reply in replies))

    async def info(self) -> ServerInfo:
        """Return the same with one command, for a server that `check_server` has found new enough."""
        return read_info(read_text(await self.execute("INFO", *SECTIONS)))

    async def info_with_commands(self) -> tuple[ServerInfo, dict[str, CommandStats]]:
        """Return the same, and what the server counts of each command since its start."""
        text = read_text(await self.execute("INFO", *SECTIONS, *COMMAND_SECTIONS))
        return read_info(text), read_command_stats(text)

    async def run_id(self) -> str:
        """Return the server's run id, which changes with every start."""
        return read_info(read_text(await self.execute("INFO", "server"))).run_id

    @property
    def redirected_to(self) -> str:
        """Address of the pool if the one configured server named another one for its slot, else empty."""
        locator = self._endpoint.locator
        fixed = isinstance(locator, FixedLocator) and locator.single is None
        return str(self.place) if fixed else ""

    @property
    def has_slot_map(self) -> bool:
        """True if the slot map of a cluster is known, not one configured server."""
        return isinstance(self._endpoint.locator, ClusterLocator)

    def stop_sending(self) -> None:
        """Stop sending and repeating; the caller must still `close`."""
        self._closed.set()
        self._moved.set()

    async def close(self) -> None:
        """Close the shared links; calls in flight are not repeated."""
        self.stop_sending()
        await self._router.close()
        await self.hints.close()
        for router in (self._aside, self._in_turn):
            if router is not None:
                await router.close()

    async def __aenter__(self) -> Self:
        """Learn where the servers are.

        Raises:
            ServerUnavailable: none answers.
        """
        await self._endpoint.prepare()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class SyncStore:
    """Runs scripts from a thread, or from a process without an event loop."""

    def __init__(self, endpoint: Endpoint, keys: PoolKeys, *, name: str) -> None:
        self.keys = keys
        self._endpoint, self._name = endpoint, name
        self._slot = slot_of(keys.root)
        self._router = SyncRouter(endpoint.locator, slot=self._slot, open_link=self._open_link)
        self._long_reads: WeakSet[LongRead] = WeakSet()
        endpoint.locator.watch(self)

    def _open_link(self, address: Address) -> SyncLink:
        return SyncLink(
            address,
            connect_timeout_s=self._endpoint.connect_timeout_s,
            read_timeout_s=self._endpoint.command_timeout_s,
            name=self._name,
            demoted=self._leave_replica,
            doubted=self._endpoint.locator.doubt,
            late=self._endpoint.locator.late if isinstance(self._endpoint.locator, ClusterLocator) else None,
            outage=self._endpoint.outages.of(address),
        )

    def _leave_replica(self, address: Address) -> None:
        self._endpoint.locator.doubt(address)
        for long_read in list(self._long_reads):
            long_read.leave_replica()

    def leave(self, address: Address) -> None:
        """End the connections to an address that another server has replaced. Any thread may call it."""
        self._router.leave(address)
        for long_read in list(self._long_reads):
            long_read.leave(address)

    def call(self, call: Call[T], *, retry_for_s: float = 0.0) -> T:
        """Run a script; see `Store.call`."""
        if retry_for_s:
            return repeat_sync(lambda: call.read(self._run(call)), retry_for_s=retry_for_s)
        return call.read(self._run(call))

    def call_all(self, calls: Sequence[Call[T]]) -> list[T]:
        """Run script calls in one round trip."""
        replies = self._router.pipeline([call.command() for call in calls])
        answers = []
        for call, reply in zip(calls, replies, strict=True):
            if isinstance(reply, ScriptMissing):
                answers.append(self.call(call))
            elif isinstance(reply, Exception):
                raise reply
            else:
                answers.append(call.read(reply))
        return answers

    def _run(self, call: Call[Any]) -> Any:
        command = call.command()
        try:
            return self.execute(*command)
        except ScriptMissing:
            script = all_scripts()[call.script].text
        # As in `Store._load_and_run`.
        for _ in range(MOST_LOADS - 1):
            self._router.execute_beside(command, "SCRIPT", "LOAD", script)
            with contextlib.suppress(ScriptMissing):
                return self.execute(*command)
        self._router.execute_beside(command, "SCRIPT", "LOAD", script)
        return self.execute(*command)

    def execute(self, *command: Argument) -> Any:
        """Send one command."""
        return self._router.execute(*command)

    def long_read(self, *, name: str, connect_timeout_s: float, max_bytes: int) -> LongRead:
        """Return a dedicated connection for a long read; see `LongRead`."""
        long_read = LongRead(
            self._endpoint.locator,
            slot=self._slot,
            connect_timeout_s=connect_timeout_s,
            name=f"{self._name}:{name}",
            max_bytes=max_bytes,
            outages=self._endpoint.outages,
        )
        self._long_reads.add(long_read)
        return long_read

    def close(self) -> None:
        """Close the connections."""
        self._router.close()


def _check_info(info: ServerInfo, where: str, *, allow_eviction: bool) -> list[str]:
    if info.line < OLDEST:
        raise ConfigError(f"{info.name}{where} is too old; Redis 7.0 or newer is needed")
    if info.eviction not in {"noeviction", "?"} and not allow_eviction:
        raise ConfigError(
            f"Redis{where} may evict keys (maxmemory-policy {info.eviction}), which loses tasks; "
            "set maxmemory-policy noeviction, or redis.allow_eviction = true if that is meant"
        )
    if info.append_only:
        return []
    return [f"Redis{where} has no append-only file: what was accepted is lost when Redis stops (set appendonly yes)"]


def format_mismatch(stored: bytes | None, keys: PoolKeys) -> tuple[str, str] | None:
    """Compare the stored floor with the formats of this program; return the difference and the fix, or None."""
    floor = read_floor(stored)
    if stored is None or (floor is not None and OLDEST_FORMAT <= floor <= FORMAT):
        return None
    if floor is not None and floor > FORMAT:
        return outdated(keys.pool, floor)
    if stored.startswith(RESTORING.encode()):
        return unfinished_restore(keys.pool)
    found = (
        f"the data in pool {keys.pool!r} has format {read_text(stored)}, and this version reads formats "
        f"{OLDEST_FORMAT} to {FORMAT}"
    )
    return found, (
        "run the version that wrote it until the pool has no open tasks, stop it, then delete the key "
        f"{keys.format}; or use another prefix"
    )
