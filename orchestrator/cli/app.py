"""The program `orc`. It imports the module of a command when the command is used."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn

from orchestrator.core import hangup
from orchestrator.core.process_one import end_on_sigterm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.cli.terminal.parsing import Commands

_COMMANDS = (
    ("demo", "Run a team of agents that audits a tree of Python source."),
    ("up", "Run Redis, a supervisor and workers in one terminal."),
    ("status", "Show server, supervisor, agents, workers and queues on one screen."),
    ("web", "Serve the dashboard; say who may log in."),
    ("top", "Show the pool live on the terminal; give control commands."),
    ("doctor", "Find problems and say how to fix them."),
    ("stop", "Stop starting tasks: everywhere, or of one agent, session or skill."),
    ("start", "End a stop."),
    ("control", "List the control commands that were given; set the log level."),
    ("tasks", "Submit, list, watch, cancel and retry tasks."),
    ("events", "List the tasks that ended, and follow further ones."),
    ("sessions", "List, show and delete sessions."),
    ("dead", "List, retry, export and delete dead letters."),
    ("agents", "List agents; pause, resume and limit them."),
    ("skills", "List skills; show their arguments and results."),
    ("stats", "Show attempts, waiting and running times per agent and skill."),
    ("limits", "List rate limits; change their rates."),
    ("budgets", "List what tasks may spend, have spent and hold; set limits."),
    ("shares", "List how keys share the slots; set their weights and caps."),
    ("workers", "List worker processes; drain and stop them."),
    ("queues", "List queues; pause, drain, resume and purge them."),
    ("schedules", "Submit tasks at calendar times or at intervals."),
    ("locks", "List the locks of a session, an agent or the pool; release one."),
    ("chat", "Show, append to, export and clear the chats of a session."),
    ("memory", "List, show, export and forget the records of an agent."),
    ("erase", "Erase all text about a person."),
    ("workspace", "Show and change the workspace of a session."),
    ("keys", "Check and repair the stored data; report its size."),
    ("backup", "Save the pool to a file."),
    ("restore", "Restore a backup into an empty pool."),
    ("upgrade", "Show which versions run; load scripts; finish a rolling upgrade."),
    ("supervisor", "Run a supervisor."),
    ("worker", "Run worker processes."),
    ("redis", "Run the embedded Redis; describe it."),
    ("auth", "Print the users of Redis, one per role."),
    ("service", "Print and install the systemd units; show the state of the services."),
    ("bench", "Measure this machine and a server."),
    ("config", "Show and check the settings; publish configuration values."),
    ("completion", "Print a shell completion script."),
    ("version", "Print the version."),
)

_PLACES = {
    "stop": "stop:stop_commands",
    "start": "stop:start_commands",
    "backup": "backup:backup_commands",
    "restore": "backup:restore_commands",
}
"""`MODULE:ATTRIBUTE` of a command whose module has another name."""


def program() -> Commands:
    """Declare every command without importing its module."""
    from orchestrator.cli.terminal.parsing import Commands

    orc = Commands(
        "orc",
        "orc demo                                   see it work",
        "orc up my_agents:agent                     run your own agents",
        "orc tasks submit greet -a name=Ada --wait  in another terminal",
        about="Coordinate teams of agents through Redis.",
    )
    for name, about in _COMMANDS:
        orc.lazy(name, f"orchestrator.cli.commands.{_PLACES.get(name, f'{name}:commands')}", about)
    return orc


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; without arguments, run that of the command line, and end."""
    if arguments is not None:
        return _run(arguments)
    if _runs_processes(sys.argv[1:]):
        return _run(sys.argv[1:])
    from orchestrator.cli.imports import quicken

    quicken()
    return _end(_run(sys.argv[1:]))


def _end(code: int) -> NoReturn:
    # What modules have registered for the end: the last lines of the log, spans of an instrumented program.
    atexit._run_exitfuncs()  # noqa: SLF001 - `os._exit` does not
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    # The interpreter takes a tenth of a second to free what it has imported.
    os._exit(code)


def _run(arguments: Sequence[str]) -> int:
    end_on_sigterm()
    tokens = list(arguments)
    if _runs_daemon(tokens):
        hangup.block_hangup()
    from orchestrator.cli.terminal.failures import exit_code_of  # slow, and SIGHUP may come before

    if tokens in (["--version"], ["-V"]):
        tokens = ["version"]
    return exit_code_of(lambda: program().run(tokens), debug="--debug" in tokens)


def _runs_processes(tokens: Sequence[str]) -> bool:
    """Return whether the command is a program that runs until it is told to end, or starts such programs."""
    return _runs_daemon(tokens) or bool(
        {"up", "demo", "bench", "redis", "worker", "supervisor", "web"}.intersection(tokens)
    )


def _runs_daemon(tokens: Sequence[str]) -> bool:
    """Return whether the command runs a program that SIGHUP makes reload its settings."""
    words = [
        token
        for before, token in pairwise(("", *tokens))
        if not token.startswith("-") and (not before.startswith("-") or before == "--debug" or "=" in before)
    ]
    return words[:2] in (["supervisor", "run"], ["worker", "run"])
