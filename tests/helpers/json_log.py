"""Keeps the log of this process as JSON lines."""

from __future__ import annotations

import inspect
import io
import json
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import structlog

from orchestrator.core.log import configure_logging

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.core.log import Level


class Log:
    """The lines of this process."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    def all(self) -> list[dict[str, Any]]:
        """Return all lines."""
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    def lines(self, *events: str) -> list[dict[str, Any]]:
        """Return the lines with these events."""
        return [line for line in self.all() if line["event"] in events]


@contextmanager
def json_log(level: Level = "info") -> Iterator[Log]:
    """Keep the lines of this level and above that are written meanwhile."""
    kept, root = Log(), logging.getLogger()
    before, level_before = root.handlers[:], root.level
    configure_logging(level, "json", kept.stream)
    try:
        yield kept
    finally:
        root.handlers[:] = before
        root.setLevel(level_before)
        structlog.reset_defaults()


def line_of(function: Any, text: str) -> int:
    """Return the number of the first line of a function that contains a text."""
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)
