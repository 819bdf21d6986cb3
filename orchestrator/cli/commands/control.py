"""`orc control`: list, show, renew, log-level."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.command_options import receipt_rows, receipt_table
from orchestrator.cli.terminal.declared import noun
from orchestrator.cli.terminal.inputs import check_limit, duration_s
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import option, positional
from orchestrator.cli.terminal.source import viewed
from orchestrator.core.errors import InvalidInput

commands = noun(
    "control",
    "orc control list",
    "orc control show 0192f0c1-…",
)


@commands.command(
    "list", "orc control list", "orc control list --actor ada@desk --since 1d", "orc control list --refused -o json"
)
async def list_(
    *,
    actor: Annotated[str | None, option("--actor", metavar="ACTOR")] = None,
    kind: Annotated[str | None, option("--kind", metavar="KIND")] = None,
    since: Annotated[str | None, option("--since", metavar="DURATION")] = None,
    refused: Annotated[bool, option("--refused")] = False,
    limit: Annotated[int, option("--limit", metavar="N")] = 50,
    common: Globals = DEFAULTS,
) -> None:
    """List the newest control commands, with actor, reason and state. Refused commands are listed too.

    Args:
        actor: Only commands of this actor.
        kind: Only commands of this kind: stop, start, pause-agent, …
        since: Only commands from this time: 1h, 2d.
        refused: Only refused commands.
        limit: How many [50].
    """
    from datetime import UTC, datetime, timedelta

    from orchestrator.control.commands import KINDS
    from orchestrator.views.control import list_commands

    check_limit(limit)
    if kind is not None and kind not in KINDS:
        raise InvalidInput(f"no command has the kind {kind!r}; the kinds are {', '.join(sorted(KINDS))}")
    since_s = duration_s("--since", since)
    start = None if since_s is None else datetime.now(UTC) - timedelta(seconds=since_s)

    async with viewed(common) as services:
        found = await list_commands(services, actor=actor, kind=kind, since=start, refused=refused, limit=limit)
    rows = [asdict(record) for record in found]
    if common.output == "table":
        rows = [
            {**row, "command": row["words"], "state": f"refused: {row['problem']}" if row["problem"] else row["state"]}
            for row in rows
        ]
    columns = ("id", "at", "actor", "state", "command", "reason")
    output.show_list(common.output, rows, columns, key="id", empty="no commands")


@commands.command("show", "orc control show 0192f0c1-…", "orc control show 0192f0c1-… -o json")
async def show(
    command: Annotated[str, positional("ID", help="Id of the command, or the beginning of it.")],
    /,
    *,
    common: Globals = DEFAULTS,
) -> None:
    """Show one control command, with its receipts and the processes that have not answered."""
    from orchestrator.views.control import read_command

    async with common.services() as services:
        found = await read_command(services, command)
    rows = receipt_rows(found.receipts, found.record.at)
    shown: dict[str, Any] = {**asdict(found.record), "missing": found.receipts.missing, "busy": found.receipts.busy}
    if common.output != "table":
        output.show_record(common.output, {**shown, "answered": rows}, key="id")
        return
    output.show_record("table", shown, key="id", skip=("reason", "problem", "missing", "busy", "kind", "actor"))
    if rows:
        output.write("\n" + receipt_table(rows))
