"""Levels of durability of a submit, and the report of what was reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

Level: TypeAlias = Literal["default", "fsync", "replicated"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
DEFAULT: Final[Level] = "default"


@dataclass(frozen=True, slots=True)
class Durability:
    """Report of what the server confirmed of a submit.

    Attributes:
        asked: the level that the submit asked for.
        reached: that level, or `default` if it was not reached in time.
        fsyncs: 1 if the server has the task on its disk; 0 if it does not, or was not asked.
        replicas: replicas that have the task; 0 if none has, or the server was not asked.
        missed: why the level was not reached; empty if it was.
    """

    asked: Level
    reached: Level
    fsyncs: int = 0
    replicas: int = 0
    missed: str = ""
