"""Runs a long read on a dedicated connection without blocking its thread.

The thread begins the read, polls `fileno` together with other descriptors, and takes the reply once it is complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import hiredis
from redis.exceptions import RedisError

from orchestrator.core.errors import ServerUnavailable
from orchestrator.store.failures import CutOff, Redirected, ReplyTooLarge, is_from_replica, translate
from orchestrator.store.links import end_connection, make_sync_pool, with_address
from orchestrator.store.outage import ClosedHere, Outages
from orchestrator.store.router import learn
from orchestrator.store.wire import pack

if TYPE_CHECKING:
    import socket

    from redis.connection import ConnectionInterface

    from orchestrator.core.errors import StoreError
    from orchestrator.store.calls import Argument
    from orchestrator.store.locator import Address, Locator

CHUNK_BYTES: Final = 65_536
TURN_BYTES: Final = 1_048_576
"""Bytes that one `take` reads at most, so that the caller can do other work in between."""

_NOTHING = object()


class LongRead:
    """One connection, opened by `begin`, closed by any failure; one read at a time.

    It connects to the server that has the slot, and leaves it when the slot has moved.

    Args:
        locator: answers the address of the slot.
        slot: of all keys that it reads.
        connect_timeout_s: for the connection and for each reply during the login.
        name: shown in CLIENT LIST.
        max_bytes: a larger reply is discarded.
        outages: told of failures.
    """

    def __init__(
        self,
        locator: Locator,
        *,
        slot: int,
        connect_timeout_s: float,
        name: str,
        max_bytes: int,
        outages: Outages | None = None,
    ) -> None:
        self._outages = outages or Outages(by_address=False)
        self._locator, self._slot, self._name = locator, slot, name
        self._address: Address | None = None
        self._connection: ConnectionInterface | None = None
        self._send_within_s, self._max_bytes = connect_timeout_s, max_bytes
        self._socket: socket.socket | None = None
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._what = ""
        self._read_bytes = 0
        self._left = False
        """Whether this process has ended the connection."""
        self.under_way = False
        self.more = False
        """Whether data is left that one `take` did not read; `fileno` does not signal it."""

    def begin(self, *command: Argument) -> None:
        """Send a command with a long reply; connects first if necessary.

        Raises:
            StoreError: the command could not be sent.
        """
        assert not self.under_way
        self._what, self._read_bytes = str(command[0]), 0
        try:
            connection = self._open()
            connection.settimeout(self._send_within_s)
            connection.sendall(pack(command))
            connection.settimeout(0)
        except (RedisError, OSError) as error:
            self.close()
            assert self._address is not None
            raise self._noted(translate(error, what=self._what, sent=False, at=self._address), error) from error
        self.under_way = True

    def _open(self) -> socket.socket:
        address = self._locator.single or self._locator.address(self._slot)
        if address != self._address:
            self.close()
            pool = make_sync_pool(
                address,
                connect_timeout_s=self._send_within_s,
                read_timeout_s=self._send_within_s,
                name=self._name,
            )
            self._address, self._connection = address, pool.make_connection()
        if self._socket is None:
            assert self._connection is not None
            self._reader = hiredis.Reader(notEnoughData=_NOTHING)
            try:
                self._connection.connect()  # type: ignore[no-untyped-call]
            except (RedisError, OSError):
                self._locator.doubt(address)
                raise
            # Before the look at the locator: `leave`, which another thread calls, needs the socket.
            self._socket = self._connection._sock  # type: ignore[attr-defined]  # noqa: SLF001 - no other way to it
            assert self._socket is not None
            if (self._locator.single or address) != address:
                self.close()
                raise ClosedHere("another server is the master now")
        return self._socket

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when `take` has data."""
        assert self._socket is not None
        return self._socket.fileno()

    def take(self) -> tuple[Any] | None:
        """Return the reply in a tuple, or None while it is incomplete.

        Raises:
            ReplyTooLarge: the reply was discarded.
            StoreError: Redis refused, or the connection was lost.
        """
        try:
            ended = self._read()
            reply = self._reader.gets()
        except (OSError, hiredis.ProtocolError) as error:
            self.close()
            assert self._address is not None
            lost = ConnectionError(str(error))
            lost.__cause__ = error
            raise self._noted(translate(lost, what=self._what, sent=True, at=self._address), error) from error
        if reply is _NOTHING:
            if ended:
                self.close()
                closed = ServerUnavailable(f"{self._what}: the server closed the connection", outcome_unknown=True)
                raise self._noted(closed, closed)
            if self._read_bytes > self._max_bytes:
                self.close()
                raise ReplyTooLarge(f"{self._what}: the reply has more than {self._max_bytes} bytes")
            return None
        self.under_way = False
        if isinstance(reply, hiredis.ReplyError):
            assert self._address is not None
            failure = with_address(translate(reply, what=self._what, sent=True, at=self._address), self._address)
            if is_from_replica(reply) or isinstance(failure, CutOff):
                self._locator.doubt(self._address)
                self.close()
            elif isinstance(failure, Redirected) and not failure.asking:
                learn(self._locator, failure)
                self.close()
            raise failure
        return (reply,)

    def _noted(self, failure: StoreError, cause: BaseException) -> StoreError:
        if self._left or self._address is None:
            self._left = False
            return failure
        return self._outages.of(self._address).note_failure(failure, cause, self._address)

    def _read(self) -> bool:
        """Read available data, up to `TURN_BYTES`, and return True if the connection has ended."""
        assert self._socket is not None
        turn_bytes, self.more = 0, False
        while turn_bytes < TURN_BYTES:
            try:
                data = self._socket.recv(CHUNK_BYTES)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError as error:
                # TLS raises its own errors while a record is incomplete.
                if type(error).__name__ in {"SSLWantReadError", "SSLWantWriteError"}:
                    return False
                raise
            if not data:
                return True
            self._reader.feed(data)
            turn_bytes += len(data)
            self._read_bytes += len(data)
        self.more = True
        return False

    def leave_replica(self) -> None:
        """End the connection; a read under way fails, and the next `begin` resolves the address again."""
        self._left = True
        end_connection(self._socket)

    def leave(self, address: Address) -> None:
        """End the connection to an address that another server has replaced."""
        if self._address == address:
            self._left = True
            end_connection(self._socket)

    def close(self) -> None:
        """Close the connection and abandon the read; a later `begin` connects again."""
        self.under_way = self.more = False
        self._socket = None
        if self._connection is not None:
            self._connection.disconnect()  # type: ignore[no-untyped-call]
