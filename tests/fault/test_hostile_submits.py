"""Tasks that a user who may only submit stores with calls of his own: no process ends, and the tasks of others end."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest

from orchestrator import Agent
from orchestrator.core.errors import StoreError
from orchestrator.core.ids import new_task_id
from orchestrator.store.calls import opaque
from orchestrator.tasks import scripts
from tests.helpers.local_team import local_settings, run_local_team

if TYPE_CHECKING:
    from tests.faultkit.servers import RedisServer
    from tests.helpers.local_team import LocalTeam

pytestmark = pytest.mark.every_server(alone=True)

WITHIN_S: Final = 10.0
_pack = msgspec.msgpack.Encoder().encode
_LONG: Final = b"\xdb" + (100_000).to_bytes(4, "big") + b"a" * 100_000
_DEEP: Final = b"\x91" * 5000 + b"\xc0"


def _envelope(*options: object, skill: object = "echo") -> bytes:
    return _pack((skill, b'{"n": 1}', *options))


ENVELOPES: Final = {
    "empty": b"",
    "no array": b"\xc0",
    "cut off": _envelope()[:4],
    "skill that is not UTF-8": b"\x92\xa2\xff\xfe\xc4\x02{}",
    "skill with a line": _envelope(skill="a\nb c"),
    "long skill": b"\x92" + _LONG + b"\xc4\x02{}",
    "number as skill": _envelope(skill=7),
    "deep skill": b"\x92" + _DEEP + b"\xc4\x02{}",
    "deep priority": b"\x93\xa4echo\xc4\x02{}" + _DEEP,
    "deep option behind the last": b"\x9d\xa4echo\xc4\x02{}\x02\xc0\x90\xc0\xc0\xc0\xc0\x00\xa0\xc0" + _DEEP,
    "priority 1000": _envelope(1000),
    "session that is not UTF-8": b"\x94\xa4echo\xc4\x02{}\x02\xa2\xff\xfe",
    "timeout NaN": _envelope(2, None, (), math.nan),
    "timeout infinite": _envelope(2, None, (), math.inf),
    "timeout 1e300": _envelope(2, None, (), 1e300),
    "timeout below 0": _envelope(2, None, (), -1.0),
    "timeout 0": _envelope(2, None, (), 0.0),
    "attempts below 0": _envelope(2, None, (), None, -5),
    "many attempts": _envelope(2, None, (), None, 1 << 62),
    "long trace": _envelope(2, None, (), None, None, None, None, 0, "x" * 100_000),
    "deep arguments": _pack(("echo", b"[" * 100_000)),
    "arguments that are no JSON": _pack(("echo", b"\xff\xfe")),
}
COLUMNS: Final[dict[str, Any]] = {
    "NaN": math.nan,
    "infinite": math.inf,
    "below 0": -1e300,
    "large": 1e300,
    "text": "\x00 \n\x1b]0;x\x07",
    "long": "a" * 100_000,
    "not UTF-8": msgspec.Raw(b"\xa2\xff\xfe"),
    "deep": msgspec.Raw(_DEEP[-16:]),
    "list": [1, [2, [3]]],
    "true": True,
}
NAMES: Final = (
    *("rank", "ttl_s", "queue", "skill", "delay_ms", "at_ms", "start_by_ms", "idem", "digest", "parent"),
    *("parent_generation", "lane", "on_busy", "fire", "session", "apart", "tags", "fair"),
)


async def _submit(team: LocalTeam, *columns: object) -> None:
    """Call the script with any columns; a refusal is as good as a task that comes to nothing."""
    row: Any = list(columns)
    with suppress(StoreError):
        await team.services.store.call(scripts.submit(team.services.keys, rows=[row], max_tasks=1000, max_wait_s=60))


async def _is_sound(team: LocalTeam) -> None:
    """A worker that takes part in everything still serves, and so does the supervisor."""
    assert await (await team.orc.submit("echo", {"n": 5})).result(timeout=WITHIN_S) == 5


def _agent() -> Agent:
    agent = Agent("ada", concurrency=4)

    @agent.skill
    async def echo(n: int) -> int:
        return n

    return agent


async def test_envelopes(redis_server: RedisServer, prefix: str) -> None:
    """Each envelope that no client packs, in the queue of a skill and in that of an agent."""
    async with run_local_team(local_settings(redis_server.url, prefix)) as team:
        await team.work(_agent())
        for packed in ENVELOPES.values():
            await _submit(team, new_task_id(), opaque(packed))
            await _submit(team, new_task_id(), opaque(packed), None, None, "agent:ada", "echo")
        await _is_sound(team)


async def test_columns(redis_server: RedisServer, prefix: str) -> None:
    """Each column of a row with each value that no client sends."""
    async with run_local_team(local_settings(redis_server.url, prefix)) as team:
        await team.work(_agent())
        for number in range(len(NAMES)):
            for value in COLUMNS.values():
                columns: list[object] = [None] * len(NAMES)
                columns[number] = value
                await _submit(team, new_task_id(), opaque(_envelope()), *columns)
        for value in COLUMNS.values():
            await _submit(team, value, opaque(_envelope()))
            await _submit(team, new_task_id(), value)
        await _is_sound(team)
