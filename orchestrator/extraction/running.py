"""Extracts a range of messages of a chat: the work of one task, which a further attempt continues."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from orchestrator.core.errors import InvalidInput
from orchestrator.extraction.model import Extraction
from orchestrator.extraction.storing import FactStore, StoredFacts
from orchestrator.extraction.turns import group_turns, read_batch, read_beginning

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestrator.chat.chat import Chat
    from orchestrator.chat.model import StoredMessage
    from orchestrator.embedding.model import Embedder
    from orchestrator.extraction.model import Extractor, Fact
    from orchestrator.memory.memory import Memory
    from orchestrator.memory.model import Tier

READ_AGAIN_AFTER_S: Final = 300.0
"""Time after which the messages of facts are read again: less than the time for which text about an erased person is
refused."""
MAX_BATCH: Final = 500


class ExtractingAttempt(Protocol):
    """The attempt of a task that extracts; a `TaskContext` is one."""

    @property
    def task_id(self) -> str:
        """Id of the task."""

    @property
    def agent(self) -> str:
        """Name of the agent."""

    @property
    def chat(self) -> Chat:
        """The messages of the session."""

    @property
    def memory(self) -> Memory:
        """The memory of the agent."""

    async def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Store the progress."""

    async def once(self, name: str, do: Callable[..., Any], *args: Any) -> Any:
        """Call `do` once per task and keep its result with the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeExtraction:
    """Extracts ranges of chats with one extractor.

    Attributes:
        extractor: finds the facts.
        skill: name of the skill.
        tier: tier of new records.
        batch: maximum number of messages that the extractor gets at once.
        embedder: makes the vectors of the records; None: they have none.
    """

    extractor: Extractor
    skill: str
    tier: Tier
    batch: int
    embedder: Embedder | None = None

    async def run(
        self, attempt: ExtractingAttempt, *, source: str, after: int, upto: int, subject: str | None
    ) -> Extraction:
        """Extract the messages of a range that no task of the skill has extracted yet.

        After each batch, the chat keeps how far it has been extracted, and the task its counts.

        Args:
            attempt: the attempt, whose task belongs to the session.
            source: source of the chat.
            after: number of the last message before the range.
            upto: number of the last message of the range.
            subject: person that messages are about which name none.
        """
        chat, memory = attempt.chat.source(source), attempt.memory
        if self.embedder is not None:
            memory = memory.with_embedder(self.embedder)
        by = note_name(attempt.agent, self.skill)
        facts = FactStore(
            memory=memory,
            tier=self.tier,
            extractor=self.extractor,
            session=chat.session,
            source=source,
            subject=subject,
        )
        head = await chat.head()
        done = min(upto, max(after, head.extracted.get(by, 0)))
        # What earlier attempts have counted up to here.
        found = await _keep(attempt, Extraction(chat.session, source, done, upto), done)
        while done < upto:
            first, last = max(done, min(head.base, upto)), min(upto, head.seq)
            messages, reached = await read_batch(chat, first, last, self.batch) if first < last else ([], upto)
            stored = await self._store(attempt, facts, messages) if messages else StoredFacts()
            counted = {name: getattr(found, name) + count for name, count in asdict(stored).items()}
            missed = reached - done - len(messages)
            found = replace(found, **counted, read=found.read + len(messages), missed=found.missed + missed)
            found, done = await _keep(attempt, found, reached), reached
            # Messages with a higher revision were not there when the others were read.
            await chat.note_extracted(by, upto=done, rev=head.rev)
            await attempt.progress(done - after, upto - after)
            head = await chat.head()
        return found

    async def _store(
        self, attempt: ExtractingAttempt, facts: FactStore, messages: Sequence[StoredMessage]
    ) -> StoredFacts:
        turns, chat = group_turns(messages), attempt.chat.source(facts.source)
        # The person may be named in the part of the turn that an earlier batch had.
        named = any(message.subject for message in turns[0].messages)
        earlier = [] if named else await read_beginning(chat, messages[0])
        began_s = time.monotonic()
        found = list(await self.extractor.extract(turns))
        if time.monotonic() - began_s >= READ_AGAIN_AFTER_S:
            found = await self._still_said(chat, found, messages)
        return await facts.store(found, messages, turns, op_id=attempt.task_id, earlier=earlier)

    @staticmethod
    async def _still_said(chat: Chat, found: Sequence[Fact], messages: Sequence[StoredMessage]) -> list[Fact]:
        """Leave out facts whose messages the chat no longer holds: an erasure may have ended meanwhile."""
        last = messages[-1].number
        held = {message.id for message in await chat.page(before=last + 1, n=last - messages[0].number + 1)}
        return [fact for fact in found if held.issuperset(fact.messages)]


async def _keep(attempt: ExtractingAttempt, found: Extraction, upto: int) -> Extraction:
    """Keep the counts up to a message with the task, and return those that are kept; they have no text."""
    return Extraction(**await attempt.once(f"up to {upto}", asdict, found))


def note_name(agent: str, skill: str) -> str:
    """Return the name by which a chat notes how far a skill has extracted it."""
    return f"{agent}/{skill}"


def check_batch(batch: Any) -> int:
    """Return the maximum number of messages that an extractor gets at once.

    Raises:
        InvalidInput: not a whole number from 1 to 500.
    """
    if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= MAX_BATCH:
        raise InvalidInput(f"batch must be a whole number from 1 to {MAX_BATCH}, not {batch!r:.80}")
    return batch
