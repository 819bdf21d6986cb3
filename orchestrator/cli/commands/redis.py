"""`orc redis`: run, info."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import Commands

if TYPE_CHECKING:
    from orchestrator.services import Attachment

commands = Commands("redis", "orc redis run", "orc redis info")


@commands.command("run", "orc redis run", "orc redis run --data-dir /var/lib/orchestrator")
def run(*, common: Globals = DEFAULTS) -> None:
    """Run the embedded Redis until SIGTERM or Ctrl-C. Other commands find it by its data directory."""
    from orchestrator.core.notify import Notifier
    from orchestrator.services import run_embedded

    notifier = Notifier.take()

    def ready(held: Attachment) -> None:
        notifier.ready(f"runs Redis {held.version}, data in {held.data_dir}")
        output.say(f"redis {held.version} at {held.url}, data in {held.data_dir}; Ctrl-C stops it")

    common.name_data_dir()
    stopped = run_embedded(ready)
    output.say("redis stopped" if stopped else "redis keeps running for other processes")


@commands.command("info", "orc redis info", "orc redis info -o json")
def info(*, common: Globals = DEFAULTS) -> None:
    """Show address, version, data directory and start time of the running embedded Redis."""
    from orchestrator.services import describe_embedded

    common.name_data_dir()
    found = asdict(describe_embedded())
    started = datetime.fromtimestamp(found.pop("started_at_ms") / 1000, UTC)
    record: dict[str, Any] = {
        name: str(value) if name in {"data_dir", "binary"} else value for name, value in found.items()
    }
    output.show_record(common.output, {**record, "started_at": started}, key="url")
