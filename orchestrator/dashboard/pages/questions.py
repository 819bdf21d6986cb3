"""Questions of tasks that wait for a person, with their answers as buttons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orchestrator.dashboard.page import page
from orchestrator.views.questions import list_questions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest

SHOWN: Final = 50


@page("/questions", "questions.html")
async def questions(asked: PageRequest) -> Mapping[str, Any]:
    """Read one page of the tasks that wait for an answer."""
    found = await list_questions(asked.services, after=asked.text("after"), limit=SHOWN)
    return {
        "found": found,
        "commands": ["orc tasks list --state awaiting_input", "orc tasks answer TASK ANSWER"],
    }
