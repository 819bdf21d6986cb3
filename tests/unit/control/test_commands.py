"""The registry of commands: each says what it changes, travels unchanged, and nothing else passes for one."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from orchestrator.control.commands import (
    KINDS,
    DesiredChange,
    TimedPause,
    commands_schema,
    decode_command,
    encode_command,
    make_command,
)
from orchestrator.core.errors import InvalidInput
from tests.helpers.cases import each_case

TASK: Final = "0190f6e5-4d2a-7c3b-9f10-2b6c8d4e1a55"

COMMANDS: Final[dict[str, tuple[dict[str, Any], tuple[DesiredChange, ...]]]] = {
    "stop": ({"agent": "ed", "now": True}, (DesiredChange("stop:agent:ed", "n"),)),
    "start": ({"session": "a b/ü"}, (DesiredChange("stop:session:a b/ü", ""),)),
    "pause-agent": ({"agent": "ed"}, (DesiredChange("pause:agent:ed", "-"),)),
    "hold-agent": ({"agent": "ed", "for_s": 2.5}, (DesiredChange("hold:agent:ed", "-"),)),
    "hold-limit": ({"limit": "@ed", "for_s": 60}, (DesiredChange("hold:limit:@ed", "-"),)),
    "resume-agent": ({"agent": "ed"}, (DesiredChange("pause:agent:ed", ""), DesiredChange("hold:agent:ed", ""))),
    "pause-queue": ({"queue": "skill:sum"}, (DesiredChange("pause:queue:skill:sum", "-"),)),
    "drain-queue": ({"queue": "agent:ed"}, (DesiredChange("drain:queue:agent:ed", "r"),)),
    "resume-queue": (
        {"queue": "skill:sum"},
        (DesiredChange("pause:queue:skill:sum", ""), DesiredChange("drain:queue:skill:sum", "")),
    ),
    "set-limit": ({"limit": "@ed", "rate": "10/min"}, (DesiredChange("limit:@ed", "-"),)),
    "clear-limit": ({"limit": "model:gpt"}, (DesiredChange("hold:limit:model:gpt", ""),)),
    "reset-limit": ({"limit": "model:gpt"}, (DesiredChange("limit:model:gpt", ""),)),
    "set-budget": ({"budget": "b", "usd": "2"}, (DesiredChange("budget:b", ""),)),
    "delete-budget": ({"budget": "b"}, (DesiredChange("budget:b", ""),)),
    "set-share": ({"key": "a b", "weight": 2.5}, (DesiredChange("share:a%20b", "-"),)),
    "delete-share": ({"key": "a b"}, (DesiredChange("share:a%20b", ""),)),
    "drain-worker": ({"worker": "h:1:a"}, (DesiredChange("drain:worker:h:1:a", "-"),)),
    "resume-worker": ({"worker": "h:1:a"}, (DesiredChange("drain:worker:h:1:a", ""),)),
    "stop-worker": ({"worker": "h:1:a"}, (DesiredChange("drain:worker:h:1:a", "s"),)),
    "set-log-level": ({"level": "debug"}, (DesiredChange("log:level", "-"),)),
    "reset-log-level": ({}, (DesiredChange("log:level", ""),)),
    "publish-config": ({"key": "a.b", "value": "[1.0]"}, (DesiredChange("config:a.b", "-"),)),
    "withdraw-config": ({"key": "a.b"}, (DesiredChange("config:a.b", ""),)),
    "renew-epoch": ({}, (DesiredChange("epoch", "+"),)),
    "cancel-tasks": ({"count": 3, "filter": "state dead"}, ()),
    "retry-tasks": ({"count": 3}, ()),
    "delete-tasks": ({"count": 0}, ()),
    "purge-queue": ({"count": 1, "queue": "skill:sum"}, ()),
    "tasks": ({"action": "retry", "tasks": (TASK,)}, ()),
    "answer": ({"task": TASK, "question": 1}, ()),
    "schedule": ({"action": "pause", "schedule": "nightly"}, ()),
    "release-lock": ({"lock": "l"}, ()),
    "session": ({"action": "delete", "session": "a b/ü", "detail": "2 tasks"}, ()),
    "finish-upgrade": ({"floor": 3}, ()),
    "change": ({"action": "change-chat", "scopes": ("session:s",)}, ()),
    "erase": ({"stage": "begun", "person": "0" * 32, "asked_by": "ticket 7"}, ()),
}

JOBS: Final = {"cancel-tasks", "retry-tasks", "delete-tasks", "purge-queue"}


def test_every_kind_is_tried() -> None:
    """Whoever adds a command adds it to the table above."""
    assert set(COMMANDS) == set(KINDS)


@each_case("kind", COMMANDS)
def test_round_trip(kind: str) -> None:
    """It says what it changes, and comes back as it went."""
    values, changes = COMMANDS[kind]
    command = make_command(kind, values)
    assert command.kind == kind
    assert command.changes == changes
    assert command.job is (kind in JOBS)
    assert decode_command(encode_command(command)) == command
    assert command.words.startswith(kind)
    assert "\n" not in command.words


@each_case("kind", COMMANDS)
def test_a_field_too_many(kind: str) -> None:
    """A field that the kind does not have is refused: it would be obeyed without what it asks for."""
    values, _ = COMMANDS[kind]
    with pytest.raises(InvalidInput, match="nonsense"):
        make_command(kind, {**values, "nonsense": 1})
    said = {"kind": kind, **json.loads(encode_command(make_command(kind, values))), "nonsense": 1}
    with pytest.raises(InvalidInput, match="nonsense"):
        decode_command(json.dumps(said).encode())


@each_case(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"stop",
        b'"stop"',
        b'{"kind": "explode"}',
        b'{"kind": "stop", "kind": 7}',
        b'{"kind": "stop", "agent": "a b"}',
        b'{"kind": "stop", "agent": "ed", "skill": "sum"}',
        b'{"kind": "stop", "now": "perhaps"}',
        b'{"kind": "set-limit", "limit": "l", "rate": "fast"}',
        b'{"kind": "pause-queue", "queue": "sum"}',
        b'{"kind": "cancel-tasks"}',
        b'{"kind": "cancel-tasks", "count": -1}',
        b'{"kind": "set-log-level", "level": "loud"}',
        b'{"kind": "publish-config", "key": "k", "value": "{"}',
        b'{"kind": "publish-config", "key": "a b", "value": "1"}',
        b'{"kind": "stop", "session": "' + b"x" * 300 + b'"}',
        b"[" * 100_000,
        b'{"kind": "stop"}' + b"\xff",
    ],
)
def test_no_command(data: bytes) -> None:
    """Whatever is no command of this version is refused in one line."""
    with pytest.raises(InvalidInput) as refused:
        decode_command(data)
    assert str(refused.value).startswith("not a command: ")
    assert "\n" not in str(refused.value)


def test_messages_say_which_field() -> None:
    """A person who typed something wrong is told what and why, without the machinery."""
    with pytest.raises(InvalidInput) as refused:
        make_command("pause-queue", {"queue": "sum"})
    assert str(refused.value) == "queue: must be skill:NAME or agent:NAME, as `orc queues list` shows it"


def test_schema() -> None:
    """The schema has each kind with its fields, closed against others, and told apart by `kind`."""
    schema = commands_schema()
    assert schema["discriminator"]["propertyName"] == "kind"
    assert set(schema["discriminator"]["mapping"]) == set(KINDS)
    for kind, place in schema["discriminator"]["mapping"].items():
        part = schema["$defs"][place.rpartition("/")[2]]
        assert part["additionalProperties"] is False
        assert part["properties"]["kind"]["const"] == kind
        assert set(part["properties"]) == {"kind", *KINDS[kind].model_fields}
        assert part["description"]


def test_start_ends_pauses_with_an_end() -> None:
    """That of its agent beside the stop, or that of a limit alone."""
    stop, pause = make_command("start", {"agent": "ed"}).changes
    assert (stop, pause) == (DesiredChange("stop:agent:ed", ""), DesiredChange("hold:agent:ed", ""))
    assert make_command("start", {"limit": "model"}).changes == (DesiredChange("hold:limit:model", ""),)
    with pytest.raises(InvalidInput, match="limit"):
        make_command("start", {"limit": "model", "skill": "sum"})


def test_pauses_end_at_a_full_second() -> None:
    """Callers within one second give the same end; nobody types it, and the words leave it out."""
    command = make_command("hold-limit", {"limit": "model", "for_s": 1.5})
    assert isinstance(command, TimedPause)
    assert [command.ending(now_ms).until_ms for now_ms in (10_001, 10_500, 10_501)] == [12_000, 12_000, 13_000]
    assert command.ending(10_001).words == "hold-limit for_s=1.5 limit=model"
    with pytest.raises(InvalidInput, match="for_s"):
        make_command("hold-limit", {"limit": "model", "for_s": 0})
