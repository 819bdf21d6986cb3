"""One shared function ends a task, one queues it, one takes entries out of an inbox; nothing else does these things."""

from __future__ import annotations

import re
from pathlib import Path

from tests.helpers.cases import each_case

LUA = Path(__file__).parents[2] / "lua"
OF_SCOPES = {LUA / "locks", LUA / "workspace"}
"""They know no tasks: what they touch lies in other slots."""
SOURCES = {
    path.relative_to(LUA).as_posix(): path.read_text(encoding="utf-8")
    for path in LUA.rglob("*.lua")
    if path.parent not in OF_SCOPES | {LUA / "includes"}
}
SOURCES |= {
    f"{path.stem}.{name}": body
    for path in (LUA / "includes").glob("*.lua")
    for name, body in re.findall(r"^local function (\w+)\((.*?)^end$", path.read_text(), re.MULTILINE | re.DOTALL)
}
"""Scripts by file, and functions of modules by `<module>.<function>`."""


@each_case(
    ("what", "pattern", "where"),
    [
        ("reads a task's record", r"'HMGET', (task_key|pool \.\. ':task:')", {"record.read_task", "record.read_alike"}),
        ("ends a task", r"'HSET', [^\n]*'ended'", {"ending.end_task"}),
        ("puts a task into a queue", r"('ZADD', |add_scored\()(queue_key|pool \.\. ':queue:)", {"queue.add_to_queue"}),
        (
            "notes a non-empty queue",
            r"'SADD', (list_key|pool \.\. ':queues')",
            {"queue.add_to_queue", "tasks/repair.lua"},
        ),
        ("takes an entry out", r"'(XACKDEL|XACK|XDEL)', inbox_key", {"inbox.take_out_entries"}),
        ("gives the turn of a lane on", r"'ZREM', lane_key", {"lane.pass_lane"}),
        ("raises a generation", r"tonumber\(generation\) \+ 1", {"record.next_generation"}),
        ("rings", r"pool \.\. ':doorbell', 1000", {"notify.notify_supervisor"}),
        ("removes a consumer", r"'DELCONSUMER'", {"registry.forget_worker", "tasks/recover.lua"}),
    ],
)
def test_one_place(what: str, pattern: str, where: set[str]) -> None:
    """Each of these steps is in one function, or in the files that are named."""
    assert {name for name, text in SOURCES.items() if re.search(pattern, text)} == where, what
