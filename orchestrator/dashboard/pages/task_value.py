"""The whole arguments or the whole result of a task, on demand."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from anyio import to_thread

from orchestrator.core.errors import NotFound
from orchestrator.dashboard.page import page
from orchestrator.dashboard.pages.task import WITHOUT_RESULTS, displayed
from orchestrator.views.hidden_keys import mask_keys
from orchestrator.views.task_values import load_whole, read_details

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest
    from orchestrator.services import Services
    from orchestrator.views.task_values import StoredPart, TaskDetails

SHOWN_BYTES: Final = 1 << 20
"""A larger value is a download only."""


class NoValue(NotFound):
    """The task exists, and has no such value to show."""


@page("/tasks/{id}/args", "task_value.html")
async def args(asked: PageRequest) -> Mapping[str, Any]:
    """Read the arguments."""
    return await _value(asked, "args")


@page("/tasks/{id}/result", "task_value.html")
async def result(asked: PageRequest) -> Mapping[str, Any]:
    """Read the result."""
    return await _value(asked, "result")


async def _value(asked: PageRequest, part: str) -> Mapping[str, Any]:
    id_ = asked.path["id"]
    command = f"orc tasks result {id_}" if part == "result" else f"orc tasks show {id_} --load -o json"
    shown = {"id": id_, "part": part, "text": None, "commands": [command], "live": ""}
    details = await read_details(asked.services, id_)
    value = details.args if part == "args" else details.result
    if value is not None and details.redacted:
        text, note = await displayed(asked, details, value)
        return {**shown, "size": value.size, "text": text, "note": note, "download": False}
    try:
        value = wanted(details, part)
    except NoValue as missing:
        return {**shown, "size": None, "note": str(missing), "download": False}
    whole: str | None = None
    note = "It is too large for a page; download it."
    if value.size <= SHOWN_BYTES:
        note = WITHOUT_RESULTS if part == "args" and details.takes_results else ""
        whole = mask_keys((await load_whole(asked.services, value)).decode(errors="replace"))
    return {**shown, "size": value.size, "text": whole, "note": note, "download": True}


def wanted(details: TaskDetails, part: str) -> StoredPart:
    """Return where a value is.

    Raises:
        NoValue: the task does not have it, or its skill is redacted.
    """
    id_, value = details.info.id, {"args": details.args, "result": details.result}.get(part)
    if value is None:
        raise NoValue(f"task {id_} has no {part} now: a success brings it or drops it")
    if details.redacted:
        raise NoValue(
            f"the data of skill {details.info.skill} is redacted; `orc tasks show {id_} --reveal` shows it, and "
            "records who did"
        )
    return value


async def masked_bytes(services: Services, value: StoredPart) -> bytes:
    """Return a whole value with masked secrets. Works in a thread, because a value may have many megabytes."""
    data = await load_whole(services, value)
    return await to_thread.run_sync(partial(_masked, data))


def _masked(data: bytes) -> bytes:
    # One character for each byte: the structure of JSON is ASCII, and all other bytes come back as they were.
    return mask_keys(data.decode("latin-1")).encode("latin-1")
