"""`orc events`: the tasks that ended."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.inputs import check_limit
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import Commands, option
from orchestrator.core.errors import InvalidInput

if TYPE_CHECKING:
    from orchestrator.tasks.ends import EndedTask

Outcome = Literal["succeeded", "dead", "cancelled", "expired"]
COLUMNS: Final = ("ended_at", "id", "outcome", "skill", "agent", "session", "error")

commands = Commands(
    "events",
    "orc events --outcome dead",
    "orc events --agent editor --limit 200 -o json",
    "orc events --follow -o jsonl",
)


@commands.itself
async def events(
    *,
    outcome: Annotated[tuple[Outcome, ...], option("--outcome", metavar="STATE", many=True)] = (),
    agent: Annotated[str | None, option("--agent", metavar="NAME")] = None,
    skill: Annotated[str | None, option("--skill", metavar="NAME")] = None,
    session: Annotated[str | None, option("--session", metavar="SESSION")] = None,
    limit: Annotated[int, option("--limit", metavar="N")] = 50,
    follow: Annotated[bool, option("--follow", "-f")] = False,
    after: Annotated[str | None, option("--after", metavar="PLACE")] = None,
    common: Globals = DEFAULTS,
) -> None:
    """List the tasks that ended, newest first; with --follow print tasks as they end.

    Args:
        outcome: Only this final state; may be repeated.
        agent: Only tasks that this agent had last.
        skill: Only tasks of this skill.
        session: Only tasks of this session.
        limit: How many [50].
        follow: Wait for more ends until Ctrl-C, oldest first.
        after: With --follow, continue after this place; -o json and -o jsonl print places.
    """
    check_limit(limit, 20_000)
    if after is not None and not follow:
        raise InvalidInput("--after needs --follow")
    if follow and common.output == "json":
        raise InvalidInput("--follow prints no single document; use -o jsonl")
    from orchestrator.tasks.ends import EndFilter
    from orchestrator.tasks.model import TaskState
    from orchestrator.views.ends import list_ended, watch_ended

    only = EndFilter(outcomes=[TaskState(one) for one in outcome], agent=agent, skill=skill, session=session)
    async with common.services() as services:
        if follow:
            async with aclosing(watch_ended(services, only, after=after)) as ends:
                async for end in ends:
                    _print(end, common)
            return
        found = await list_ended(services, only, limit=limit)
    rows = [asdict(end) for end in found]
    output.show_list(common.output, rows, COLUMNS, key="id", empty="no task has ended")
    if len(rows) == limit:
        output.hint(f"these are the first {limit}; raise --limit for more")


def _print(end: EndedTask, common: Globals) -> None:
    row: dict[str, Any] = asdict(end)
    match common.output:
        case "jsonl":
            output.write(output.json_text(row))
        case "id":
            output.write(f"{end.id}\n")
        case _:
            words = [output.clock(end.ended_at), end.id, end.outcome.value]
            named = ("skill", "agent", "session")
            words += [f"{name}={output.clean(str(row[name]))}" for name in named if row[name] is not None]
            output.write(" ".join([*words, *([output.clean(end.error)] if end.error else [])]) + "\n")
