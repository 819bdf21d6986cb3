"""Counts the streams that are open, of each login and of the process, and refuses those beyond a bound.

A stream holds a connection and a place of the event loop for as long as a program wants it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from orchestrator.dashboard.identity import Identity

MOST: Final = 500
"""Streams of one process."""
MOST_OF_LOGIN: Final = 100
"""Streams of one user or token."""
RETRY_AFTER_S: Final = 30


class TooManyStreams(Exception):
    """A stream was not opened, because too many are open."""


class OpenStreams:
    """The open streams of one process."""

    def __init__(self) -> None:
        self._of_login: Counter[tuple[bool, str]] = Counter()

    @property
    def total(self) -> int:
        """Number of the open streams."""
        return self._of_login.total()

    def admit(self, identity: Identity, stream: Response) -> Response:
        """Return a stream that counts as long as it is sent. It must be sent at once.

        Raises:
            TooManyStreams: the login or the process has reached its limit of open streams.
        """
        login = (identity.by_token, identity.name)
        if self._of_login[login] >= MOST_OF_LOGIN:
            raise TooManyStreams(f"{identity.name} has {MOST_OF_LOGIN} streams open; close some, and try again")
        if self.total >= MOST:
            raise TooManyStreams(
                f"{MOST} streams are open in this dashboard; try again later, or at another copy of it"
            )
        return _CountedStream(self._of_login, login, stream)


class _CountedStream(Response):
    """A stream that is counted while it is sent."""

    def __init__(self, of_login: Counter[tuple[bool, str]], login: tuple[bool, str], stream: Response) -> None:
        super().__init__()
        self._of_login, self._login, self._stream = of_login, login, stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        self._of_login[self._login] += 1
        try:
            await self._stream(scope, receive, send)
        finally:
            self._of_login[self._login] -= 1
            if not self._of_login[self._login]:
                del self._of_login[self._login]
