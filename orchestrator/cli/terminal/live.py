"""Follows a task: a line per event on standard output, and on a terminal a progress bar below them."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from orchestrator.cli.terminal import output
from orchestrator.core.redaction import hidden_value

if TYPE_CHECKING:
    from orchestrator.cli.terminal.options import Form
    from orchestrator.client.handle import TaskHandle
    from orchestrator.tasks.model import Progress, TaskEvent

BAR_CELLS: Final = 24
_ERASE: Final = "\r\x1b[K"


async def follow(handle: TaskHandle[Any], after: str | None, form: Form, *, show_data: bool = True) -> TaskEvent | None:
    """Print the events of a task until its end and return the last one, or None if no event follows `after`.

    Args:
        handle: of the task.
        after: id of the event before the first one.
        form: of the lines.
        show_data: print the output of the handler, else its sizes.

    Raises:
        InvalidInput: `after` is not an event id.
        NotFound: the task does not exist.
    """
    rows: list[dict[str, Any]] = []
    last = None
    bar = _Bar(shown=form == "table" and output.is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb")
    try:
        async with aclosing(handle.events(after=after)) as events:
            async for last in events:
                bar.erase()
                event = last if show_data else _without_data(last)
                match form:
                    case "table":
                        if event.progress is None or not bar.shown:
                            output.write(_line(event))
                        bar.draw(event)
                    case "jsonl":
                        output.write(output.json_text(_row(event)))
                    case "id":
                        output.write(f"{event.id}\n")
                    case "json":
                        rows.append(_row(event))
    finally:
        bar.erase()
        if form == "json":
            output.write(output.json_text({"items": rows}, indent=True))
    return last


def _without_data(event: TaskEvent) -> TaskEvent:
    """Return the event with the size of the output in its place."""
    if event.kind != "output":
        return event
    return replace(event, data=hidden_value(len(bytes(output.user_json(event.data)))))


class _Bar:
    """Progress bar in the last line of the terminal; it is erased while another line is printed."""

    def __init__(self, *, shown: bool) -> None:
        self.shown = shown
        self._text = ""

    def draw(self, event: TaskEvent) -> None:
        """Draw the latest progress of the current attempt."""
        if event.progress is not None:
            self._text = _bar(event.progress)
        elif event.kind != "output":
            self._text = ""
        if self.shown and self._text:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(output.clean(self._text[:width]))
            sys.stderr.flush()

    def erase(self) -> None:
        """Erase the bar."""
        if self.shown and self._text:
            sys.stderr.write(_ERASE)
            sys.stderr.flush()


def _bar(progress: Progress) -> str:
    if not progress.total:
        return _amounts(progress)
    share = min(1.0, progress.done / progress.total)
    full = round(share * BAR_CELLS)
    return f"{'█' * full}{'░' * (BAR_CELLS - full)} {share:4.0%}  {_amounts(progress)}"


def _amounts(progress: Progress) -> str:
    of = "" if progress.total is None else f" of {progress.total:g}"
    message = f"  {output.clean(progress.message)}" if progress.message else ""
    return f"{progress.done:g}{of}{message}"


def _line(event: TaskEvent) -> str:
    return f"{output.clock(event.at)}  {output.state(event.kind.ljust(10))}  {_detail(event)}".rstrip() + "\n"


def _detail(event: TaskEvent) -> str:
    if event.progress is not None:
        return _amounts(event.progress)
    if event.kind == "output":
        if isinstance(event.data, str):
            return output.clean(event.data)
        return output.json_text(output.user_json(event.data)).rstrip()
    if event.kind == "answered" or (event.kind == "asked" and event.data is not None):
        return f"{output.clean(event.reason)}: {output.json_text(output.user_json(event.data)).rstrip()}"
    if event.agent is not None:
        attempt = f", attempt {event.attempt}" if event.attempt > 1 else ""
        return f"to {output.clean(event.agent)}{attempt}"
    return output.clean(event.reason)


def _row(event: TaskEvent) -> dict[str, Any]:
    row: dict[str, Any] = {"id": event.id, "kind": event.kind, "attempt": event.attempt, "at": event.at}
    if event.progress is not None:
        row["progress"] = event.progress
    elif event.kind == "output":
        row |= {"number": event.number, "data": output.user_json(event.data)}
    elif event.kind in {"asked", "answered", "unanswered"}:
        told = {"asked": ("question", "options"), "answered": ("actor", "answer")}.get(event.kind)
        row["number"] = event.number
        if told is not None:
            row |= {told[0]: event.reason, told[1]: output.user_json(event.data)}
    elif event.agent is not None:
        row["agent"] = event.agent
    elif event.reason:
        row["reason"] = event.reason
    return row
