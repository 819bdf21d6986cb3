"""One shared function ends a task, one queues it, one takes entries out of an inbox; nothing else does these things."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

LUA = Path(__file__).parents[2] / "lua"
OF_SCOPES = {LUA / "locks", LUA / "workspace"}
"""They know no tasks: what they touch lies in other slots."""
SOURCES = {
    path.relative_to(LUA).as_posix(): path.read_text(encoding="utf-8")
    for path in LUA.rglob("*.lua")
    if path.parent not in OF_SCOPES
}


@pytest.mark.parametrize(
    ("what", "pattern", "where"),
    [
        ("ends a task", r"'HSET', [^\n]*'ended'", {"includes/end_task.lua"}),
        ("puts a task into a queue", r"'ZADD', (queue_key|pool \.\. ':queue:)", {"includes/put_ready.lua"}),
        (
            "notes a non-empty queue",
            r"'SADD', (list_key|pool \.\. ':queues')",
            {"includes/put_ready.lua", "includes/recount.lua", "tasks/repair.lua"},
        ),
        ("takes an entry out", r"'(XACKDEL|XACK|XDEL)', inbox_key", {"includes/remove_entries.lua"}),
        ("gives the turn of a lane on", r"'ZREM', lane_key", {"includes/pass_lane.lua"}),
        ("raises a generation", r"tonumber\(generation\) \+ 1", {"includes/next_generation.lua"}),
        ("rings", r"'XADD', pool \.\. ':doorbell'", {"includes/notify_supervisor.lua"}),
        ("removes a consumer", r"'DELCONSUMER'", {"includes/forget_worker.lua", "tasks/recover.lua"}),
    ],
)
def test_one_place(what: str, pattern: str, where: set[str]) -> None:
    """Each of these steps stands in one file."""
    assert {name for name, text in SOURCES.items() if re.search(pattern, text)} == where, what
