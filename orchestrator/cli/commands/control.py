"""`orc control`: list, show, renew, log-level."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.command_options import receipt_rows, receipt_table
from orchestrator.cli.terminal.declared import noun
from orchestrator.cli.terminal.inputs import duration_s
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import option, positional
from orchestrator.core.errors import InvalidInput

if TYPE_CHECKING:
    from orchestrator.control.records import ControlRecord
    from orchestrator.control.signing import Signer
    from orchestrator.services import Services

commands = noun(
    "control",
    "orc control list",
    "orc control show 0192f0c1-…",
)
app = commands.app


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
    from orchestrator.control.records import records

    if limit < 1:
        raise InvalidInput(f"--limit must be at least 1, not {limit}")
    if kind is not None and kind not in KINDS:
        raise InvalidInput(f"no command has the kind {kind!r}; the kinds are {', '.join(sorted(KINDS))}")
    since_s = duration_s("--since", since)
    start = None if since_s is None else datetime.now(UTC) - timedelta(seconds=since_s)

    def wanted(record: ControlRecord) -> bool:
        return (
            (actor is None or record.actor == actor)
            and (kind is None or record.kind == kind)
            and (not refused or record.state == "refused")
        )

    async with common.services() as services:
        signer = _signer(services)
        found = await records(services.store, signer, limit=limit, since=start, wanted=wanted)
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
    command: Annotated[str, positional("ID", help="Id of the command.")], /, *, common: Globals = DEFAULTS
) -> None:
    """Show one control command, with its receipts and the processes that have not answered."""
    from orchestrator.control.receipts import Receipts, poll
    from orchestrator.control.records import find

    async with common.services() as services:
        record, asked = await find(services.store, _signer(services), command)
        found = Receipts((), ())
        if asked is not None and not record.problem:
            found = await poll(services.store, record.id, asked, at=record.at)
    rows = receipt_rows(found, record.at)
    shown: dict[str, Any] = {**asdict(record), "missing": found.missing, "busy": found.busy}
    if common.output != "table":
        output.show_record(common.output, {**shown, "answered": rows}, key="id")
        return
    output.show_record("table", shown, key="id", skip=("reason", "problem", "missing", "busy", "kind", "actor"))
    if rows:
        output.write("\n" + receipt_table(rows))


def _signer(services: Services) -> Signer:
    from orchestrator.control.signing import signer_of

    return signer_of(services.settings, place=services.keys.root)
