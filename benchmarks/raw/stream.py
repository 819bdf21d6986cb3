"""Names of the raw loop's keys: one stream, one group, one key per result."""

from __future__ import annotations

STREAM = "raw:inbox"
GROUP = "workers"
FIELD = b"d"
BATCH = 100
RESULT_TTL_S = 3600
INLINE_BYTES = 1000
"""A larger result is stored once: its reply is empty, and the client reads the result's key."""


def result_key(task_id: bytes) -> bytes:
    """Return the key of a task's result."""
    return b"raw:result:" + task_id


def reply_key(task_id: bytes) -> bytes:
    """Return the list on which the client waits for a task's result."""
    return b"raw:reply:" + task_id
