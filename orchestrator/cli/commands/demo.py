"""`orc demo`: runs Redis, a supervisor and workers, and a team of agents that audits a tree of Python source."""

from __future__ import annotations

import errno
import os
import secrets
import shlex
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from orchestrator.cli.commands.up import supervisor_command
from orchestrator.cli.commands.worker import check_processes, worker_command
from orchestrator.cli.processes import Child, ChildProcessFailed, Part, blocked_signals, end_in_order, work_beside
from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import Commands, option, positional
from orchestrator.core.errors import InvalidInput, OrchestratorError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO

    from orchestrator.core.settings import Settings

TEAM: Final = "orchestrator.workers.demo.team:team"
ROOT_SKILL: Final = "audit"
PROCESSES: Final = 3
TIMEOUT_S: Final = 20.0
"""How long each process may take to end; a worker host kills its workers before that."""

commands = Commands("demo", "orc demo", "orc demo src --out audit")


@dataclass(frozen=True, slots=True)
class DemoSummary:
    """Figures of the audit, printed at the end."""

    markdown: str
    html: str
    files: int
    functions: int
    cycles: int
    remarks: int
    tasks: int
    attempts: int
    changes: int
    retries: int
    dead: int
    processes: int
    seconds: float
    tasks_per_second: float


@commands.itself
def demo(
    path: Annotated[str | None, positional("PATH")] = None,
    /,
    *,
    out: Annotated[Path | None, option("--out", metavar="DIR")] = None,
    processes: Annotated[int, option("--processes", metavar="N")] = PROCESSES,
    common: Globals = DEFAULTS,
) -> int:
    """Run a team of agents that audits a tree of Python source.

    Args:
        path: Folder of Python source [the installed redis package].
        out: Folder of the report [orc-demo].
        processes: Worker processes [3].
    """
    check_processes(processes)
    root = _check_tree(path)
    folder = _make_folder(out or Path("orc-demo"))
    settings = common.settings()
    log = folder / "demo.log"
    with ExitStack() as held:
        environ = {**common.environ(), **_place_of_redis(settings, common, held)}
        # After Ctrl-C the running tasks are of no use.
        environ |= {"ORC_LOGGING__FORMAT": "json", "ORC_WORKER__DRAIN_S": "0.5"}
        # Log lines would break up the live display, so they go to a file beside the report.
        log_file = held.enter_context(log.open("wb"))
        audited = _run_team(root, folder, log_file, processes, environ)
    if isinstance(audited, int):
        return audited
    _print_summary(audited, common)
    return 0


def _check_tree(path: str | None) -> str:
    """Return the folder to audit, after a check that it contains source."""
    command = [sys.executable, "-P", "-m", "orchestrator.workers.demo", *([] if path is None else [path])]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=False)  # noqa: S603 - our own interpreter and module
    if answer.returncode:
        raise SystemExit(answer.returncode)  # it has printed the reason
    return answer.stdout.decode(errors="surrogateescape").removesuffix("\n")


def _make_folder(folder: Path) -> Path:
    try:
        folder = folder.expanduser().absolute()
        folder.mkdir(parents=True, exist_ok=True)
        if folder.stat().st_uid not in {os.geteuid(), 0}:
            raise PermissionError(errno.EPERM, "it belongs to another user, who could put links there")
        probe = folder / f".{secrets.token_hex(4)}"
        probe.touch()
        probe.unlink()
    except (OSError, RuntimeError, ValueError) as refused:
        why = refused.strerror if isinstance(refused, OSError) and refused.strerror else str(refused)
        raise InvalidInput(f"cannot write the report to {folder}: {why}; name another folder with --out") from None
    return folder


def _place_of_redis(settings: Settings, common: Globals, held: ExitStack) -> dict[str, str]:
    """Start or find a Redis for the demo and return the variables that name it.

    Without a URL and a data directory it is a temporary server; otherwise the demo uses a key prefix of its own.
    """
    from orchestrator.services import check_answers, hold_embedded, hold_ephemeral

    apart = {} if common.prefix else {"ORC_PREFIX": f"orc:demo:{secrets.token_hex(4)}"}
    if settings.redis.url is not None:
        check_answers(settings)
        return apart
    named = os.environ.get("ORC_DATA_DIR")
    redis = hold_embedded() if named else hold_ephemeral()
    held.callback(redis.close, wait_s=TIMEOUT_S)
    os.environ["ORC_DATA_DIR"] = str(redis.data_dir)  # for the client in this process
    return {"ORC_DATA_DIR": str(redis.data_dir), **(apart if named else {})}


