"""Names of the raw loop's keys; one stream, one group, a key per result."""

from __future__ import annotations

STREAM = "raw:inbox"
GROUP = "workers"
FIELD = b"d"
BATCH = 100
RESULT_TTL_S = 3600


def result_key(task_id: bytes) -> bytes:
    """Where the result of a task is kept."""
    return b"raw:result:" + task_id


def reply_key(task_id: bytes) -> bytes:
    """The list on which the client waits for the result of a task."""
    return b"raw:reply:" + task_id
