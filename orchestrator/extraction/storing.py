"""Stores facts as records of a memory, each once, and supersedes the facts that they replace."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
from anyio import lowlevel

from orchestrator.core.errors import InvalidInput, NotFound, SubjectErased
from orchestrator.core.ids import check_text
from orchestrator.core.payload import encode_json
from orchestrator.extraction.model import PROVENANCE, Fact, Provenance
from orchestrator.memory.model import MAX_LIMIT, MemoryQuery, Record
from orchestrator.memory.writer import MAX_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from orchestrator.chat.model import StoredMessage
    from orchestrator.extraction.model import Extractor, Turn
    from orchestrator.memory.memory import Memory
    from orchestrator.memory.model import StoredRecord, Tier

_KEY_BYTES: Final = 128
_ACTION_BYTES: Final = 256
_TRIES: Final = 5
_NO_LIMITS: Final = {"max_bytes": 2**62, "max_depth": 1000}


@dataclass(slots=True)
class StoredFacts:
    """Counts of `FactStore.store`; see `Extraction`."""

    records: int = 0
    repeated: int = 0
    superseded: int = 0
    erased: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FactStore:
    """Stores the facts of one chat in one memory.

    Attributes:
        memory: the memory.
        tier: tier of new records.
        extractor: what finds the facts.
        session: session of the chat.
        source: source of the chat.
        subject: person that messages are about which name none, in turns that name none.
    """

    memory: Memory
    tier: Tier
    extractor: Extractor
    session: str
    source: str
    subject: str | None = None

    async def store(
        self,
        facts: Sequence[Fact],
        messages: Sequence[StoredMessage],
        turns: Sequence[Turn],
        *,
        op_id: str,
        earlier: Sequence[StoredMessage] = (),
    ) -> StoredFacts:
        """Store the facts of a batch of messages. A repeat stores none of them twice.

        Args:
            facts: the facts.
            messages: the messages of the batch.
            turns: the same messages by turns.
            op_id: id of the task.
            earlier: messages of the first turn before these, which tell whom it is about.

        Raises:
            InvalidInput: a fact that cannot be stored; those before it may be stored.
            MemoryFull, Fenced, LockLost, Occupied, StoreError: as `Memory.store`; a repeat goes on.
        """
        counts, by_person = StoredFacts(), dict[str | None, list[Record]]()
        for number, record in enumerate(self._make_records(facts, messages, turns, earlier, counts)):
            by_person.setdefault(record.subject, []).append(record)
            if number % MAX_ROWS == 0:
                # Thousands of facts must not hold up the other tasks of the worker.
                await lowlevel.checkpoint()
        for person, records in by_person.items():
            for first in range(0, len(records), MAX_ROWS):
                await self._store_part(records[first : first + MAX_ROWS], op_id, counts)
            keyed = dict.fromkeys((record.kind, record.action) for record in records if record.action is not None)
            for kind, action in keyed:
                counts.superseded += await self._supersede_older(kind, action, person)
        return counts

    async def _store_part(self, records: Sequence[Record], op_id: str, counts: StoredFacts) -> None:
        op = f"{op_id}/{_digest([record.id for record in records])}"
        try:
            changes = await self.memory.store_many(records, tier=self.tier, op_id=op)
        except SubjectErased:
            counts.erased += len(records)
            return
        except InvalidInput as invalid:
            raise InvalidInput(f"a fact of extractor {self.extractor.name!r} cannot be stored: {invalid}") from None
        repeated = sum(change.duplicate or change.older for change in changes)
        counts.repeated += repeated
        counts.records += len(changes) - repeated

    def _make_records(
        self,
        facts: Sequence[Fact],
        messages: Sequence[StoredMessage],
        turns: Sequence[Turn],
        earlier: Sequence[StoredMessage],
        counts: StoredFacts,
    ) -> Iterator[Record]:
        by_id = {message.id: message for message in messages}
        # The text of a message is part of the ids of its facts, because a popped message may give its id away.
        texts = dict[str, str]()
        turn_of = {message.id: turn for turn in turns for message in turn.messages}
        places = Counter[str]()
        for fact in facts:
            self._check(fact, by_id)
            said = sorted([by_id[id_] for id_ in dict.fromkeys(fact.messages)], key=lambda message: message.number)
            place = places[said[-1].id]
            places[said[-1].id] += 1
            people = {message.subject for message in said} - {None}
            if not people:
                spoken_in = [turn_of[message.id] for message in said]
                people = {other.subject for turn in spoken_in for other in turn.messages} - {None}
                people |= {other.subject for other in earlier if turns[0] in spoken_in} - {None}
            if len(people) > 1:
                counts.refused += 1
                continue
            last = said[-1]
            if last.id not in texts:
                texts[last.id] = _digest([encode_json("message", last.data, **_NO_LIMITS)])
            yield self._make_record(fact, said, texts[last.id], place, people.pop() if people else self.subject)

    def _make_record(
        self, fact: Fact, said: Sequence[StoredMessage], text: str, place: int, subject: str | None
    ) -> Record:
        extractor, last = self.extractor, said[-1]
        provenance = Provenance(
            session=self.session,
            source=self.source,
            messages=tuple([message.id for message in said]),
            numbers=tuple([message.number for message in said]),
            at_ms=last.at_ms,
            place=place,
            extractor=extractor.name,
            version=extractor.version,
            key=fact.key,
            confidence=fact.confidence,
            rule=fact.rule,
        )
        names = [extractor.name, extractor.version, self.session, self.source, last.id, text, str(place)]
        return Record(
            id=f"x-{_digest(names)}",
            # So that records of several chats are in the order in which things were said.
            step=last.at_ms // 1000,
            kind=fact.kind,
            content=fact.content,
            importance=fact.importance,
            action=None if fact.key is None else self._action(fact.key, subject),
            subject=subject,
            # A record of this id stays as it is, also a superseded one.
            version=1,
            ttl=fact.ttl,
            # Through JSON, which makes lists of tuples: values of plain types are encoded fast.
            meta={PROVENANCE: msgspec.json.decode(msgspec.json.encode(provenance))},
        )

    def _action(self, key: str, subject: str | None) -> str:
        """Return the action by which the facts of a key are found: those of a person, or those of the session."""
        if subject is not None:
            return key
        action = f"{key} of {self.session}"
        return action if len(action.encode()) <= _ACTION_BYTES else f"{key} of {_digest([self.session])}"

    def _check(self, fact: Any, by_id: Mapping[str, StoredMessage]) -> None:
        name = f"extractor {self.extractor.name!r}"
        if not isinstance(fact, Fact):
            raise InvalidInput(
                f"{name} must return facts, as Fact(kind=..., content=..., messages=...), not {fact!r:.80}"
            )
        given: Any = fact.messages
        named = isinstance(given, Collection) and not isinstance(given, str) and bool(given)
        if not named or not all(isinstance(id_, str) and id_ in by_id for id_ in given):
            raise InvalidInput(f"{name} must name messages of the turns by their ids, not {given!r:.80}")
        if fact.key is not None and len(check_text("key", fact.key).encode()) > _KEY_BYTES:
            raise InvalidInput(f"the key of a fact of {name} has more than {_KEY_BYTES} bytes")
        confidence: Any = fact.confidence
        if confidence is not None and not (isinstance(confidence, int | float) and 0 <= confidence <= 1):
            raise InvalidInput(
                f"the confidence of a fact of {name} must be a number from 0 to 1, not {confidence!r:.80}"
            )

    async def _supersede_older(self, kind: str, action: str, subject: str | None) -> int:
        """Supersede all facts of a key but the newest, and return how many were not superseded before.

        Each writer reads after it has stored, so that the last of concurrent ones sees all facts.
        """
        query = MemoryQuery(kinds=(kind,), actions=(action,), subject=subject, limit=MAX_LIMIT)
        replaced, failures = 0, 0
        while True:
            recalled = await self.memory.query(query)
            found = [(origin, record) for record in recalled if (origin := _keyed(record, subject))]
            if len(found) < 2:
                return replaced
            found.sort(key=lambda each: (each[0].order, each[1].id))
            *older, (_, newest) = found
            try:
                for _, record in older:
                    await self.memory.supersede(record.id, newest.id)
                    replaced += 1
            except (NotFound, InvalidInput):
                # Another writer has superseded the newest meanwhile, or removed one of them.
                failures += 1
                if failures == _TRIES:
                    raise
            else:
                if len(recalled) < MAX_LIMIT:
                    return replaced


def _keyed(record: StoredRecord, subject: str | None) -> Provenance | None:
    """Return the provenance of a fact with a key that is about this person; None for other records."""
    origin = Provenance.of(record)
    return origin if origin is not None and origin.key is not None and record.subject == subject else None


def _digest(names: Sequence[Any]) -> str:
    return hashlib.sha256(repr(list(names)).encode()).hexdigest()[:32]
