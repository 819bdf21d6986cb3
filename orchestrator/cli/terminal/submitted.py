"""Prints the id of a task that was submitted, and its result when it has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.cli.terminal import output
from orchestrator.core.errors import NotFound, TaskError

if TYPE_CHECKING:
    from orchestrator.cli.terminal.options import Globals
    from orchestrator.cli.terminal.waiting import Ended


def say_submitted(task: str, common: Globals) -> None:
    """Print the id of a task."""
    match common.output:
        case "json" | "jsonl":
            output.write(output.json_text({"id": task}))
        case _:
            # The id alone, so that `ID=$(orc tasks submit …)` works in every form.
            output.hint(f"submitted; `orc tasks wait {task}` waits for it")
            output.write(f"{task}\n")


def tell_end(end: Ended, common: Globals, timeout: str | None) -> int:
    """Print the result of a task, or raise the error of its end."""
    if end.timed_out:
        where = f" ({end.reason})" if end.reason else ""
        raise TimeoutError(
            f"task {end.id} has not ended after {timeout}{where}; wait again with `orc tasks wait {end.id}`"
        )
    if end.state is None:
        raise NotFound(f"task {end.id} {end.reason}")
    result = b"null" if end.result is None else end.result
    if common.output in {"json", "jsonl"}:
        shown = output.raw_json(result) if end.state == "succeeded" else None
        record = {"id": end.id, "state": end.state, "reason": end.reason, "result": shown}
        output.show_record(common.output, record, key="id")
    elif common.output == "id":
        output.write(f"{end.id}\n")
    elif end.state == "succeeded":
        output.write_bytes(output.result_line(result))
    if end.state != "succeeded":
        raise TaskError(end.id, f"is {end.state}: {end.reason}; see `orc tasks show {end.id}`")
    return 0
