"""`orc version`."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import Commands

commands = Commands("version", "orc version", "orc version -o json")


@commands.itself
def version(*, common: Globals = DEFAULTS) -> None:
    """Print the version."""
    try:
        ours = version_of("redis-orchestrator")
    except PackageNotFoundError:  # not installed
        ours = "unknown"
    facts = {
        "version": ours,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    if common.output == "table":
        output.write(f"orc {ours} (Python {facts['python']}, {facts['platform']})\n")
    else:
        output.show_record(common.output, facts, key="version")
