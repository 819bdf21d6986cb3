"""A read that may take long, on a connection of its own. Nothing here waits for its reply.

A thread begins the read, waits for `fileno` beside other things, and takes the reply when it is all there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import hiredis
from redis.exceptions import RedisError

from orchestrator.core.errors import ServerUnavailable
from orchestrator.store.failures import ReplyTooLarge, translate
from orchestrator.store.links import make_sync_pool
from orchestrator.store.wire import pack

if TYPE_CHECKING:
    import socket

    from orchestrator.store.calls import Argument

CHUNK_BYTES: Final = 65_536
TURN_BYTES: Final = 1_048_576
"""A `take` reads so much at most, so that its caller has its turn."""

_NOTHING = object()


class LongRead:
    """One connection, opened by `begin`, closed by any failure; one read at a time.

    Args:
        url: of the server.
        connect_timeout_s: for the connection, and for each answer during the login.
        name: shown in the server's client list.
        max_bytes: a reply that is larger is given up.
    """

    def __init__(self, url: str, *, connect_timeout_s: float, name: str, max_bytes: int) -> None:
        pool = make_sync_pool(url, connect_timeout_s=connect_timeout_s, read_timeout_s=connect_timeout_s, name=name)
        self._connection = pool.make_connection()
        self._send_within_s, self._max_bytes = connect_timeout_s, max_bytes
        self._socket: socket.socket | None = None
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._what = ""
        self._read_bytes = 0
        self.under_way = False
        self.more = False
        """More has come than one `take` reads: `fileno` need not tell of it."""

    def begin(self, *command: Argument) -> None:
        """Send a command whose reply may take long; connects first, if need be.

        Raises:
            StoreError: it could not be sent.
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
            raise translate(error, what=self._what, sent=False) from error
        self.under_way = True

    def _open(self) -> socket.socket:
        if self._socket is None:
            self._reader = hiredis.Reader(notEnoughData=_NOTHING)
            self._connection.connect()  # type: ignore[no-untyped-call]
            self._socket = self._connection._sock  # type: ignore[attr-defined]  # noqa: SLF001 - no other way to it
            assert self._socket is not None
        return self._socket

    def fileno(self) -> int:
        """What becomes readable when there is something to `take`."""
        assert self._socket is not None
        return self._socket.fileno()

    def take(self) -> tuple[Any] | None:
        """The reply, alone in a tuple, or None as long as it is not all there.

        Raises:
            ReplyTooLarge: it is given up.
            StoreError: Redis refused, or the connection was lost.
        """
        try:
            ended = self._read()
            reply = self._reader.gets()
        except (OSError, hiredis.ProtocolError) as error:
            self.close()
            raise translate(ConnectionError(str(error)), what=self._what, sent=True) from error
        if reply is _NOTHING:
            if ended:
                self.close()
                raise ServerUnavailable(f"{self._what}: the server closed the connection", outcome_unknown=True)
            if self._read_bytes > self._max_bytes:
                self.close()
                raise ReplyTooLarge(f"{self._what}: the reply has more than {self._max_bytes} bytes")
            return None
        self.under_way = False
        if isinstance(reply, hiredis.ReplyError):
            raise translate(reply, what=self._what, sent=True)
        return (reply,)

    def _read(self) -> bool:
        """Read what has come, up to a turn's worth; True: that was the end of the connection."""
        assert self._socket is not None
        turn_bytes, self.more = 0, False
        while turn_bytes < TURN_BYTES:
            try:
                data = self._socket.recv(CHUNK_BYTES)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError as error:
                # TLS says so in its own words when there is no whole record yet.
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

    def close(self) -> None:
        """Close the connection and give up the read; a later `begin` opens it again."""
        self.under_way = self.more = False
        self._socket = None
        self._connection.disconnect()  # type: ignore[no-untyped-call]
