"""Declares the format of this program, and the features that need every program of a pool to have a newer one.

A program with a higher format may store what older programs would misread. During an upgrade both share a pool, so the
pool stores the lowest format that it admits, its floor, and `orc upgrade finish` raises it (protocol rule 30).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from orchestrator.core.errors import FormatMismatch, UpgradeUnfinished

FORMAT: Final = 4
"""Format of this program. Raise it for a feature that older programs would misread, and add the feature below."""

OLDEST_FORMAT: Final = 2
"""Oldest format that this program shares a pool with."""


RESTORING: Final = "restoring"
"""How the stored floor begins while a backup is restored into a pool: no version reads a format, so none starts."""

_FLOOR_DIGITS: Final = 15
_LABEL: Final = re.compile(r"([^@:]+)@(.+)/(\d+)/([^:/]+)")


class Feature(Enum):
    """A feature that a pool refuses while it admits programs older than `floor`.

    Attributes:
        label: the feature in messages.
        floor: the lowest format that understands it.
    """

    LARGE_COSTS = ("a limit by name above 100,000 or a cost above 500", 3)
    LEAN_SUCCESSES = ("a succeeded task without its arguments", 3)
    STORED_PAYLOADS = ("a value in the payload store", 3)
    VALUES_APART = ("a large value in a field of its own", 3)
    TAG_INDEX = ("an index of the tasks with a tag", 3)
    TIMED_PAUSES = ("a pause with an end", 3)
    FAMILY_STOPS = ("a stop of a family", 3)
    FAIR_SHARES = ("a task that counts for the share of a key, or a share", 3)
    SEVERAL_AGENTS = ("a notification about the room of several agents", 3)
    BYTES_CAPPED = ("a cap of the bytes of tasks that wait", 3)
    EFFECTS = ("an effect of a task", 3)
    JOINS = ("a join of tasks", 4)
    FLOWS = ("a flow of tasks", 4)
    PROVIDER_LIMITS = ("a call of a provider", 4)
    SIGNED_REGISTRATIONS = ("refusing workers whose registration is not signed", 3)
    BUDGETS = ("a budget, or a task or an agent that has one", 4)

    def __init__(self, label: str, floor: int) -> None:
        self.label, self.floor = label, floor


@dataclass(slots=True)
class Floor:
    """The lowest format that a pool admits, as this process last read it.

    Attributes:
        pool: name of the pool.
        root: root of its keys.
        value: the format.
    """

    pool: str
    root: str
    value: int = OLDEST_FORMAT

    def note(self, value: int | None) -> None:
        """Record the floor that Redis answered; None or a lower one if Redis has lost it, because it never falls."""
        if value is not None and value > self.value:
            self.value = value

    def admits(self, feature: Feature) -> bool:
        """Return whether every program of the pool understands a feature."""
        return self.value >= feature.floor

    def check(self, feature: Feature) -> None:
        """Refuse a feature that some programs of the pool may not understand.

        Raises:
            UpgradeUnfinished: the floor is below the one that the feature needs.
        """
        if not self.admits(feature):
            raise UpgradeUnfinished(feature.label, self.pool, needed=feature.floor, floor=self.value)

    @property
    def shuts_out(self) -> bool:
        """True when this program is older than the pool admits."""
        return self.value > FORMAT

    def refusal(self) -> FormatMismatch:
        """Return the error that ends this program."""
        return FormatMismatch("; ".join(outdated(self.pool, self.value)), shut_out_of=self.root)


def read_floor(stored: bytes | None) -> int | None:
    """Decode the floor of a pool; None if Redis has lost it or it is unreadable."""
    return int(stored) if stored is not None and stored.isdigit() and len(stored) <= _FLOOR_DIGITS else None


class ConnectionLabel(NamedTuple):
    """The name of a program's first connection, as CLIENT LIST shows it.

    Attributes:
        name: `client`, `supervisor`, `worker`, ...
        root: root of the keys of its pool.
        format: format of the program.
        version: version of the program.
    """

    name: str
    root: str
    format: int
    version: str

    def __str__(self) -> str:
        return f"{self.name}@{self.root}/{self.format}/{self.version}"


def label_connection(name: str, root: str) -> str:
    """Return the label of a connection of this program."""
    return str(ConnectionLabel(name, root, FORMAT, program_version()))


def read_label(text: str) -> ConnectionLabel | None:
    """Return the label in the name of a connection; None if it has none, as in older programs."""
    found = _LABEL.fullmatch(text)
    return None if found is None else ConnectionLabel(found[1], found[2], int(found[3]), found[4])


def program_version() -> str:
    """Return the version of this installation."""
    from importlib.metadata import version  # long to import

    return version("redis-orchestrator")


def unfinished_restore(pool: str) -> tuple[str, str]:
    """Return why no program may use a pool into which a backup is restored, and what to do."""
    return (
        f"a restore into pool {pool!r} has not finished",
        "wait for it, or repeat `orc restore` with the same file to go on",
    )


def outdated(pool: str, floor: int) -> tuple[str, str]:
    """Return why a pool shuts this program out, and what to do."""
    found = (
        f"pool {pool!r} admits only programs of format {floor} or newer, and this one "
        f"(version {program_version()}) has format {FORMAT}"
    )
    return found, "install the newer version with `pip install -U redis-orchestrator`, then start it again"
