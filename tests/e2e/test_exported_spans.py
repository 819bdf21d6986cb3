"""`orc worker run` and `orc supervisor run` export spans as the variables of OpenTelemetry say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from orchestrator import Orchestrator
from orchestrator.testing.temporary_pool import temporary_settings
from tests.faultkit.processes import ActorProcess
from tests.helpers.subprocesses import environment
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from tests.faultkit.servers import RedisServer

# Only the end of a process exports within the time of a test.
TO_CONSOLE = {"OTEL_TRACES_EXPORTER": "console", "OTEL_BSP_SCHEDULE_DELAY": "600000", "OTEL_SDK_DISABLED": "false"}
AGENT = "tests.helpers.process_handlers:tracer"


def exported(output: str) -> list[dict[str, Any]]:
    """The spans among the lines of a process."""
    found, at, decoder = [], 0, json.JSONDecoder()
    while (at := output.find('{\n    "name"', at)) >= 0:
        span, length = decoder.raw_decode(output[at:])
        found.append(span)
        at += length
    return found


async def end(actor: ActorProcess) -> None:
    """Stop a program, and wait for its orderly end."""
    actor.terminate()
    await wait_for(lambda: actor.returncode is not None, lambda: actor.describe("an orderly end"), 20)
    assert actor.returncode == 0, actor.describe("an orderly end")


async def test_programs_export_by_the_environment(redis_server: RedisServer, prefix: str) -> None:
    """The spans of supervisor, worker and handler process are one picture; the last ones come when a process ends."""
    settings = temporary_settings(redis_server.url, prefix)
    variables = {**environment(settings), **TO_CONSOLE}
    supervisor = ActorProcess.python("-P", "-m", "orchestrator", "supervisor", "run", name="supervisor", env=variables)
    worker = ActorProcess.python("-P", "-m", "orchestrator.workers", AGENT, name="worker", env=variables)
    async with Orchestrator(settings=settings) as orc:
        with supervisor, worker:
            await orc.admin.schedules.add("often", "current_span", every=3600)
            await wait_for(lambda: "worker_started" in worker.output, lambda: worker.describe("a worker"), 20)
            handle = await orc.submit("current_span")
            trace_id, span_id = await handle.result(20)
            assert trace_id
            for actor in (worker, supervisor):
                await end(actor)
            assert supervisor.output.count("tracing_started") == 1
            spans = {span["name"]: span for span in exported(worker.output)}
    run, inner = spans["run current_span"], spans["in the process"]
    assert run["context"]["trace_id"] == f"0x{trace_id:032x}"
    assert run["resource"]["attributes"]["service.name"] == "orc-worker"
    assert inner["parent_id"] == run["context"]["span_id"] == f"0x{span_id:016x}"
    assert (
        inner["resource"]["attributes"]["service.instance.id"] != run["resource"]["attributes"]["service.instance.id"]
    )


async def test_a_worker_without_an_exporter_says_so_and_works(redis_server: RedisServer, prefix: str) -> None:
    """One line with the command that installs what is missing."""
    settings = temporary_settings(redis_server.url, prefix)
    variables = {
        **environment(settings),
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        "OTEL_TRACES_EXPORTER": "",
    }
    with ActorProcess.python("-P", "-m", "orchestrator.workers", AGENT, name="worker", env=variables) as worker:
        await wait_for(lambda: "worker_started" in worker.output, lambda: worker.describe("a worker"), 20)
        await end(worker)
        lines = [line for line in worker.output.splitlines() if "tracing_unavailable" in line]
    assert len(lines) == 1
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in lines[0]
    assert "pip install opentelemetry-exporter-otlp" in lines[0]
    assert "Traceback" not in "".join(lines)
