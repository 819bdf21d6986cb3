"""The HTTP API does what its OpenAPI document says, for requests that the document allows, and for others."""

from __future__ import annotations

from functools import partial
from traceback import format_exception_only
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urljoin

import anyio
import anyio.to_thread
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi import checks

from orchestrator import Agent, TaskContext, TaskFailed
from tests.helpers.api_client import api_client, served
from tests.helpers.local_team import TIMEOUT_S
from tools.openapi import document

if TYPE_CHECKING:
    from tests.helpers.local_team import LocalTeam

CHECKS: Final = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.unsupported_method,
    checks.missing_required_header,
]
STOPPING: Final = ("drain", "stop", "pause", "hold", "renew-epoch", "delete", "purge")
"""Words of commands that keep the pool from work, or delete what is there; they are sent last."""


async def _fill(team: LocalTeam) -> dict[str, list[str]]:
    """Let the pool have some of everything; return names for the parts of paths."""
    agent = Agent("worker", rate="1000/s")

    @agent.skill
    async def talk(ctx: TaskContext, text: str) -> dict[str, str]:
        await ctx.emit({"said": text, "token": "hunter2"})
        await ctx.submit("leaf")
        return {"said": text}

    @agent.skill(max_attempts=1)
    async def fail() -> None:
        raise ValueError("no 17")

    @agent.skill
    async def ask(ctx: TaskContext) -> Any:
        return await ctx.ask("which?", options=["red", {"deep": [1]}])

    worker = await team.work(agent)
    talked = await team.orc.submit("talk", {"text": "<b>\u202e"}, session="s 1", tags=["a"], lane="l")
    await talked.result(timeout=TIMEOUT_S)
    failed = await team.orc.submit("fail")
    with pytest.raises(TaskFailed):
        await failed.result(timeout=TIMEOUT_S)
    asked = await team.orc.submit("ask", session="s 1")
    waits = await team.orc.submit("later", priority="low")
    await team.orc.admin.schedules.add("nightly", "talk", {"text": "x"}, every=86_400)
    async with team.orc.workspace("s 1").edit(agent="ada") as ws:
        await ws.patch({"plan": {"n": 1}})
        await ws.patch({"plan": {"n": 2}, "token": "hunter2"})
    await team.orc.admin.set_budget("team", usd=1, tokens="2M", per="day")
    sent = await team.orc.admin.pause_queue("skill:later", reason="tests")
    return {
        "id": [talked.id, failed.id, asked.id, waits.id],
        "command": [sent.id],
        "agent": ["worker"],
        "worker": [worker.id],
        "queue": ["skill:later", "agent:worker"],
        "skill": ["talk"],
        "schedule": ["nightly"],
        "budget": ["team"],
        "limit": ["@worker"],
    }


def _explore(url: str, headers: dict[str, str], names: dict[str, list[str]], *, examples: int) -> list[str]:
    """Send requests of each operation, with the names of what is there; return the failures."""
    schema = schemathesis.openapi.from_dict(document() | {"security": []})  # each request has the token
    operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
    operations.sort(key=lambda one: (one.method != "get", any(word in one.path for word in STOPPING)))
    explored = (_explore_one(one, url, headers, names, examples) for one in operations)
    return [failure for failures in explored for failure in failures]


def _explore_one(
    operation: Any, url: str, headers: dict[str, str], names: dict[str, list[str]], examples: int
) -> list[str]:
    statuses = list[int]()

    def send(case: schemathesis.Case[Any]) -> None:
        if case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE:
            for name in set(names) & set(case.path_parameters):
                known = names["command" if case.path.startswith("/control") else name]
                case.path_parameters[name] = known[len(statuses) % len(known)]
            if case.path.startswith("/sessions/"):
                case.query["id"] = "s 1"
            if case.path == "/sessions/replay":
                case.query |= {"at": "2", "from": "1"}
            if case.path == "/memory":
                case.query = {"agent": "worker"}
        statuses.append(case.call_and_validate(base_url=url, headers=headers, checks=CHECKS, timeout=20).status_code)

    failures = _send_all(operation, send, GenerationMode.POSITIVE, examples)
    if operation.method == "get" and not operation.path.endswith("/path") and 200 not in statuses:
        failures.append(f"{operation.label} was never answered: {statuses}")
    if operation.query or operation.body:
        failures += _send_all(operation, send, GenerationMode.NEGATIVE, examples)
    return failures


def _send_all(operation: Any, send: Any, mode: GenerationMode, examples: int) -> list[str]:
    made = given(case=operation.as_strategy(generation_mode=mode))(send)
    limited = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    try:
        limited(made)()
    except (Exception, BaseExceptionGroup) as failure:  # noqa: BLE001 - all failures are reported together
        return [f"{operation.label} {mode.value}:\n" + "".join(format_exception_only(failure))]
    return []


async def _check(team: LocalTeam, *, examples: int) -> None:
    api = await api_client(team.orc)
    api.web.dashboard.stopping.set()  # streams end after their first events
    names = await _fill(team)
    async with served(api.web) as port:
        address = f"http://127.0.0.1:{port}/api/v1/openapi.json"
        url = urljoin(address, (await api.read("/openapi.json"))["servers"][0]["url"])
        failures = await anyio.to_thread.run_sync(partial(_explore, url, api.headers, names, examples=examples))
    assert not failures, "\n\n".join(failures)


# The loop of the dashboard draws random numbers in another thread, which hypothesis takes for its strategies.
_OTHER_THREAD: Final = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")


@_OTHER_THREAD
@pytest.mark.timeout(120)
async def test_every_operation(team: LocalTeam) -> None:
    """A few requests of each operation get answers that the document describes, and none is a failure of the server."""
    await _check(team, examples=2)


@_OTHER_THREAD
@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_many_requests(team: LocalTeam) -> None:
    """Many requests of each operation do so too."""
    await _check(team, examples=20)
