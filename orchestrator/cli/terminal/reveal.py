"""The option that shows the data of redacted skills."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.parsing import option

if TYPE_CHECKING:
    from orchestrator.services import Services

Reveal: TypeAlias = Annotated[bool, option("--reveal", help="Show the data of a redacted skill; recorded first.")]


async def may_show(services: Services, task: str, skill: str, *, reveal: bool) -> bool:
    """Return whether the data of a task may be shown; record first who sees that of a redacted skill.

    Raises:
        CommandAborted: it could not be recorded.
    """
    from orchestrator.cli.terminal.failures import CommandAborted
    from orchestrator.client.action_records import record_tasks
    from orchestrator.views.redaction import is_redacted

    if not await is_redacted(services, skill):
        return True
    if not reveal:
        output.hint(
            f"the data of skill {skill} is redacted; --reveal shows it, and `orc control list` then has your name"
        )
        return False
    if problem := await record_tasks(services, "reveal", [task], reason="", actor=None):
        raise CommandAborted(f"the data is not shown, because that could not be recorded: {problem}")
    return True
