"""`python -m orchestrator.workers MODULE:AGENT... [--processes N]`: runs a worker host; imports no CLI library."""

from __future__ import annotations

import argparse
import io
import os
import sys

from orchestrator.core.crash_traces import trace_crashes
from orchestrator.core.hangup import EarlyHangup
from orchestrator.core.process_one import end_on_sigterm


def main() -> int:
    """Run a host and return its exit status."""
    end_on_sigterm()  # before slow imports
    early = EarlyHangup()
    trace_crashes()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What a handler prints appears at once, also in a file or in the journal, and is not lost with the process.
        sys.stdout.reconfigure(line_buffering=True)
    from orchestrator.core.errors import OrchestratorError

    parser = argparse.ArgumentParser(
        prog="python -m orchestrator.workers", description="Run worker processes for agents."
    )
    parser.add_argument("agents", nargs="+", metavar="MODULE:AGENT")
    parser.add_argument("--processes", type=int, default=None, help="worker processes (default: settings)")
    parser.add_argument("--pool", action="append", default=[], help="pool to work for; may be repeated")
    parser.add_argument("--group", default=None, help="name of the worker group that the agents make up")
    parser.add_argument("--tell-tasks", action="store_true", help="log starts and successes of tasks at info")
    parser.add_argument("--check", action="store_true", help="import the agents and end")
    parser.add_argument("--config", default=None, help="settings file")
    arguments = parser.parse_args()
    if arguments.check:
        early.restore()
    try:
        from orchestrator.core.ids import check_name
        from orchestrator.core.log import configure_logging
        from orchestrator.core.settings_sources import SettingsSources

        pools = list(dict.fromkeys(check_name("pool", pool) for pool in arguments.pool))
        given = {"worker.processes": arguments.processes, "pool": pools[0] if pools else None}
        sources = SettingsSources.of(arguments.config, given)
        settings = sources.load().settings
        configure_logging(level=settings.logging.level, format=settings.logging.format, secrets=settings.secrets)
        from orchestrator.core.notify import Notifier
        from orchestrator.core.secret_environment import take_secrets
        from orchestrator.workers.runtime.host import Host
        from orchestrator.workers.runtime.loading import load_agents
        from orchestrator.workers.runtime.task_log import tell_of_tasks

        # Before the agents can read the environment, or start a process.
        take_secrets()
        notifier = Notifier.take()
        agents = load_agents(arguments.agents)
        if arguments.check:
            # Without waiting for threads and exit handlers of the agents' modules.
            os._exit(0)
        if arguments.tell_tasks:
            tell_of_tasks()
        processes, group = settings.worker.processes, arguments.group
        host = Host(settings, agents, processes=processes, pools=pools, group=group, notifier=notifier, sources=sources)
        return host.run(early)
    except OrchestratorError as refused:
        from orchestrator.core.escaping import UNSAFE_IN_LINES, escape
        from orchestrator.core.scrubbing import mask_known

        sys.stderr.write(f"error: {escape(mask_known(str(refused)), UNSAFE_IN_LINES)}\n")
        return refused.exit_code


if __name__ == "__main__":
    sys.exit(main())
