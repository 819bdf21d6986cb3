"""Values of erasures."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class ErasureReport:
    """Counts of the removed parts, and what is left.

    Attributes:
        person: hash of the person's id, as the record of the action has it.
        records: records of memory, in both tiers and on their way to long-term storage.
        messages: messages of chats.
        summaries: summaries of chats.
        sessions: sessions that were emptied, because they were assigned to the person.
        tasks: ended tasks of these sessions.
        stored: messages and records in second storage.
        left: what could not be removed, and why. A repeat removes it when the cause is gone.
        command: id of the record of the action; empty if it could not be written.
        unrecorded: why the action was not recorded; empty if it was.
    """

    person: str
    records: int = 0
    messages: int = 0
    summaries: int = 0
    sessions: int = 0
    tasks: int = 0
    stored: int = 0
    left: list[str] = field(default_factory=list)
    command: str = ""
    unrecorded: str = ""
