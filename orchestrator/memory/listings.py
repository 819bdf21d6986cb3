"""Makes the changes of indices of simulations that changes of a memory have noted.

The indices are in another slot than the memory, so that no script can change both. The script that writes a record also
writes a note; the client then changes the indices and removes the note. If it dies in between, the next change of the
memory, a sweep or the repair walk does it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from orchestrator.core.errors import StoreError
from orchestrator.core.ids import decode_foreign
from orchestrator.core.log import get_logger
from orchestrator.core.reading import msgpack_reader, read_text
from orchestrator.locks.model import scope_name
from orchestrator.memory import scripts
from orchestrator.memory.headers import decode_header
from orchestrator.simulations.scripts import ListingRow
from orchestrator.simulations.simulation import make_listings, simulation_scope
from orchestrator.store.keys import PENDING, ScopeKeys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.store.calls import Argument
    from orchestrator.store.scoped import ScopedStore
    from orchestrator.store.store import Store

_AT_ONCE: Final = 200
_ROUNDS: Final = 10
_log = get_logger(__name__)


class _Note(msgspec.Struct, array_like=True, frozen=True):
    """A change that is still to be made, in the order of `note_listing` in `lua/includes/memory.lua`."""

    number: int
    listed: int
    step: int
    type: str
    cell: str
    x: float
    y: float
    deadline: int


_decode: Final = msgpack_reader(_Note)


async def follow(scope: ScopedStore) -> int:
    """Make noted changes of indices, up to 2000; what Redis does not answer is left for later. Return their number."""
    made = 0
    try:
        for _ in range(_ROUNDS):
            notes = await _read(scope)
            if not notes:
                break
            made += len(notes)
            if await _make(scope, notes) == 0:
                break
    except StoreError as missed:
        _log.warning("simulation_indices_behind", scope=scope_name(scope.keys), error=str(missed))
    return made


async def unlisted_states(store: Store, keys: ScopeKeys, headers: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    """Return the records that an index of their simulation lacks.

    Args:
        store: of the indices.
        keys: of the memory.
        headers: id and header of records.
    """
    wanted: list[tuple[bytes, list[tuple[Argument, ...]]]] = []
    for id_, packed in headers:
        header = decode_header(packed)
        if header.simulation and not header.superseded:
            of = ScopeKeys(keys.prefix, "sim", decode_foreign(header.simulation))
            member = f"{keys.id} {read_text(id_)}"
            commands: list[tuple[Argument, ...]] = [
                ("HEXISTS", of.key("of"), member),
                ("ZSCORE", of.key("states"), member),
                ("ZSCORE", of.key("agents"), keys.id),
            ]
            if header.type:
                commands.append(("ZSCORE", of.key(of.type_part(decode_foreign(header.type), "states")), member))
                commands.append(("ZSCORE", of.key(of.type_part(decode_foreign(header.type), "agents")), keys.id))
            if header.cell:
                commands.append(("SISMEMBER", of.key(of.place_part(header.cell)), member))
            wanted.append((id_, commands))
    replies = iter(await store.pipeline([command for _, commands in wanted for command in commands]))
    found = []
    for id_, commands in wanted:
        here = [next(replies) for _ in commands]
        # A step may be 0; a score is text or a float.
        if any(reply is None or (isinstance(reply, int) and reply == 0) for reply in here):
            found.append(id_)
    return found


async def _read(scope: ScopedStore) -> dict[bytes, _Note]:
    flat = await scope.read("HRANDFIELD", scope.keys.key(PENDING), _AT_ONCE, "WITHVALUES")
    # The field without a name holds the number of the last note.
    return {note: _decode(packed) for note, packed in zip(flat[::2], flat[1::2], strict=True) if note}


async def _make(scope: ScopedStore, notes: dict[bytes, _Note]) -> int:
    rows: dict[str, list[ListingRow]] = {}
    for name, note in notes.items():
        simulation, _, id_ = read_text(name).partition(" ")
        rows.setdefault(simulation, []).append(
            ListingRow(
                scope.keys.id, id_, note.number, note.listed, note.step, note.type, note.cell, note.x, note.y,
                note.deadline,
            )
        )  # fmt: skip
    for simulation, some in rows.items():
        await make_listings(simulation_scope(scope.store, scope.settings, decode_foreign(simulation)), some)
    return await scope.call(scripts.settle(scope.keys, rows=[(name, note.number) for name, note in notes.items()]))
