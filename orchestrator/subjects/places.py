"""Notes where text about a person is written, before it is written."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Literal
from weakref import WeakKeyDictionary

from orchestrator.core.errors import SubjectErased
from orchestrator.core.ids import decode_foreign, encode_foreign
from orchestrator.core.reading import read_text
from orchestrator.store.keys import PLACES, ScopeKeys, scope_words
from orchestrator.subjects import scripts
from orchestrator.subjects.scripts import PlaceRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from orchestrator.core.settings import Settings
    from orchestrator.store.scoped import ScopedStore
    from orchestrator.store.store import Store

REFUSED_FOR_S: Final = 1200.0
"""Time for which text about an erased person is refused. It exceeds all times for which a note is taken for known."""
_KNOWN_FOR_S: Final = 300.0
_MOST_KNOWN: Final = 10_000
_PAGE: Final = 500

PlaceKind = Literal["agent", "user", "domain", "global", "chat", "session", "tasks"]


@dataclass(frozen=True, slots=True)
class Place:
    """A place that may hold text about a person.

    Attributes:
        kind: `agent`, `user`, `domain`, `global`: records in the memory of that scope. `chat`: messages of a chat.
            `session`: a session as a whole. `tasks`: the tasks of a session in a pool.
        id: of the scope.
        part: source of the chat, or the pool of the tasks.
    """

    kind: PlaceKind
    id: str
    part: str = ""

    @classmethod
    def of_memory(cls, keys: ScopeKeys) -> Place:
        """Return the place of records in the memory of a scope."""
        return cls(keys.kind, keys.id)  # type: ignore[arg-type]

    @property
    def words(self) -> str:
        """The place for people."""
        match self.kind:
            case "chat":
                return f"chat {self.part!r} of session {self.id!r}"
            case "tasks":
                return f"tasks of session {self.id!r} in pool {self.part}"
        return scope_words(self.kind, self.id)

    @property
    def text(self) -> str:
        """The place as Redis stores it."""
        part = encode_foreign("part", self.part) if self.part else ""
        return f"{self.kind} {encode_foreign(self.kind, self.id)} {part}"

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read a stored place."""
        kind, id_, part = text.split(" ")
        return cls(kind, decode_foreign(id_), decode_foreign(part) if part else "")  # type: ignore[arg-type]


def digest_of(prefix: str, subject: str) -> str:
    """Return a hash of a person's id that differs between prefixes; keys and records have it in place of the id."""
    encode_foreign("subject", subject)
    return sha256(f"{prefix}\0{subject}".encode()).hexdigest()[:32]


def subject_keys(prefix: str, subject: str) -> ScopeKeys:
    """Return the keys of a person.

    Raises:
        InvalidInput: not text of 1 to 256 bytes.
    """
    return ScopeKeys(prefix, "subject", digest_of(prefix, subject))


_known_of: WeakKeyDictionary[Store, dict[tuple[str, str, Place], tuple[float, float]]] = WeakKeyDictionary()
"""Places that a process has noted with a store, with the time of the note and of its end, by prefix and person."""


@asynccontextmanager
async def noted(scope: ScopedStore, place: Place, subjects: Iterable[str | None], keep_s: float) -> AsyncIterator[None]:
    """Note a place of people; the block then writes the text.

    A process knows for some minutes which places it has noted, so that most writes send no note.

    Args:
        scope: scope of the text.
        place: where the text is written.
        subjects: the people; None is left out.
        keep_s: longest time for which the place may hold the text.

    Raises:
        SubjectErased: a person was erased a moment ago; inside, when Redis refused the text.
        InvalidInput, StoreError: not an id; no reply.
    """
    people = list(dict.fromkeys(subject for subject in subjects if subject is not None))
    if not people:
        yield
        return
    began_s = time.monotonic()
    await _note_unknown(scope, place, people, keep_s)
    known, prefix = _known_of[scope.store], scope.keys.prefix
    try:
        yield
    except SubjectErased:
        for subject in people:
            known.pop((prefix, subject, place), None)
        raise
    # A process that stood still may have written after a whole erasure. Noted again, the text can be found.
    if time.monotonic() - began_s > _KNOWN_FOR_S:
        known.clear()
        await _note_unknown(scope, place, people, keep_s)


async def _note_unknown(scope: ScopedStore, place: Place, subjects: list[str], keep_s: float) -> None:
    known, prefix, now_s = _known_of.setdefault(scope.store, {}), scope.keys.prefix, time.monotonic()
    for subject in subjects:
        noted_s, until_s = known.get((prefix, subject, place), (0.0, 0.0))
        if until_s >= now_s + keep_s and now_s - noted_s < _KNOWN_FOR_S:
            continue
        kept_s = keep_s + _KNOWN_FOR_S
        await note(scope.store, scope.settings, subject, place, kept_s)
        if len(known) >= _MOST_KNOWN:
            known.clear()
        known[prefix, subject, place] = now_s, now_s + kept_s


async def note(store: Store, settings: Settings, subject: str, place: Place, keep_s: float) -> None:
    """Note a place of a person.

    Raises:
        SubjectErased: the person was erased a moment ago.
        InvalidInput, StoreError: not an id; no reply.
    """
    call = scripts.note(subject_keys(settings.prefix, subject), rows=[PlaceRow(place.text, round(keep_s * 1000))])
    if await store.call(call, retry_for_s=settings.redis.command_timeout_s) == "erased":
        raise SubjectErased


async def read_places(store: Store, settings: Settings, subject: str, *, beside: int = 0) -> list[Place]:
    """Return up to 500 places of a person and `beside` more, those first that would end first."""
    key = subject_keys(settings.prefix, subject).key(PLACES)

    async def read() -> list[bytes]:
        found: list[bytes] = await store.execute("ZRANGE", key, 0, _PAGE + beside - 1)
        return found

    found = await store.read_with_retry(read, retry_for_s=settings.redis.command_timeout_s)
    return [Place.parse(read_text(text)) for text in found]
