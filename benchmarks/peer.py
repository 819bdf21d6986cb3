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
class Package:
    """A package that is measured in an environment of its own.

    Attributes:
        name: also names its requirements file.
        pythons: interpreters that it supports, the preferred one first; default: ours.
    """

    name: str
    pythons: Sequence[str] = ()

    @property
    def requirements(self) -> Path:
        """Pinned requirements of its environment."""
        return _REQUIREMENTS / f"{self.name}.txt"

    @property
    def version(self) -> str:
        """Pinned version of the package."""
        pinned = re.search(
            rf"^{re.escape(self.name)}==(\S+)", self.requirements.read_text(encoding="utf-8"), re.MULTILINE
        )
        assert pinned is not None
        return pinned[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer(Package):
    """A task queue.

    Attributes:
        worker: module and arguments of one worker process.
        app: module of its application and client.
        remaining: counts the unfinished tasks in one cheap command.
        result_ttl_s: how long it keeps a result by default.
        has_bulk: one call submits many tasks.
        drain_share: share of our drain, so that a pass takes two or three seconds.
        submit_share: share of our submits.
        trip_share: share of our single tasks.
        runs_every_round: takes part in every round; others run one round of a group of short passes.
    """

    worker: Sequence[str]
    app: str
    remaining: Callable[[Redis], int]
    result_ttl_s: int
    has_bulk: bool = False
    drain_share: float = 0.08
    submit_share: float = 0.3
    trip_share: float = 0.5
    runs_every_round: bool = False


@dataclass(frozen=True, slots=True)
class InstalledPeer:
    """A peer and the interpreter of its environment."""

    peer: Peer
    python: Path


@dataclass(frozen=True, slots=True)
class InstalledHistory:
    """A library that keeps histories of chats, and the interpreter of its environment."""

    package: Package
    python: Path


@dataclass(frozen=True, slots=True)
class MissingPeer:
    """A peer that cannot be measured on this machine."""

    name: str
    reason: str
