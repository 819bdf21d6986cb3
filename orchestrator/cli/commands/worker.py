"""`orc worker`: run. Replaces this process with the worker host."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Annotated

from orchestrator.cli.processes import child_of_this_process
from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import Commands, option, positional
from orchestrator.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.core.settings import Settings, WorkerGroupSettings

commands = Commands(
    "worker",
    "orc worker run my_agents:agent",
    "orc worker run my_agents:agent my_agents:other --processes 4",
    "orc worker run --group writers",
)


@commands.command(
    "run",
    "orc worker run my_agents:agent",
    "orc worker run my_agents:agent --processes 4",
    "orc worker run my_agents:agent --pool mail --pool billing",
    "orc worker run my_agents:agent --reload",
    "orc worker run --group writers",
)
def run(
    *agents: Annotated[str, positional("MODULE:AGENT")],
    group: Annotated[str | None, option("--group", metavar="NAME")] = None,
    processes: Annotated[int | None, option("--processes", metavar="N")] = None,
    reload: Annotated[bool, option("--reload")] = False,
    common: Globals = DEFAULTS,
) -> None:
    """Run worker processes until SIGTERM or Ctrl-C. They finish their tasks first; a second signal stops them faster.

    A worker process works for one pool. With several `--pool` each pool has its own.

    Args:
        agents: Module and name of each agent; the current directory is searched last.
        group: Worker group of the settings ([workers.NAME]), in place of agents.
        processes: Worker processes of each pool [1].
        reload: Restart them when their source changes.
    """
    pools, common = common.split_pools()
    if group is not None:
        if agents:
            raise InvalidInput("give either agents or --group; the settings of the group name its agents")
        chosen = _find_group(common.settings(), group)
        agents, processes = chosen.agents, chosen.processes if processes is None else processes
        os.environ.update(chosen.environment)
    if not agents:
        raise InvalidInput(
            "no agents given; name them as MODULE:AGENT, as in `orc worker run my_agents:agent`, "
            "or name a worker group with --group"
        )
    command = worker_command(agents, processes, pools=pools, group=group, reload=reload)
    os.execve(command[0], command, common.environ())  # noqa: S606 - our own interpreter and module


def _find_group(settings: Settings, name: str) -> WorkerGroupSettings:
    if (found := settings.workers.get(name)) is not None:
        return found
    groups = (
        f"the settings have {', '.join(sorted(settings.workers))}" if settings.workers else "the settings have none"
    )
    raise InvalidInput(f"no worker group {name!r}: {groups}; add a table [workers.{name}] to the settings file")


def worker_command(
    agents: tuple[str, ...],
    processes: int | None,
    *,
    pools: Sequence[str] = (),
    group: str | None = None,
    reload: bool = False,
    tells_tasks: bool = False,
) -> list[str]:
    """Return the command that runs a worker host; `-P` so that no file in the current directory shadows a module.

    Args:
        agents: module and name of each agent.
        processes: worker processes of a pool, or None for the number in the settings.
        pools: for which they work, if not for that of the settings.
        group: name of the worker group that they make up, if any.
        reload: restart the host when the source of the agents changes.
        tells_tasks: log starts and successes of tasks at info.

    Raises:
        InvalidInput: the number of processes is invalid.
        ConfigError: watchfiles is not installed.
    """
    count = [] if processes is None else ["--processes", str(check_processes(processes))]
    named = [] if group is None else ["--group", group]
    served = [word for pool in pools for word in ("--pool", pool)]
    told = ["--tell-tasks"] if tells_tasks else []
    module = "orchestrator.workers"
    if reload:
        from orchestrator.cli.source_watch import check_installed

        check_installed()
        module = "orchestrator.cli.commands.worker_reload"
    return [sys.executable, "-P", "-m", module, *count, *served, *named, *told, "--", *agents]


def check_agents(agents: tuple[str, ...], environ: Mapping[str, str]) -> int:
    """Import agents in a temporary process; return 0, or print why that failed and return an exit code."""
    done = subprocess.run(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-P", "-m", "orchestrator.workers", "--check", "--", *agents],
        stdin=subprocess.DEVNULL,
        # The worker host imports the agents again, so what they print on success appears once.
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environ,
        process_group=0,
        preexec_fn=child_of_this_process(),
        check=False,
    )
    if done.returncode == 0:
        return 0
    output.say(*done.stdout.decode(errors="replace").rstrip("\n").split("\n"))
    if done.returncode < 0:
        output.say(f"error: signal {-done.returncode} ended the import of the agents")
    return max(done.returncode, 1)


def check_processes(processes: int) -> int:
    """Return the number of processes, if it is valid."""
    if not 1 <= processes <= 1024:
        raise InvalidInput(f"--processes {processes} is not between 1 and 1024")
    return processes
