"""`orc sessions`: list, show."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.inputs import check_limit
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import Commands, option, positional

commands = Commands("sessions", "orc sessions list", "orc sessions show chat-7")
app = commands.app


@commands.command("list", "orc sessions list", "orc sessions list --limit 20 -o json")
async def list_(*, limit: Annotated[int, option("--limit", metavar="N")] = 50, common: Globals = DEFAULTS) -> None:
    """List the sessions with the latest submit or end of a task.

    Args:
        limit: How many [50].
    """
    from orchestrator.views.families import list_sessions

    check_limit(limit, 10_000)
    async with common.services() as services:
        found = await list_sessions(services, limit=limit)
    columns = ("session", "last_active_at", "tasks", "newest")
    output.show_list(common.output, [asdict(one) for one in found], columns, key="session", empty="no sessions")
    if len(found) == limit:
        output.hint(f"these are the first {limit}; raise --limit for more")


@commands.command("show", "orc sessions show chat-7", "orc sessions show chat-7 -o json")
async def show(
    session: Annotated[str, positional("SESSION", help="Session id.")], /, *, common: Globals = DEFAULTS
) -> None:
    """Show a session: its last activity, and its tasks by state."""
    from orchestrator.views.families import read_session

    async with common.services() as services:
        found = await read_session(services, session)
    output.show_record(common.output, asdict(found), key="session", skip=("dropped",))
    output.hint(f"`orc tasks list --session {session}` lists its tasks")
