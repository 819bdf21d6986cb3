"""`orc worker`: run. Becomes the worker host, which does not know this package."""

from __future__ import annotations

import os
import sys
from typing import Annotated

from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import Commands, option, positional
from orchestrator.core.errors import InvalidInput

commands = Commands(
    "worker",
    "Run worker processes alone.",
    "orc worker run my_agents:agent",
    "orc worker run my_agents:agent my_agents:other --processes 4",
)
app = commands.app


@commands.command(
    "run",
    "orc worker run my_agents:agent",
    "orc worker run my_agents:agent --processes 4",
    "orc worker run my_agents:agent --reload",
)
def run(
    *agents: Annotated[str, positional("MODULE:AGENT")],
    processes: Annotated[int | None, option("--processes", metavar="N")] = None,
    reload: Annotated[bool, option("--reload")] = False,
    common: Globals = DEFAULTS,
) -> None:
    """Run worker processes for agents until SIGTERM or Ctrl-C; what runs is finished first, a second one hurries.

    Args:
        agents: Where they are: a module (the current directory is searched last) and a name in it.
        processes: Worker processes (1).
        reload: Start them anew when their source changes.
    """
    if not agents:
        raise InvalidInput("which agents? name them as MODULE:AGENT, for example `orc worker run my_agents:agent`")
    command = worker_command(agents, processes, reload=reload)
    os.execve(command[0], command, common.environ())  # noqa: S606 - our own interpreter and module


def worker_command(agents: tuple[str, ...], processes: int | None, *, reload: bool = False) -> list[str]:
    """The command that runs a worker host; `-P` so that no file in the current directory stands in for ours.

    Args:
        agents: Where the agents are.
        processes: Worker processes; None for what the settings say.
        reload: Run a host that is replaced when the source of the agents changes.

    Raises:
        InvalidInput: the number cannot be meant.
        ConfigError: the library that watches files is not there.
    """
    count = [] if processes is None else ["--processes", str(check_processes(processes))]
    module = "orchestrator.workers"
    if reload:
        from orchestrator.cli.source_watch import check_installed

        check_installed()
        module = "orchestrator.cli.commands.worker_reload"
    return [sys.executable, "-P", "-m", module, *count, "--", *agents]


def check_processes(processes: int) -> int:
    """Refuse a number of processes that cannot be meant."""
    if not 1 <= processes <= 1024:
        raise InvalidInput(f"--processes {processes} must lie between 1 and 1024")
    return processes
