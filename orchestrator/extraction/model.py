"""Values of extraction: turns, facts, where a record comes from, and the protocol of extractors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import msgspec

from orchestrator.core.durations import from_instant_ms

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from orchestrator.core.durations import Duration
    from orchestrator.memory.model import StoredRecord

Json: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, a list of JSON values, or a dict with str keys."""
EXTRACT: Final = "extract"
"""Name of the skill unless the agent gives another."""
PROVENANCE: Final = "provenance"
"""Field of `Record.meta` that has the provenance."""


@dataclass(frozen=True, slots=True)
class TurnMessage:
    """A message of a turn.

    Attributes:
        id: its id in the chat.
        number: its number in the chat.
        role: `role` of the message, else its `type`; empty if it has neither.
        text: its text; empty for a message without one, as a tool call.
        subject: person that it is about, or None.
        at: time of its first storing.
        data: the whole message.
    """

    id: str
    number: int
    role: str
    text: str
    subject: str | None
    at: datetime
    data: Json


@dataclass(frozen=True, slots=True)
class Turn:
    """The messages of one turn of a chat, or those of them that are in the range of the task.

    Attributes:
        id: `turn` of its messages; None where they have none, and a turn begins with each message of the user.
        messages: its messages, oldest first.
    """

    id: str | None
    messages: tuple[TurnMessage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A statement that an extractor has found.

    Attributes:
        kind: kind of the record.
        content: JSON value, the content of the record.
        messages: ids of the messages that say so, at least one.
        key: what the fact is about, as `drink`. A newer fact of the same kind, key and person supersedes it; without a
            person, one of the same session does. None: it stands beside the others.
        importance: importance of the record.
        confidence: how sure the extractor is, 0 to 1; None if it does not know.
        rule: what in the extractor has found it, or None.
        ttl: retention of the record, seconds or timedelta. None: that of the tier.
    """

    kind: str
    content: Json
    messages: Sequence[str]
    key: str | None = None
    importance: float = 0.5
    confidence: float | None = None
    rule: str | None = None
    ttl: Duration | None = None


class Extractor(Protocol):
    """Finds facts in the turns of a chat.

    A task calls it. If it raises, the task is retried, and becomes a dead letter in the end. After a crash, a further
    attempt may call it again with the same messages. Stored records stay then as they are: of two facts at the same
    place among those of a message, the first one counts.
    """

    @property
    def name(self) -> str:
        """Name, which the records have."""

    @property
    def version(self) -> str:
        """Version, which the records have. Another version finds facts of its own."""

    async def extract(self, turns: Sequence[Turn]) -> Sequence[Fact]:
        """Return the facts in some turns, oldest first."""


class Provenance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Origin of an extracted record; `meta["provenance"]` of the record has it as JSON.

    Attributes:
        session: session of the chat.
        source: source of the chat.
        messages: ids of the messages.
        numbers: their numbers in the chat.
        at_ms: time of the last of them, Unix ms.
        place: place among the facts whose last message is the same, from 0.
        extractor: name of the extractor.
        version: version of the extractor.
        key: what the fact is about; a newer fact of the same key supersedes it.
        confidence: how sure the extractor was, 0 to 1.
        rule: what in the extractor has found it.
    """

    session: str
    source: str
    messages: tuple[str, ...]
    numbers: tuple[int, ...]
    at_ms: int
    place: int
    extractor: str
    version: str
    key: str | None = None
    confidence: float | None = None
    rule: str | None = None

    @property
    def at(self) -> datetime:
        """Time of the last message."""
        return from_instant_ms(self.at_ms)

    @property
    def order(self) -> tuple[int, str, str, int, int]:
        """Order of facts: by the time of their messages, then by their place."""
        return self.at_ms, self.session, self.source, self.numbers[-1], self.place

    @classmethod
    def of(cls, record: StoredRecord) -> Provenance | None:
        """Return where a record comes from; None for one that was not extracted."""
        try:
            return msgspec.convert(record.meta.get(PROVENANCE), cls)
        except msgspec.ValidationError:
            return None


@dataclass(frozen=True, slots=True)
class Extraction:
    """Result of a task that extracts.

    Attributes:
        session: session of the chat.
        source: source of the chat.
        after: number of the last message before the range.
        upto: number of the last message of the range.
        read: number of messages that the extractor got.
        missed: number of messages that the chat no longer held: trimmed, expired, cleared, popped or erased before.
        records: number of stored records.
        repeated: number of records that were there, because an earlier attempt has stored them.
        superseded: number of records that these replace.
        erased: number of facts that were not stored, because their person was erased a moment ago.
        refused: number of facts that were not stored, because their messages are about several people.
    """

    session: str
    source: str
    after: int
    upto: int
    read: int = 0
    missed: int = 0
    records: int = 0
    repeated: int = 0
    superseded: int = 0
    erased: int = 0
    refused: int = 0
