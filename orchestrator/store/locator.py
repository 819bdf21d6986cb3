"""Answers which server has a hash slot.

A link connects to an `Address`. A locator answers the address of a slot from memory; what it does not know it learns
from replies (MOVED) and from doubts (a server that cannot be reached, or that turned out to be a replica). Redirects
are followed by `router`.
"""

from __future__ import annotations

import threading
from binascii import crc_hqx
from typing import TYPE_CHECKING, Final, Protocol

from orchestrator.core.redis_url import beside, place_of, public_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.store.calls import Argument

SLOTS: Final = 16_384
_SCRIPTS: Final = frozenset({"EVALSHA", "EVALSHA_RO", "EVAL", "EVAL_RO"})
_KEYLESS: Final = frozenset(
    "ACL ASKING CLIENT CLUSTER COMMAND CONFIG DISCARD EXEC INFO MULTI PING ROLE SCAN SCRIPT TIME".split()  # noqa: SIM905 - a list of words
)
_SECOND: Final = frozenset({"MEMORY", "OBJECT", "XGROUP", "XINFO"})


class Address:
    """The address of one server, with the login of the configured URL. Its text leaves the login out.

    Attributes:
        url: for a connection; may contain a password.
        is_master: every new connection asks the server whether it is a master, and is refused if not.
    """

    __slots__ = ("is_master", "url")

    def __init__(self, url: str, *, is_master: bool = False) -> None:
        self.url, self.is_master = url, is_master

    def at(self, host: str, port: int) -> Address:
        """Return the address of another server of the same cluster; without a host, that of this one."""
        return Address(beside(self.url, host, port))

    @property
    def public_url(self) -> str:
        """The URL for messages: without login and options."""
        return public_text(self.url)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Address) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __str__(self) -> str:
        return place_of(self.url)

    def __repr__(self) -> str:
        return f"Address({self})"


class Locator(Protocol):
    """Answers the address of a slot, from memory. All stores of a process share one; threads may call it."""

    @property
    def single(self) -> Address | None:
        """The address of all slots, or None while slots have several."""

    @property
    def servers(self) -> Sequence[Address]:
        """The addresses of all servers that are known to have slots."""

    def address(self, slot: int) -> Address:
        """Return the address of a slot."""

    def moved(self, slot: int, address: Address) -> None:
        """Note that a server answered with this address for the slot."""

    def doubt(self, address: Address) -> None:
        """Note that the server there cannot be reached or is a replica; the next answers may differ."""

    def late(self, address: Address) -> None:
        """Note that a reply of the server there takes long."""

    def prepare(self) -> None:
        """Learn what the first command needs. Blocks.

        Raises:
            ServerUnavailable: no server answers.
        """

    def watch(self, leaver: Leaver) -> None:
        """Call `leaver.leave` when a server is no longer the one to talk to, although no reply said so."""


class Leaver(Protocol):
    """Has connections that it closes when it is told to."""

    def leave(self, address: Address) -> None:
        """Close the connections to an address at once. Any thread may call it."""


class FixedLocator:
    """Answers one configured address, except for slots that a MOVED reply placed elsewhere.

    A name in the address is resolved by each new connection. A doubt about a learned address returns its slots to the
    configured one, whose server answers MOVED again if it must.
    """

    def __init__(self, address: Address) -> None:
        self._home, self._lock = address, threading.Lock()
        self._moved: dict[int, Address] = {}
        self.single: Address | None = address

    @property
    def servers(self) -> Sequence[Address]:
        """The configured address, and those that MOVED replies named."""
        return list(dict.fromkeys([self._home, *self._moved.values()]))

    def address(self, slot: int) -> Address:
        """Return the address of a slot."""
        return self._moved.get(slot, self._home)

    def moved(self, slot: int, address: Address) -> None:
        """Note that a server answered with this address for the slot."""
        with self._lock:
            if address == self._home:
                self._moved.pop(slot, None)
            else:
                self._moved[slot] = address
            self.single = None if self._moved else self._home

    def doubt(self, address: Address) -> None:
        """Forget what was learned about an address."""
        with self._lock:
            for slot in [slot for slot, known in self._moved.items() if known == address]:
                del self._moved[slot]
            self.single = None if self._moved else self._home

    def watch(self, leaver: Leaver) -> None:
        """Do nothing, because only replies change the answers."""

    def late(self, address: Address) -> None:
        """Wait for the reply."""

    def prepare(self) -> None:
        """Do nothing: the address is configured."""


def slot_of(key: str | bytes) -> int:
    """Return the hash slot of a key."""
    raw = key if isinstance(key, bytes) else key.encode()
    begin = raw.find(b"{")
    if begin >= 0:
        end = raw.find(b"}", begin + 1)
        if end > begin + 1:
            raw = raw[begin + 1 : end]
    return crc_hqx(raw, 0) % SLOTS


def runs_script(command: Sequence[Argument]) -> bool:
    """Return whether a command runs a script."""
    return command[0] in _SCRIPTS


def key_of(command: Sequence[Argument]) -> str | bytes | None:
    """Return the first key of a command, None if it has none."""
    name = command[0]
    if name in _SCRIPTS:
        index = 3 if int(command[2]) else 0
    elif name in {"XREAD", "XREADGROUP"}:
        index = command.index("STREAMS") + 1
    else:
        index = 0 if name in _KEYLESS else 2 if name in _SECOND else 1
    if not 0 < index < len(command):
        return None
    key = command[index]
    return str(key) if isinstance(key, int) else key
