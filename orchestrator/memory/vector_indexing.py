"""Keeps the vector set of a memory behind its records.

A script that writes a record stores its vector and a note; the client then changes the vector set and removes the note.
Inside the script that change would block the server for a millisecond. If the client dies in between, the next change
of the memory or its upkeep makes the change. No lock guards it: a client that was paused may add a vector that is no
longer that of its record. Its number differs from that in the record's header, so that no search returns it; the
script that removes the note sees the difference, too, and makes a note that the vector has to leave the set again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from orchestrator.core.errors import ServerRefused, StoreError
from orchestrator.core.log import get_logger
from orchestrator.core.reading import read_whole
from orchestrator.locks.model import scope_name
from orchestrator.memory import scripts
from orchestrator.memory.headers import decode_header
from orchestrator.memory.model import TIERS
from orchestrator.store.keys import VECTOR_SET, VECTORS, VECTORS_PENDING
from orchestrator.vectors.encoding import split_stored
from orchestrator.vectors.vector_set import add_command, element_of, hide_command, remove_command, split_element

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.store.calls import Argument
    from orchestrator.store.scoped import ScopedStore

_AT_ONCE: Final = 100
_IN_A_TURN: Final = 25
"""Changes after which another caller of the process has its turn."""
_ROUNDS: Final = 20
GRACE_US: Final = 5_000_000
"""Age of a note about a new vector from which another client than its writer follows it."""
_log = get_logger(__name__)


class NewVector(NamedTuple):
    """A vector that a script has stored, for the vector set. Kind and action are encoded as in keys."""

    id: str
    number: int
    floats: bytes
    kind: str
    action: str
    step: int


class _Change(NamedTuple):
    """A change of the vector set.

    Attributes:
        element: the element, which is also the name of its note.
        change: `add` or `rem`.
    """

    element: bytes
    change: str
    command: Sequence[Argument]


async def index_vectors(
    scope: ScopedStore, new: Sequence[NewVector] = (), *, rounds: int = _ROUNDS, grace_us: int | None = None
) -> int:
    """Make noted changes of the vector set; what Redis does not answer is left for later. Return their number.

    Args:
        scope: of the memory.
        new: vectors that the caller has stored this moment.
        rounds: how often to read up to 100 notes.
        grace_us: age of a note from which this client follows it; `GRACE_US` by default.
    """
    if not (await scope.store.capabilities.get()).vector_sets:
        return 0
    made = 0
    key = scope.keys.key(VECTOR_SET)
    try:
        left = 1
        for first in range(0, len(new), _AT_ONCE):
            changes = [addition(key, vector) for vector in new[first : first + _AT_ONCE]]
            left = await _make(scope, changes)
            made += len(changes)
        for _ in range(rounds):
            changes = await _read(scope, GRACE_US if grace_us is None else grace_us) if left else []
            if not changes:
                break
            left = await _make(scope, changes)
            made += len(changes)
    except StoreError as missed:
        if isinstance(missed, ServerRefused) and scope.store.capabilities.refused(missed):
            return made
        _log.warning("vector_index_behind", scope=scope_name(scope.keys), error=str(missed))
    return made


async def remove_noted(scope: ScopedStore) -> int:
    """Remove all elements from the vector set that a note says have to leave it, and return their number.

    Raises:
        StoreError: Redis did not do it; a repeat goes on.
    """
    pending = scope.keys.key(VECTORS_PENDING)
    made, cursor = 0, 0
    while True:
        following, flat = await scope.read("HSCAN", pending, cursor, "COUNT", _AT_ONCE)
        noted = [element for element, change in zip(flat[::2], flat[1::2], strict=True) if change == b"rem"]
        for first in range(0, len(noted), _AT_ONCE):
            part = noted[first : first + _AT_ONCE]
            await _make(scope, [_Change(element, "rem", removal(scope, element)) for element in part])
        made += len(noted)
        cursor = read_whole(following)
        if not cursor:
            return made


async def _make(scope: ScopedStore, changes: Sequence[_Change]) -> int:
    """Make changes of the set, remove their notes, and return how many notes are left.

    Raises:
        StoreError: Redis refused one, whose note stays; the others are made.
    """
    left, lacking, refusals = await _send(scope, changes)
    if lacking:
        again = [
            change._replace(command=[part for part in change.command if part != "CAS"])
            for change in changes
            if change.element in lacking
        ]
        left, _, more = await _send(scope, again)
        refusals += more
    for refusal in refusals:
        raise refusal
    return left


async def _send(scope: ScopedStore, changes: Sequence[_Change]) -> tuple[int, list[bytes], list[StoreError]]:
    """Make changes; return how many notes are left, the vectors that the set lacks all the same, and the refusals."""
    replies: list[object] = []
    for first in range(0, len(changes), _IN_A_TURN):
        part = [change.command for change in changes[first : first + _IN_A_TURN]]
        replies += await scope.store.pipeline_in_turn(part)
    made = [
        (change.element, change.change)
        for change, reply in zip(changes, replies, strict=True)
        if not isinstance(reply, StoreError)
    ]
    settled = await scope.call(scripts.settle_vectors(scope.keys, rows=made))
    return settled.left, settled.lacking, [reply for reply in replies if isinstance(reply, StoreError)]


async def _read(scope: ScopedStore, grace_us: int) -> list[_Change]:
    """Return some noted changes that are due."""
    key, pending = scope.keys.key(VECTOR_SET), scope.keys.key(VECTORS_PENDING)
    flat, (seconds, micros) = await scope.read_many([("HRANDFIELD", pending, _AT_ONCE, "WITHVALUES"), ("TIME",)])
    due_us = read_whole(seconds) * 1_000_000 + read_whole(micros) - grace_us
    notes = list(zip(flat[::2], flat[1::2], strict=True))
    added = [element for element, change in notes if change == b"add" and split_element(element)[0] <= due_us]
    removed = [element for element, change in notes if change != b"add"]
    vectors = await read_vectors(scope, [split_element(element)[1] for element in added])
    changes = []
    for element, vector in zip(added, vectors, strict=True):
        if vector is not None and vector.number == split_element(element)[0]:
            changes.append(addition(key, vector))
        else:
            removed.append(element)
    return changes + [_Change(element, "rem", removal(scope, element)) for element in removed]


async def read_vectors(scope: ScopedStore, ids: Sequence[str]) -> list[NewVector | None]:
    """Return the stored vectors of up to 500 records, None for each that has none."""
    if not ids:
        return []
    keys = scope.keys
    commands: list[Sequence[Argument]] = [("MULTI",), ("HMGET", keys.key(VECTORS), *ids)]
    commands += [("HMGET", keys.key(keys.tier_part(tier, "hdr")), *ids) for tier in TIERS]
    stored, *headers = (await scope.read_many([*commands, ("EXEC",)]))[-1]
    found: list[NewVector | None] = []
    for id_, value, *packed in zip(ids, stored, *headers, strict=True):
        vector = None
        for header in [decode_header(each) for each in packed if each is not None]:
            if value is not None and split_stored(value).number == header.vector:
                number, floats = split_stored(value)
                vector = NewVector(id_, number, floats, header.kind, header.action, int(header.score // 1))
        found.append(vector)
    return found


def removal(scope: ScopedStore, element: str | bytes) -> Sequence[Argument]:
    """Return the command by which an element leaves the vector set, as `memory.vector_delete` says."""
    hides = scope.settings.memory.vector_delete == "mark"
    return (hide_command if hides else remove_command)(scope.keys.key(VECTOR_SET), element)


def addition(key: str, vector: NewVector) -> _Change:
    """Return the change that adds a vector."""
    element = element_of(vector.number, vector.id)
    command = add_command(
        key, vector.floats, element, kind=vector.kind, action=vector.action, step=vector.step
    )  # fmt: skip
    return _Change(element.encode(), "add", command)
