"""What a redacted skill gets and returns stays out of errors, reasons, logs and views."""

from __future__ import annotations

import io
import json
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from orchestrator.core.errors import TaskFailed
from orchestrator.core.log import configure_logging
from orchestrator.core.redaction import hidden_json, traceback_without_texts
from orchestrator.views.redaction import is_redacted, redacted_skills
from orchestrator.views.tasks import export_dead_letter, read_dead_letter, read_task, read_task_status
from tests.helpers.cases import each_case
from tests.helpers.guards import keys_of
from tests.helpers.redacted_agents import HOWS, PLAIN_HOWS, make_agent
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from orchestrator.client.handle import TaskHandle
    from tests.helpers.local_team import LocalTeam

CANARY = "canary-7f3e-91ab"
ENDED = {"succeeded", "dead"}


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """The log of this process."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    stream = io.StringIO()
    configure_logging("debug", "json", stream)
    yield stream
    root.setLevel(level)
    for added in [added for added in root.handlers if added not in handlers]:
        added.close()
    root.handlers[:] = handlers
    structlog.reset_defaults()


async def _run_all(team: LocalTeam, *, redact: bool) -> dict[str, TaskHandle[Any]]:
    """Run every kind of handler with every kind of leak; return the tasks when all have ended or sleep."""
    await team.work(make_agent(redact=redact))
    calls = [("pay", how) for how in HOWS]
    calls += [(skill, how) for skill in ("pay_in_thread", "pay_in_process") for how in PLAIN_HOWS]
    tasks = {f"{skill} {how}": await team.orc.submit(skill, {"secret": CANARY, "how": how}) for skill, how in calls}
    wrong = {"secret": CANARY, "how": [CANARY]}
    for skill in ("pay", "pay_in_process"):
        tasks[f"{skill} misfit"] = await team.orc.submit(skill, wrong)
    account = {"number": f"{CANARY}!"}
    tasks["pay account"] = await team.orc.submit("pay", {"secret": "s", "how": "return", "account": account})

    async def ended(name: str) -> bool:
        state = (await tasks[name].status()).state.value
        return state in ENDED or (name == "pay snooze" and state == "scheduled")

    for name in tasks:
        await wait_for(partial(ended, name), f"{name} ends", timeout_s=60)
    return tasks


def _leaks(client: redis.Redis, prefix: str) -> set[str]:
    """Return where the canary is in Redis: the field of a record, or the key."""
    found = set()
    for key in keys_of(client, prefix):
        name = key.rpartition("}:")[2].partition(":")[0]
        kind: Any = client.type(key)
        if kind == b"hash":
            values: Any = client.hgetall(key)
            found |= {f"{name} {field.decode()}" for field, value in values.items() if CANARY.encode() in value}
        elif kind in {b"stream", b"string"}:
            held: Any = client.xrange(key) if kind == b"stream" else client.get(key)
            found |= {name} if CANARY in str(held) else set()
    return found


async def test_only_the_data_itself_is_stored(
    team: LocalTeam, redis_client: redis.Redis, prefix: str, log: io.StringIO
) -> None:
    """Reasons, tracebacks, histories and logs have types and lines of code; the handler and the caller get the data."""
    tasks = await _run_all(team, redact=True)
    assert _leaks(redis_client, prefix) <= {"task env", "task result", "out", "replies"}
    text = log.getvalue()
    assert CANARY not in text
    for event in ("attempt_failed", "task_failed", "pay_failed", "paying failed"):
        assert event in text
    assert await tasks["pay return"].result(1) == {"paid": CANARY}
    assert [chunk.data async for chunk in tasks["pay emit"].output()] == [{"paid": CANARY}]
    with pytest.raises(TaskFailed) as failed:
        await tasks["pay chained"].result(1)
    assert failed.value.reason == "RuntimeError: (redacted)"
    assert 'raise RuntimeError(f"payment of {secret} failed") from first' in failed.value.errors[-1]
    assert CANARY not in str(failed.value) + repr(failed.value) + "".join(failed.value.errors)
    for name, reason in {
        "pay_in_process raise": "ValueError: (redacted)",
        "pay reject": "(redacted)",
        "pay misfit": "arguments do not fit 'pay': how: string_type",
        "pay_in_process misfit": "arguments do not fit 'pay_in_process': how: string_type",
        "pay account": "arguments do not fit 'pay': account: value_error",
        "pay huge": "result of 'pay' is too large or no JSON: (redacted)",
    }.items():
        assert (await tasks[name].info()).reason == reason, name
    await _check_views(team, tasks)


async def _check_views(team: LocalTeam, tasks: dict[str, TaskHandle[Any]]) -> None:
    """Check that operators see the sizes of the arguments and the result; `reveal` shows the data."""
    assert await redacted_skills(team.services) == {"pay", "pay_in_thread", "pay_in_process"}
    paid, dead = tasks["pay return"].id, tasks["pay raise"].id
    shown, full = await read_task(team.services, paid), await read_task(team.services, paid, reveal=True)
    assert shown.args == hidden_json(full.args)
    assert shown.args == f'"(redacted, {len(full.args)} bytes)"'.encode()
    assert (shown.result, full.result) == (b'"(redacted, 27 bytes)"', f'{{"paid":"{CANARY}"}}'.encode())
    assert CANARY not in str(await read_dead_letter(team.services, dead))
    exported = await export_dead_letter(team.services, dead)
    assert exported is not None
    assert CANARY not in repr({**exported, "args": bytes(exported["args"])})
    revealed = await export_dead_letter(team.services, dead, reveal=True)
    assert revealed is not None
    assert CANARY.encode() in bytes(revealed["args"])
    for task in tasks.values():
        assert CANARY not in str(await read_task_status(team.services, task.id))


async def test_without_redaction_it_leaks(
    team: LocalTeam, redis_client: redis.Redis, prefix: str, log: io.StringIO
) -> None:
    """The twin: the same tasks of the same skills leak into every place that is searched above."""
    tasks = await _run_all(team, redact=False)
    leaks = _leaks(redis_client, prefix)
    assert {"task env", "task reason", "task error:1", "task ran:1"} <= leaks
    for event in ("attempt_failed", "task_failed", "pay_failed", "paying failed"):
        lines = [line for line in log.getvalue().splitlines() if event in line and CANARY in line]
        assert lines, event
    assert not await is_redacted(team.services, "pay")
    assert CANARY in str(json.loads((await read_task(team.services, tasks["pay return"].id)).args))
    for name, task in tasks.items():
        if not name.endswith(("log", "emit", "return", "type", "huge", "key", "misfit", "snooze")):
            assert CANARY in (await task.info()).reason, name


@each_case("depth", [1, 3, 50])
def test_a_traceback_without_texts(depth: int) -> None:
    """Chains and groups of any depth lose their texts and keep their types."""

    def fail(left: int) -> None:
        try:
            if left:
                fail(left - 1)
            raise ValueError(CANARY)
        except Exception as before:
            raise ExceptionGroup(CANARY, [KeyError(CANARY), OSError(2, CANARY, CANARY), before]) from before

    with pytest.raises(ExceptionGroup) as raised:
        fail(depth)
    text = traceback_without_texts(raised.value)
    assert CANARY not in text
    assert "KeyError: (redacted)" in text
    assert text.count("Traceback") >= min(depth, 7)
