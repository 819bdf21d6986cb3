"""Reads the record of control commands, the receipts of one, and the state of a job."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from orchestrator.agents.queries import leader
from orchestrator.control import records
from orchestrator.control.outcomes import read_progress, read_words
from orchestrator.control.receipts import SUPERVISOR, Receipts, poll
from orchestrator.control.signing import signer_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from orchestrator.client.admin import Sent
    from orchestrator.control.records import ControlPage, ControlRecord
    from orchestrator.control.signing import Signer
    from orchestrator.services import Services

LIMIT: Final = 50
"""Commands that a view returns unless the caller asks for more."""


@dataclass(frozen=True, slots=True)
class CommandView:
    """A control command and its receipts; those of a refused or unreadable one are empty."""

    record: ControlRecord
    receipts: Receipts


@dataclass(frozen=True, slots=True)
class JobState:
    """State of a job.

    Attributes:
        word: `stored` (not begun), `progress`, `done`, `failed` or `refused`.
        detail: of a failure or refusal.
        processed: number of tasks so far, while it is in progress.
        ends: number of tasks by outcome.
        supervised: a supervisor leads, or the job has ended.
    """

    word: str
    detail: str = ""
    processed: int = 0
    ends: Mapping[str, int] = field(default_factory=dict)
    supervised: bool = True

    @property
    def ended(self) -> bool:
        """True if the job goes on no more."""
        return self.word in {"done", "failed", "refused"}


async def list_commands(
    services: Services,
    *,
    actor: str | None = None,
    kind: str | None = None,
    since: datetime | None = None,
    refused: bool = False,
    limit: int = LIMIT,
) -> list[ControlRecord]:
    """Read the newest commands, newest first; refused commands are included.

    Args:
        services: of the pool.
        actor: only commands of this actor.
        kind: only commands of this kind.
        since: only commands from this time on.
        refused: only refused commands.
        limit: at most this many.
    """

    def wanted(record: ControlRecord) -> bool:
        return (
            (actor is None or record.actor == actor)
            and (kind is None or record.kind == kind)
            and (not refused or record.state == "refused")
        )

    return await records.records(services.store, _signer(services), limit=limit, since=since, wanted=wanted)


async def page_commands(
    services: Services,
    *,
    actor: str | None = None,
    kind: str | None = None,
    refused: bool = False,
    before: str | None = None,
    limit: int = LIMIT,
) -> ControlPage:
    """Read those of the `limit` newest commands from before the cursor `before` that match; see `list_commands`."""

    def wanted(record: ControlRecord) -> bool:
        return (
            (actor is None or record.actor == actor)
            and (kind is None or record.kind == kind)
            and (not refused or record.state == "refused")
        )

    return await records.read_page(services.store, _signer(services), before=before, limit=limit, wanted=wanted)


async def read_command(services: Services, id_: str) -> CommandView:
    """Read a command by its id or the id of its entry, with its receipts.

    Raises:
        NotFound: the record has no such command.
    """
    record, command = await records.find(services.store, _signer(services), id_)
    if command is None or record.problem:
        return CommandView(record, Receipts((), ()))
    return CommandView(record, await poll(services.store, record.id, command, at=record.at, signer=_signer(services)))


async def read_job(services: Services, sent: Sent) -> JobState:
    """Read the state of a job according to its receipts."""
    state = job_state(await poll(services.store, sent.id, sent.command, at=sent.at, signer=_signer(services)))
    if state.ended or await leader(services.store) is not None:
        return state
    return replace(state, supervised=False)


def job_state(found: Receipts) -> JobState:
    """Return the state of a job according to its receipts."""
    for receipt in found.answered:
        if receipt.sender == SUPERVISOR and receipt.word == "progress":
            processed, ends = read_progress(receipt.detail)
            return JobState(receipt.word, processed=processed, ends=ends)
        if receipt.sender == SUPERVISOR and receipt.word != "received":
            done = receipt.word == "done"
            return JobState(receipt.word, receipt.detail, ends=read_words(receipt.detail) if done else {})
    return JobState("stored")


async def lacks_secret(services: Services) -> bool:
    """Return whether the pool's commands are signed and this process has no secret, so that its commands are refused.

    The newest command tells; a pool without commands has no answer yet.
    """
    if _signer(services).wanted:
        return False
    newest = await services.store.execute("XREVRANGE", services.keys.control, "+", "-", "COUNT", 1)
    fields = dict(zip(newest[0][1][::2], newest[0][1][1::2], strict=False)) if newest else {}
    return bool(fields.get(b"s", b"").strip())


def _signer(services: Services) -> Signer:
    return signer_of(services.settings, place=services.keys.root)
