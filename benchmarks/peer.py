"""Describes a peer: installation, start, its keys on the server, and its share of the work."""

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
        name: also names its requirements file.
        worker: module and arguments of one worker process.
        app: module of its application and client.
        remaining: counts the unfinished tasks in one cheap command.
        has_bulk: one call submits many tasks.
        pythons: interpreters that it supports, the preferred one first; default: ours.
        drain_share: share of our drain, so that a pass takes two or three seconds.
        submit_share: share of our submits.
        trip_share: share of our single tasks.
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
        """Pinned requirements of its environment."""
        return _REQUIREMENTS / f"{self.name}.txt"

    @property
    def version(self) -> str:
        """Pinned version of the peer."""
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
    """A peer that cannot be measured on this machine."""

    name: str
    reason: str
