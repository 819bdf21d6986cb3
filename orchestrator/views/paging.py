"""Limits the length of lists."""

from __future__ import annotations

from typing import Final

LIMIT: Final = 1000
"""Agents, workers, queues, tasks or sessions that a view returns unless the caller asks for more."""
