"""`orc service`: print, install, status."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.failures import REFUSED
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import Commands, option, positional

commands = Commands(
    "service",
    "orc service print supervisor",
    "orc service install --dry-run",
    "orc service status",
)


@commands.command("print", "orc service print supervisor", "orc service print worker > orchestrator-worker@.service")
def print_(
    name: Annotated[str, positional("NAME", help="supervisor, worker, redis, target, sysusers or tmpfiles.")],
    /,
    *,
    common: Globals = DEFAULTS,  # noqa: ARG001 - every command takes them
) -> None:
    """Print a systemd unit with the path of this installation."""
    from orchestrator.cli.service_units import find_unit, unit_text

    output.write(unit_text(find_unit(name)))


@commands.command(
    "install", "orc service install --dry-run", "sudo orc service install", "orc service install --root image/"
)
def install(
    *,
    redis: Annotated[bool, option("--redis")] = False,
    root: Annotated[Path | None, option("--root", metavar="DIR")] = None,
    dry_run: Annotated[bool, option("--dry-run")] = False,
    force: Annotated[bool, option("--force")] = False,
    common: Globals = DEFAULTS,
) -> int:
    """Write the systemd units below /etc. Exit code 4: files that were edited are left; all others are written.

    Args:
        redis: Also the unit of the embedded Redis.
        root: Write below this folder instead of /.
        dry_run: Print what would be written and write nothing.
        force: Overwrite edited files too.
    """
    from orchestrator.cli.service_units import FileChange, hidden_folder, plan_installation, program, write_file

    planned = plan_installation(root or Path("/"), redis=redis)
    rows: list[dict[str, str]] = []
    for file in planned:
        change = FileChange.REPLACE if force and file.change is FileChange.EDITED else file.change
        writes = change in {FileChange.WRITE, FileChange.REPLACE}
        if writes and not dry_run:
            write_file(file)
        done = _DONE[change.value][dry_run]
        rows.append({"file": str(file.path), "result": done})
    output.show_list(common.output, rows, ("file", "result"), key="file")
    if folder := hidden_folder(program()):
        output.say(f"warning: the services cannot run {program()}: their sandbox hides {folder}; install into /opt")
    left = any(file.change is FileChange.EDITED for file in planned) and not force
    if left:
        output.say("edited files were left; compare them with `orc service print NAME`, or overwrite them with --force")
    if not dry_run and root is None:
        output.hint(_NEXT.format(redis=" orchestrator-redis" if redis else ""))
    return REFUSED if left else 0


@commands.command("status", "orc service status", "orc service status -o json")
def status(*, common: Globals = DEFAULTS) -> int:
    """Show the services of this machine: what systemd says, and what they do. Exit code 1: one fails."""
    from orchestrator.cli.service_units import read_states

    states = read_states()
    rows = [asdict(state) for state in states]
    output.show_list(
        common.output, rows, ("unit", "state", "doing", "restarts", "since"), key="unit", empty="no services are loaded"
    )
    return 1 if any(state.state.startswith(("failed", "restarts soon")) for state in states) else 0


_DONE = {
    "write": ("written", "would be written"),
    "replace": ("replaced", "would be replaced"),
    "unchanged": ("unchanged", "unchanged"),
    "edited": ("left, because it was edited", "would be left, because it was edited"),
}
_NEXT = """next:
  systemd-sysusers && systemd-tmpfiles --create
  systemctl daemon-reload
  systemctl enable --now orchestrator.target{redis} orchestrator-supervisor orchestrator-worker@GROUP"""
