"""`orc worker`: run. Replaces this process with the worker host."""

from __future__ import annotations

import os
import sys
from typing import Annotated

from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import Commands, option, positional
from orchestrator.core.errors import InvalidInput

commands = Commands(
    "worker",
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
    """Run worker processes until SIGTERM or Ctrl-C. They finish their tasks first; a second signal stops them faster.

    Args:
        agents: Module and name of each agent; the current directory is searched last.
        processes: Worker processes [1].
        reload: Restart them when their source changes.
    """
    if not agents:
        raise InvalidInput("no agents given; name them as MODULE:AGENT, as in `orc worker run my_agents:agent`")
    command = worker_command(agents, processes, reload=reload)
    os.execve(command[0], command, common.environ())  # noqa: S606 - our own interpreter and module


def worker_command(agents: tuple[str, ...], processes: int | None, *, reload: bool = False) -> list[str]:
    """Return the command that runs a worker host; `-P` so that no file in the current directory shadows a module.

    Args:
        agents: module and name of each agent.
        processes: worker processes, or None for the number in the settings.
        reload: restart the host when the source of the agents changes.

    Raises:
        InvalidInput: the number of processes is invalid.
        ConfigError: watchfiles is not installed.
    """
    count = [] if processes is None else ["--processes", str(check_processes(processes))]
    module = "orchestrator.workers"
    if reload:
        from orchestrator.cli.source_watch import check_installed

        check_installed()
        module = "orchestrator.cli.commands.worker_reload"
    return [sys.executable, "-P", "-m", module, *count, "--", *agents]


def check_processes(processes: int) -> int:
    """Return the number of processes, if it is valid."""
    if not 1 <= processes <= 1024:
        raise InvalidInput(f"--processes {processes} is not between 1 and 1024")
    return processes
