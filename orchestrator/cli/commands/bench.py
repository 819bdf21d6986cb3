"""`orc bench`: measures this machine and a server with tasks that do nothing."""

from __future__ import annotations

import os
import platform
import re
import secrets
import signal
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from orchestrator.cli.commands.up import supervisor_command
from orchestrator.cli.commands.worker import check_processes, worker_command
from orchestrator.cli.processes import Child, ChildProcessFailed, Part, blocked_signals, end_in_order, work_beside
from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import Commands, option
from orchestrator.core.errors import InvalidInput, OrchestratorError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import IO

    from orchestrator.core.settings import Settings

APP: Final = "orchestrator.workers.bench:agent"
WAITING_APP: Final = "orchestrator.workers.bench:waiting"
TASKS: Final = 5000
LATENCY_S: Final = 2.0
SUBMIT_S: Final = 1.2
DRAIN_S: Final = 5.0
TIMEOUT_S: Final = 10.0
"""How long each process may take to end."""
_LARGEST: Final = 200_000
_MOST_BYTES: Final = 20_000_000
"""Limit of the payloads of one measurement, because they stay in memory until the end."""

commands = Commands(
    "bench",
    "orc bench",
    "orc bench --processes 4 -o json",
    "orc bench --payload 10kB",
    "orc bench --url redis://localhost:6379/0",
)


@dataclass(frozen=True, slots=True)
class Figures:
    """The measured figures: rates in tasks per second, times in milliseconds from submit to result.

    Figures of the raw loop are None where the user may not run its commands.
    """

    machine: str
    redis: str
    processes: int
    submit_one_by_one: float
    submit_100_at_once: float
    submit_many: float
    drain: float
    drain_5_ms: float
    latency_p50_ms: float
    latency_p99_ms: float
    payload_bytes: int
    server_us_per_task: float
    bytes_per_queued_task: int
    bytes_per_ended_task: int
    raw_submit_one_by_one: float | None
    raw_submit_many: float | None
    raw_drain: float | None
    raw_server_us_per_task: float | None


