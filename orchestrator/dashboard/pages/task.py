"""One task: its state in words, what to do, its attempts, arguments, result and tracebacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orchestrator.dashboard.actions import BUTTONS
from orchestrator.dashboard.page import page
from orchestrator.tasks.selecting import RETRYABLE
from orchestrator.views.tasks import read_task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest

PREVIEW_CHARS: Final = 4096
ERRORS: Final = 5


@page("/tasks/{id}", "task.html")
async def task(asked: PageRequest) -> Mapping[str, Any]:
    """Read everything about one task; of large values, the beginning."""
    info = await read_task(asked.services, asked.path["id"])
    final = info.state.final
    buttons = ("delete", *(("retry",) if info.state in RETRYABLE else ())) if final else ("cancel",)
    return {
        "task": info,
        "buttons": {name: BUTTONS[name].danger for name in buttons},
        "question": next((one for one in info.questions if one.open), None),
        "said": asked.text("said"),
        "args": preview(info.args),
        "args_size": info.stored_args.size if info.stored_args else len(info.args),
        "result": None if info.result is None else preview(info.result),
        "result_size": info.stored_result.size if info.stored_result else len(info.result or b""),
        "errors": [error[: PREVIEW_CHARS * 4] for error in info.errors[::-1][:ERRORS]],
    }


def preview(data: bytes) -> str:
    """Return the beginning of a value."""
    return data[: PREVIEW_CHARS * 4].decode(errors="replace")[:PREVIEW_CHARS]