def _run_team(root: str, folder: Path, log: IO[bytes], processes: int, environ: Mapping[str, str]) -> DemoSummary | int:
    """Run supervisor and workers during one audit; return an exit code if a signal interrupts it."""
    import anyio

    output.say(f"auditing {root} with {processes} worker processes")
    parts = [
        Part("worker host", worker_command((TEAM,), processes), TIMEOUT_S),
        Part("supervisor", supervisor_command(), TIMEOUT_S),
    ]
    children: list[Child] = []
    try:
        children += [Child(part, environ, output=log) for part in parts]
        summary = anyio.run(work_beside, children, partial(_audit, root, folder, processes, environ))
    except ChildProcessFailed as failed:
        raise DemoFailed(f"{failed}; see {shlex.quote(log.name)}", failed.exit_code) from None
    finally:
        with blocked_signals() as signals:
            end_in_order(children, signals)
    if isinstance(summary, signal.Signals):
        output.say(f"{summary.name}: audit stopped")
        return 128 + summary
    return summary


class DemoFailed(OrchestratorError):
    """A process of the demo did not start or died."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


async def _audit(root: str, folder: Path, processes: int, environ: Mapping[str, str]) -> DemoSummary:
    """Submit the root task, display its progress, and return the figures."""
    import anyio

    from orchestrator.cli.terminal.progress import ProgressDisplay
    from orchestrator.cli.terminal.waiting import wait_through_outages
    from orchestrator.cli.terminal.warned import expect_agents_later
    from orchestrator.client.client import Orchestrator
    from orchestrator.core.settings_sources import load_settings
    from orchestrator.views.status import read_counters

    expect_agents_later()
    async with Orchestrator(settings=load_settings(environ=environ)) as orc, wait_through_outages(orc):
        started_s = time.monotonic()
        # A new session, because --prefix keeps those of earlier audits.
        session = f"audit-{secrets.token_hex(4)}"
        handle = await orc.submit(ROOT_SKILL, {"path": root, "out": str(folder)}, session=session)
        async with anyio.create_task_group() as group:
            group.start_soon(ProgressDisplay(orc.services, handle, started_s).run)
            audited: dict[str, Any] = await handle.result()
            group.cancel_scope.cancel()
        seconds = time.monotonic() - started_s
        counts = await read_counters(orc.services)
    tasks, retries = counts.get("succeeded", 0), counts.get("retried", 0)
    return DemoSummary(
        **{name: audited[name] for name in ("markdown", "html", "files", "functions", "cycles", "remarks", "changes")},
        tasks=tasks,
        attempts=tasks + retries,
        retries=retries,
        dead=counts.get("dead", 0),
        processes=processes,
        seconds=round(seconds, 2),
        tasks_per_second=round(tasks / seconds, 1),
    )


def _print_summary(found: DemoSummary, common: Globals) -> None:
    if common.output != "table":
        output.show_record(common.output, asdict(found), key="markdown")
        return
    retried = f"{found.retries} retried (the linker fails once on purpose)" if found.retries else "none retried"
    cycles = f"{found.cycles} import cycle{'s' * (found.cycles != 1)}"
    speed = f"{found.seconds:.1f} s, {found.tasks_per_second:g} tasks per second"
    lines = [
        ("audited", f"{found.files} files, {found.functions} functions: {cycles}, {found.remarks} remarks"),
        ("tasks", f"{found.tasks} tasks in {found.attempts} attempts, {retried}, {found.dead} dead"),
        ("shared", f"{found.changes} changes in the workspace of their session, each made once"),
        ("time", f"{speed}, with {found.processes} worker processes"),
        ("report", found.markdown),
        ("", found.html),
    ]
    output.write("".join(f"{output.paint(name.ljust(8), '1')} {output.clean(text)}\n" for name, text in lines))
