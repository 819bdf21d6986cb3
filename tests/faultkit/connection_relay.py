"""Relays one client connection: frames, replies matched to commands, faults.

Two tasks share the queue of open exchanges. Only the holder of the delivery lock writes to the client, so that a loss
at the head of the queue cannot overtake earlier replies.
"""

from __future__ import annotations

import contextlib
import inspect
import socket
import struct
import time
from collections import deque
from typing import TYPE_CHECKING, Final

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketStream

from tests.faultkit import resp
from tests.faultkit.commands import SUBSCRIPTION_COMMANDS, Command, CommandRecord

if TYPE_CHECKING:
    from tests.faultkit.fault_registry import Exchange, FaultRegistry
    from tests.faultkit.faults import Loss, Watch
    from tests.faultkit.network_conditions import Direction

_CHUNK_BYTES: Final = 256 * 1024

_CONFIRMATIONS: Final = frozenset(name.lower().encode() for name in SUBSCRIPTION_COMMANDS)
_MESSAGES: Final = frozenset({b"message", b"pmessage", b"smessage"})
_UNRELAYED: Final = frozenset({"MONITOR", "SYNC", "PSYNC"})


class ConnectionRelay:
    """Relays one connection until either side or a fault ends it."""

    def __init__(self, *, number: int, client: SocketStream, upstream: ByteStream, registry: FaultRegistry) -> None:
        self.number = number
        self._client = client
        self._upstream = upstream
        self._registry = registry
        self._open: deque[Exchange] = deque()
        self._delivery = anyio.Lock()
        self._scope = anyio.CancelScope()
        self._muted: set[Direction] = set()
        self._refusal = b""
        self._in_transaction = False
        self._subscribed = False
        self._reset = False

    async def run(self) -> None:
        """Relay until the connection ends, then close both sides."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._relay_up)
                    tasks.start_soon(self._relay_down)
        finally:
            with anyio.CancelScope(shield=True):
                await (reset_stream(self._client) if self._reset else self._client.aclose())
                await self._upstream.aclose()

    def end(self, *, reset: bool) -> None:
        """End the connection now, in order (FIN) or by a reset (RST)."""
        self._reset = reset
        self._scope.cancel()

    # ------------------------------------------------------------------------------------------- client to server

    async def _relay_up(self) -> None:
        framer = resp.Framer(resp.REQUEST_TYPES)
        try:
            while True:
                data = await self._client.receive(_CHUNK_BYTES)
                if "up" in self._muted or self._refusal:
                    continue
                try:
                    await self._forward(framer.feed(data))
                except resp.ProtocolError as error:
                    await self._refuse(str(error))
        except anyio.EndOfStream:
            await self._wait_while_silent("up")
            await self._upstream.send_eof()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._wait_while_silent("up", "down")
            self.end(reset=True)

    async def _forward(self, frames: list[bytes]) -> None:
        batch: list[Exchange] = []
        for frame in frames:
            command = Command(frame, connection=self.number)
            if not command.name:
                continue  # the server skips an empty command without a reply
            if _unrelayed(command):
                await self._send_up(batch)
                await self._refuse(f"{command.name} changes what a reply is; connect to the server itself for it")
                return
            exchange = self._registry.plan(command, in_transaction=self._in_transaction)
            self._follow_transaction(command.name)
            if exchange.request_watches:
                await self._send_up(batch)
                batch = []
                await self._call_hooks(exchange.request_watches, command)
            if exchange.command_loss:
                await self._send_up(batch)
                self._muted.add("up")
                self._open.append(exchange)
                async with self._delivery:
                    await self._settle()
                return
            batch.append(exchange)
        await self._send_up(batch)

    def _follow_transaction(self, name: str) -> None:
        if name == "MULTI":
            self._in_transaction = True
        elif name in {"EXEC", "DISCARD", "RESET"}:
            self._in_transaction = False

    async def _send_up(self, batch: list[Exchange]) -> None:
        if not batch:
            return
        self._open.extend(batch)
        data = b"".join(exchange.command.frame * exchange.record.copies for exchange in batch)
        await self._write("up", data, [exchange.record for exchange in batch])

    async def _refuse(self, reason: str) -> None:
        self._refusal = f"-ERR fault proxy: {reason}\r\n".encode(errors="backslashreplace")
        async with self._delivery:
            await self._settle()

    # ------------------------------------------------------------------------------------------- server to client

    async def _relay_down(self) -> None:
        framer = resp.Framer()
        try:
            while True:
                frames = framer.feed(await self._upstream.receive(_CHUNK_BYTES))
                if frames and "down" not in self._muted:
                    async with self._delivery:
                        await self._deliver(frames)
        except anyio.EndOfStream:
            await self._wait_while_silent("down")
            self.end(reset=False)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._wait_while_silent("up", "down")
            self.end(reset=True)

    async def _deliver(self, frames: list[bytes]) -> None:
        batch: list[bytes] = []
        records: list[CommandRecord] = []
        for frame in frames:
            exchange = self._exchange_of(frame)
            if exchange is None:
                batch.append(frame)
                continue
            exchange.replies_due -= 1
            if exchange.replies_due:
                if exchange.doubling is None:
                    batch.append(frame)  # one of several confirmations
                elif exchange.doubling.answer == "first":
                    exchange.answer = frame
                continue
            self._open.popleft()
            reply = exchange.answer or frame
            if exchange.doubling:
                self._registry.count_applied(exchange.doubling, "double")
            if exchange.reply_watches:
                await self._write("down", b"".join(batch), records)
                batch, records = [], []
                await self._call_hooks(exchange.reply_watches, exchange.command)
            if exchange.reply_loss:
                await self._write("down", b"".join(batch), records)
                self._registry.count_applied(exchange.reply_loss, "fail_reply")
                exchange.record.outcome = "reply lost"
                await self._lose("down", reply, exchange.reply_loss.how)
                return
            batch.append(reply)
            records.append(exchange.record)
        await self._write("down", b"".join(batch), records)
        await self._settle()

    def _exchange_of(self, frame: bytes) -> Exchange | None:
        """Return the exchange of this frame; None for a message without a request."""
        head = self._open[0] if self._open else None
        pushed = frame.startswith(b">")
        if not pushed and not frame.startswith(b"*"):
            if head and head.command.name in SUBSCRIPTION_COMMANDS:
                head.replies_due = 1  # an error, or QUEUED: no confirmations follow
            return head
        kind = resp.first_text(frame)
        if kind in _CONFIRMATIONS:
            expected = head is not None and head.command.name.lower().encode() == kind
            if expected or pushed or self._subscribed:
                self._subscribed = not pushed and not frame.endswith(b":0\r\n")
                return head if expected else None
        if pushed or (self._subscribed and kind in _MESSAGES):
            return None
        return head

    async def _settle(self) -> None:
        """Apply losses that waited for earlier replies. The caller holds the delivery lock."""
        if self._open and (loss := self._open[0].command_loss):
            exchange = self._open.popleft()
            self._registry.count_applied(loss, "fail_command")
            exchange.record.outcome = "command lost"
            exchange.record.copies = 0
            await self._lose("up", exchange.command.frame, loss.how)
        elif self._refusal and not self._open:
            await self._client.send(self._refusal)
            self.end(reset=False)

    # ------------------------------------------------------------------------------------------------------- both

    async def _lose(self, direction: Direction, frame: bytes, how: Loss) -> None:
        self._muted.add(direction)
        if how == "truncate":
            await self._write(direction, frame[: len(frame) // 2], [])
        if how != "swallow":
            self.end(reset=how == "reset")

    async def _call_hooks(self, watches: list[Watch], command: Command) -> None:
        for watch in watches:
            self._registry.count_applied(watch, "watch")
            outcome = watch.hook(command)
            if inspect.isawaitable(outcome):
                await outcome

    async def _wait_while_silent(self, *directions: Direction) -> None:
        """Wait while a direction is silent, in which case the end of a connection is held back too."""
        conditions = self._registry.conditions
        if any(conditions.is_silent(direction) for direction in directions):
            self._registry.applied["blackhole"] += 1
            while any(conditions.is_silent(direction) for direction in directions):
                await conditions.wait_for_change()

    async def _write(self, direction: Direction, data: bytes, records: list[CommandRecord]) -> None:
        """Write under the network conditions; the records get the time of the first byte."""
        if not data:
            return
        conditions, applied = self._registry.conditions, self._registry.applied
        stream = self._upstream if direction == "up" else self._client
        if conditions.is_clear:
            _stamp(direction, records)
            await stream.send(data)
            return
        if delay_s := conditions.delay_s():
            applied["latency"] += 1
            await conditions.wait_for_change(delay_s)
        position = 0
        while position < len(data):
            await self._wait_while_silent(direction)
            if not position:
                _stamp(direction, records)
            size = conditions.chunk_bytes(len(data) - position)
            await stream.send(data[position : position + size])
            position += size
            if position < len(data):
                applied["drip"] += 1
                await conditions.pause()


async def reset_stream(stream: SocketStream) -> None:
    """Close a TCP connection so that the other side gets a reset."""
    with contextlib.suppress(OSError):  # closed already
        raw = stream.extra(SocketAttribute.raw_socket)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await anyio.aclose_forcefully(stream)


def _unrelayed(command: Command) -> bool:
    """Return True if the command ends the rule of one reply per command."""
    if command.name == "CLIENT":
        return command.arguments[:1] != () and command.arguments[0].upper() == b"REPLY"
    return command.name in _UNRELAYED


def _stamp(direction: Direction, records: list[CommandRecord]) -> None:
    now_s = time.monotonic()
    for record in records:
        if direction == "up":
            record.forwarded_at_s = now_s
        else:
            record.replied_at_s, record.outcome = now_s, "replied"