@commands.itself
def bench(
    *,
    processes: Annotated[int | None, option("--processes", metavar="N")] = None,
    tasks: Annotated[int, option("--tasks", metavar="N")] = TASKS,
    payload: Annotated[str, option("--payload", metavar="SIZE")] = "0",
    common: Globals = DEFAULTS,
) -> int:
    """Measure this machine and a server with tasks that do nothing, beside a plain stream. Takes less than 25 s.

    Without --url it runs a temporary Redis; with --url it uses a temporary pool of that server.

    Args:
        processes: Worker processes [number of processors, at most 4].
        tasks: Tasks per measurement [5000]; a slow machine and large payloads get fewer.
        payload: Size of a text in arguments and result, as 10kB [none]; at most 200kB.
    """
    count = check_processes(min(4, os.cpu_count() or 1) if processes is None else processes)
    if not 100 <= tasks <= 1_000_000:
        raise InvalidInput(f"--tasks {tasks} is not between 100 and 1000000")
    payload_bytes = _size(payload)
    if payload_bytes:
        tasks = max(100, min(tasks, _MOST_BYTES // payload_bytes))
    with ExitStack() as held:
        settings, environ, server = _place_of_redis(common, held)
        log = held.enter_context(tempfile.TemporaryFile(prefix="orc-bench-"))
        with _borrowed_pool(settings):
            found = _measure(settings, environ, log, server=server, processes=count, tasks=tasks, payload=payload_bytes)
    if isinstance(found, signal.Signals):
        output.say(f"{found.name}: stopped; the temporary data is removed")
        return 128 + found
    show(found, common)
    return 0


def _place_of_redis(common: Globals, held: ExitStack) -> tuple[Settings, Mapping[str, str], str]:
    """Start or find a Redis, and return settings with a temporary pool, the environment of children, and its name."""
    from orchestrator.core.settings_sources import load_settings
    from orchestrator.services import hold_ephemeral

    settings = common.settings()
    variables = {"ORC_LOGGING__FORMAT": "json", "ORC_LOGGING__LEVEL": "warning", "ORC_WORKER__DRAIN_S": "0"}
    place = settings.redis.place
    if place is None:
        redis = hold_ephemeral()
        held.callback(redis.close, wait_s=TIMEOUT_S)
        variables["ORC_REDIS__URL"] = redis.url
        server = "embedded, over a socket"
    else:
        server = f"at {place}"
    pool = common.pool or f"bench-{secrets.token_hex(4)}"
    variables["ORC_POOL"] = pool
    environ = {**common.environ(), **variables}
    return load_settings(environ=environ), environ, server


@contextmanager
def _borrowed_pool(settings: Settings) -> Iterator[None]:
    """Check that the pool is empty, and remove its data at the end."""
    import anyio

    from orchestrator.bench import pool
    from orchestrator.core.errors import StoreError

    anyio.run(pool.check_empty, settings)
    try:
        yield
    finally:
        with blocked_signals():  # a second Ctrl-C must not interrupt the removal
            try:
                anyio.run(pool.remove, settings)
            except StoreError as failure:
                output.say(pool.report_leftovers(settings, failure))


def _measure(
    settings: Settings,
    environ: Mapping[str, str],
    log: IO[bytes],
    *,
    server: str,
    processes: int,
    tasks: int,
    payload: int,
) -> Figures | signal.Signals:
    import anyio

    hosts = [Part("worker host", worker_command((app,), processes), TIMEOUT_S) for app in (APP, WAITING_APP)]
    supervisor = Part("supervisor", supervisor_command(), TIMEOUT_S)
    children: list[Child] = []

    def start(part: Part) -> None:
        children.append(Child(part, environ, output=log))

    async def work() -> dict[str, Any]:
        return await _take_figures(settings, children, lambda: start(supervisor), tasks, payload)

    try:
        # Workers of their own, because agents of one process share a read of their inboxes.
        for part in (*hosts, supervisor):
            start(part)

        figures = anyio.run(work_beside, children, work)
    except ChildProcessFailed as failed:
        raise MeasureFailed(f"{failed}; its last message: {_last_message(log)}", failed.exit_code) from None
    finally:
        with blocked_signals() as signals:
            end_in_order(children, signals)
    if isinstance(figures, signal.Signals):
        return figures
    version = figures.pop("version")
    machine = (
        f"{os.cpu_count()} processors, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    )
    return Figures(machine=machine, redis=f"{version} {server}", processes=processes, **figures)


class MeasureFailed(OrchestratorError):
    """A process that the measurement needs did not start or died."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


async def _take_figures(
    settings: Settings, children: list[Child], start_supervisor: Callable[[], None], tasks: int, payload: int
) -> dict[str, Any]:
    """Measure latency at rest, submits without a supervisor, drains of submitted tasks, then a plain stream."""
    from orchestrator.bench import run
    from orchestrator.bench.raw_loop import measure_raw
    from orchestrator.bench.server_cost import read_cost
    from orchestrator.cli.terminal.warned import expect_agents_later
    from orchestrator.client.client import Orchestrator
    from orchestrator.core.errors import StoreError
    from orchestrator.views.server import read_server

    body = secrets.token_hex(payload)[:payload]
    expect_agents_later()
    async with Orchestrator(settings=settings) as orc:
        _tell("one task after another …")
        latency = await run.measure_latency(orc, tasks=max(200, tasks // 5), at_most_s=LATENCY_S, body=body)
        _tell("submits …")
        await _end_last(children)
        before = await read_cost(orc.services)
        rates = await run.measure_submits(orc, tasks=tasks, at_most_s=SUBMIT_S, body=body)
        queued = await read_cost(orc.services)
        _tell(f"{rates.tasks} tasks …")
        start_supervisor()
        drain = await run.measure_drain(orc, tasks=rates.tasks, at_most_s=DRAIN_S)
        ended = await read_cost(orc.services)
        waiting = max(tasks, run.LEAST_WAITING)
        _tell(f"{waiting} tasks that wait for 5 ms …")
        await _end_last(children)
        await run.submit_waiting(orc, tasks=waiting)
        start_supervisor()
        drain_5_ms = await run.measure_drain(orc, tasks=waiting, at_most_s=DRAIN_S)
        version = (await read_server(orc.services)).name
        _tell("a plain stream …")
        try:
            raw = asdict(await measure_raw(orc.services, tasks=tasks, body=body, at_most_s=SUBMIT_S))
        except StoreError as failure:
            output.say(f"the plain stream is not measured: {failure}")
            raw = dict.fromkeys(("one_by_one", "many", "drain", "server_us"))
    return {
        "version": version,
        "submit_one_by_one": round(rates.one_by_one),
        "submit_100_at_once": round(rates.at_once),
        "submit_many": round(rates.many),
        "drain": round(drain),
        "drain_5_ms": round(drain_5_ms),
        "latency_p50_ms": round(latency.p50, 2),
        "latency_p99_ms": round(latency.p99, 2),
        "payload_bytes": payload,
        "server_us_per_task": round((ended.cpu_s - before.cpu_s) / rates.tasks * 1e6, 1),
        "bytes_per_queued_task": round((queued.memory_bytes - before.memory_bytes) / rates.tasks),
        "bytes_per_ended_task": round((ended.memory_bytes - before.memory_bytes) / rates.tasks),
        "raw_submit_one_by_one": _rounded(raw["one_by_one"]),
        "raw_submit_many": _rounded(raw["many"]),
        "raw_drain": _rounded(raw["drain"]),
        "raw_server_us_per_task": _rounded(raw["server_us"], 1),
    }


def _rounded(value: float | None, digits: int = 0) -> float | None:
    return None if value is None else round(value, digits)


def _size(text: str) -> int:
    """Return the bytes of a size as 10kB.

    Raises:
        InvalidInput: it is no size, or above what the arguments of a task may be.
    """
    found = re.fullmatch(r"(\d+)\s*(k?)B?", text.strip(), re.IGNORECASE)
    size = int(found[1]) * (1000 if found[2] else 1) if found else -1
    if not 0 <= size <= _LARGEST:
        raise InvalidInput(f"--payload {text} is not a size between 0 and 200kB, as 10kB")
    return size


async def _end_last(children: list[Child]) -> None:
    """End the supervisor, which is the last child."""
    import anyio

    supervisor = children[-1]
    with anyio.fail_after(TIMEOUT_S):
        supervisor.ask_to_end()
        # Removed first, so that it is not restarted.
        children.remove(supervisor)
        while supervisor.runs:  # noqa: ASYNC110 - a process has no event to wait for
            await anyio.sleep(0.01)


def _tell(step: str) -> None:
    output.hint(f"measuring: {step}")


def _last_message(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode("utf-8", "replace").splitlines()
    reasons = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")] or lines[-1:]
    return output.clean(reasons[-1]) if reasons else "nothing"


def show(found: Figures, common: Globals) -> None:
    """Print the figures."""
    if common.output != "table":
        output.show_record(common.output, asdict(found), key="drain")
        return
    rows = [
        ("machine", found.machine),
        ("server", found.redis),
        ("workers", f"{found.processes} process{'es' * (found.processes > 1)}"),
        ("payload", f"{found.payload_bytes:,} bytes in arguments and result"),
        ("submit, one by one", f"{found.submit_one_by_one:,} tasks/s{_raw(found.raw_submit_one_by_one)}"),
        ("submit, 100 at once", f"{found.submit_100_at_once:,} tasks/s"),
        ("submit_many", f"{found.submit_many:,} tasks/s{_raw(found.raw_submit_many)}"),
        ("drain", f"{found.drain:,} tasks/s{_raw(found.raw_drain)}"),
        ("drain, 5 ms", f"{found.drain_5_ms:,} tasks/s with handlers that wait for 5 ms, 200 at once in each process"),
        ("submit to result", f"p50 {found.latency_p50_ms:.2f} ms, p99 {found.latency_p99_ms:.2f} ms, at rest"),
        ("server, per task", f"{found.server_us_per_task:,} µs of CPU{_raw(found.raw_server_us_per_task)}"),
        ("memory, per task", f"{found.bytes_per_queued_task:,} bytes queued, {found.bytes_per_ended_task:,} ended"),
    ]
    output.write("".join(f"{output.paint(name.ljust(19), '1')}  {output.clean(text)}\n" for name, text in rows))
    output.say(
        "In brackets: a plain stream on the same server, without priorities, limits, retries or recovery.",
        "The tasks do nothing, so the figures are the cost of orchestration without handlers.",
        "Client, supervisor, workers and Redis shared the processors; other programs lower the figures.",
    )


def _raw(value: float | None) -> str:
    return "" if value is None else f" ({value:,g})" if value < 1000 else f" ({value:,.0f})"
