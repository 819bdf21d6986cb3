"""What is known of a peer: how it is installed and started, what it leaves on the server, how much it is asked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis import Redis

_REQUIREMENTS = Path(__file__).parent / "peers" / "requirements"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One peer.

    Attributes:
        name: what it is called, and its requirements file.
        worker: module and arguments of one worker process.
        app: its application and client, a module.
        remaining: counts the tasks that are not finished, in one cheap command.
        has_bulk: whether one of its calls submits many tasks.
        pythons: names of interpreters it can run on, the wanted one first; ours, unless said otherwise.
        drain_share: how much of our drain it is given, so that a pass takes two or three seconds.
        submit_share: the same for submits.
        trip_share: the same for single tasks.
    """

    name: str
    worker: Sequence[str]
    app: str
    remaining: Callable[[Redis], int]
    has_bulk: bool = False
    pythons: Sequence[str] = ()
    drain_share: float = 0.08
    submit_share: float = 0.3
    trip_share: float = 0.5

    @property
    def requirements(self) -> Path:
        """What its environment holds, every version pinned."""
        return _REQUIREMENTS / f"{self.name}.txt"

    @property
    def version(self) -> str:
        """The version of the peer that its environment holds."""
        pinned = re.search(
            rf"^{re.escape(self.name)}==(\S+)", self.requirements.read_text(encoding="utf-8"), re.MULTILINE
        )
        assert pinned is not None
        return pinned[1]


@dataclass(frozen=True, slots=True)
class InstalledPeer:
    """A peer and the interpreter of its environment."""

    peer: Peer
    python: Path


@dataclass(frozen=True, slots=True)
class MissingPeer:
    """A peer that cannot be measured here."""

    name: str
    reason: str
