"""`orc supervisor`: run."""

from __future__ import annotations

import os
import socket

from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import Commands

commands = Commands(
    "supervisor",
    "orc supervisor run",
    "orc supervisor run --config /etc/orchestrator/orchestrator.toml",
)


@commands.command(
    "run",
    "orc supervisor run",
    "orc supervisor run --pool mail --pool billing",
    "ORC_REDIS__URL=redis://localhost:6379/0 orc supervisor run",
)
def run(*, common: Globals = DEFAULTS) -> None:
    """Run a supervisor until SIGTERM or Ctrl-C. Of several supervisors of a pool one leads and the rest stand by.

    It serves one pool, or all that `--pool` names. SIGHUP reloads the settings.
    """
    # `main` has blocked SIGHUP.
    from orchestrator.core.crash_traces import trace_crashes

    trace_crashes()
    from orchestrator.core.event_loop import run_loop
    from orchestrator.core.log import configure_logging
    from orchestrator.core.secret_environment import take_secrets
    from orchestrator.supervisor.daemon import run_supervisor
    from orchestrator.tracing.environment import exported_spans

    pools, common = common.split_pools()
    sources = common.sources()
    settings = sources.load().settings
    take_secrets()
    configure_logging(level=settings.logging.level, format=settings.logging.format, secrets=settings.secrets)
    with exported_spans("orc-supervisor", f"{socket.gethostname()}:{os.getpid()}"):
        run_loop(run_supervisor, settings, sources, pools)
