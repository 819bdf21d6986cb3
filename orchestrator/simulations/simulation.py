"""Reads the indices of a simulation, and the buffers of its entities: `orc.simulation`."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import encode_foreign
from orchestrator.core.live_settings import LiveSettings
from orchestrator.core.payload import encode_json
from orchestrator.core.reading import msgpack_reader, read_json, read_text, read_whole
from orchestrator.simulations import scripts
from orchestrator.store.keys import ScopeKeys
from orchestrator.store.scoped import OpIds, ScopedStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from orchestrator.core.settings import Settings
    from orchestrator.store.store import Store

MAX_READ: Final = 10_000
"""Entries that one call returns at most."""
MAX_BUFFER: Final = 100_000
"""Items that a buffer keeps at most."""
MAX_PUSH: Final = 500
_MAX_CELLS: Final = 1024
_MAX_INDEX: Final = 2**31
_CELLS_AT_ONCE: Final = 16
_PAGE: Final = 500
_read_place: Final = msgpack_reader(tuple[Any, Any, Any, Any, float | bool, float | bool])
_MAX_STEP: Final = 2**40


def cell_of(x: float, y: float, size: float) -> str:
    """Return the cell of the plane that has a position: the numbers of its column and row."""
    return f"{cell_index(x, size)}_{cell_index(y, size)}"


def cell_index(coordinate: float, size: float) -> int:
    """Return the index of a cell along one axis; the outermost cells have no end."""
    return max(-_MAX_INDEX, min(_MAX_INDEX, math.floor(max(-1e300, min(1e300, coordinate / size)))))


def cells_within(x: float, y: float, radius: float, size: float) -> list[str]:
    """Return the cells that a circle touches.

    Raises:
        InvalidInput: not finite numbers, or more than 1024 cells.
    """
    if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(radius) and radius >= 0):
        raise InvalidInput(f"near takes finite numbers and a radius from 0, not {x!r}, {y!r}, {radius!r}")
    left, right = cell_index(x - radius, size), cell_index(x + radius, size)
    low, high = cell_index(y - radius, size), cell_index(y + radius, size)
    if (right - left + 1) * (high - low + 1) > _MAX_CELLS:
        raise InvalidInput(f"radius {radius!r} touches more than {_MAX_CELLS} cells of {size!r}; ask for less")
    return [f"{column}_{row}" for column in range(left, right + 1) for row in range(low, high + 1)]


@dataclass(frozen=True, slots=True)
class StateRef:
    """A state that a simulation lists.

    Attributes:
        agent: agent whose memory has the record.
        id: id of the record.
        step: step of the simulation.
    """

    agent: str
    id: str
    step: int


class Simulation:
    """Reads which agents and states a simulation has, and buffers data of its entities.

    An agent enters the indices by storing a record with this simulation: `orc.memory(agent).store(...)`. The indices
    follow within one round trip; if the program dies in between, the next change of the agent's memory or the repair
    walk makes up for it. A record that expires or is deleted leaves them.

    Attributes:
        id: id of the simulation.
    """

    __slots__ = ("_op_ids", "_scope", "id")

    def __init__(self, store: Store, settings: Settings | LiveSettings, simulation: str) -> None:
        self.id: str = simulation
        self._scope = simulation_scope(store, settings, simulation)
        self._op_ids = OpIds()

    async def agents(self, *, agent_type: str | None = None, limit: int = 1000) -> dict[str, int]:
        """Return the agents that have a state, with the last step that each has stored, the most advanced first.

        Args:
            agent_type: only agents with states of this type; their last step of it.
            limit: maximum number, 1 to 10,000.

        Raises:
            InvalidInput, StoreError: an invalid type or limit; no reply.
        """
        part = "agents" if agent_type is None else self._scope.keys.type_part(agent_type, "agents")
        key = self._scope.keys.key(part)
        flat = await self._scope.read("ZRANGE", key, 0, _checked(limit) - 1, "REV", "WITHSCORES")
        return {read_text(name): read_whole(step) for name, step in zip(flat[::2], flat[1::2], strict=True)}

    async def states(
        self,
        lo: int | None = None,
        hi: int | None = None,
        *,
        agent_type: str | None = None,
        after: StateRef | None = None,
        limit: int = 1000,
    ) -> list[StateRef]:
        """Return the states from step `lo` to `hi`, both included, by step, then by agent.

        Args:
            lo: first step; None for no bound.
            hi: last step; None for no bound.
            agent_type: only states of agents of this type.
            after: last state of the page before; None for the first page.
            limit: maximum number, 1 to 10,000.

        Raises:
            InvalidInput, StoreError: an invalid bound, type or limit; no reply.
        """
        part = "states" if agent_type is None else self._scope.keys.type_part(agent_type, "states")
        low, high = ("-inf" if lo is None else _step("lo", lo)), ("+inf" if hi is None else _step("hi", hi))
        key, most, skip = self._scope.keys.key(part), _checked(limit), 0
        if after is not None and (lo is None or after.step >= lo):
            low, skip = _step("step of after", after.step), await self._rank_within_step(key, after)
        flat = await self._scope.read("ZRANGE", key, low, high, "BYSCORE", "LIMIT", skip, most, "WITHSCORES")
        return [_ref(member, read_whole(step)) for member, step in zip(flat[::2], flat[1::2], strict=True)]

    async def _rank_within_step(self, key: str, after: StateRef) -> int:
        """Return how many states of its step come up to a state, which may have gone meanwhile."""
        member = f"{after.agent} {after.id}".encode()
        rank, before, step = await self._scope.read_many(
            [("ZRANK", key, member), ("ZCOUNT", key, "-inf", f"({after.step}"), ("ZSCORE", key, member)]
        )
        if rank is not None and float(step) == after.step:
            return read_whole(rank) - read_whole(before) + 1
        first = 0
        while page := await self._scope.read(
            "ZRANGE", key, after.step, after.step, "BYSCORE", "LIMIT", first, MAX_READ
        ):
            below = bisect_right(page, member)
            first += below
            if below < len(page):
                break
        return first

    async def of_type(self, agent_type: str, *, limit: int = 1000) -> list[StateRef]:
        """Return the states of agents of a type, by step, then by agent; see `states`.

        Args:
            agent_type: type that the agents gave with their states.
            limit: maximum number, 1 to 10,000.
        """
        return await self.states(agent_type=agent_type, limit=limit)

    async def near(self, x: float, y: float, radius: float, *, limit: int = 100) -> list[StateRef]:
        """Return the states within a radius of a position, the nearest first.

        Args:
            x: first coordinate of the centre.
            y: second coordinate of the centre.
            radius: greatest distance; the circle touches at most 1024 cells of `memory.cell_size`.
            limit: maximum number, 1 to 10,000.

        Raises:
            InvalidInput, StoreError: not finite numbers, a radius of more than 1024 cells; no reply.
        """
        keys = self._scope.keys
        cells = cells_within(x, y, radius, self._scope.settings.memory.cell_size)
        most, nearest = _checked(limit), dict[bytes, tuple[float, StateRef]]()
        async for members in self._placed([keys.key(keys.place_part(cell)) for cell in cells]):
            stored = await self._scope.read("HMGET", keys.key("of"), *members)
            for member, packed in zip(members, stored, strict=True):
                if packed is None:
                    continue
                _, step, _, cell, at_x, at_y = _read_place(packed)
                distance = math.hypot(at_x - x, at_y - y)
                if cell and distance <= radius:
                    nearest[member] = (distance, _ref(member, step))
            if len(nearest) > most + MAX_READ:
                nearest = dict(sorted(nearest.items(), key=_by_distance)[:most])
        return [ref for _, (_, ref) in sorted(nearest.items(), key=_by_distance)[:most]]

    async def _placed(self, cell_keys: list[str]) -> AsyncIterator[list[bytes]]:
        """Yield the members of cells in pages, so that no command reads a large cell at once; some members twice."""
        left = [(key, b"0") for key in cell_keys]
        while left:
            now, left = left[:_CELLS_AT_ONCE], left[_CELLS_AT_ONCE:]
            pages = await self._scope.read_many([("SSCAN", key, cursor, "COUNT", _PAGE) for key, cursor in now])
            for (key, _), (cursor, members) in zip(now, pages, strict=True):
                if cursor != b"0":
                    left.append((key, cursor))
                if members:
                    yield members

    async def push(self, entity: str, *items: Any, cap: int = 1000, op_id: str | None = None) -> int:
        """Append items to the buffer of an entity, drop the oldest beyond the cap, and return the number kept.

        Args:
            entity: name of the entity, any text of up to 256 bytes.
            items: 1 to 500 JSON values of at most `memory.max_record_bytes` each.
            cap: items that the buffer keeps, 1 to 100,000.
            op_id: id of the change; repeated within ten minutes, the items are appended once.

        Raises:
            InvalidInput: invalid items, name or cap; nothing was appended.
            StoreError: Redis did not do it; a repeat with the same `op_id` is made once.
        """
        if not 1 <= len(items) <= MAX_PUSH:
            raise InvalidInput(f"{len(items)} items cannot be appended at once; give 1 to {MAX_PUSH}")
        if not isinstance(cap, int) or isinstance(cap, bool) or not 1 <= cap <= MAX_BUFFER:
            raise InvalidInput(f"cap must be a whole number from 1 to {MAX_BUFFER}, not {cap!r:.80}")
        most, depth = self._scope.settings.memory.max_record_bytes, self._scope.settings.queue.max_depth
        texts = [encode_json(f"an item for {entity!r:.80}", item, max_bytes=most, max_depth=depth) for item in items]
        call = scripts.push(
            self._scope.keys, op=self._op_ids.take(op_id), entity=encode_foreign("entity", entity), texts=texts,
            cap=cap, ttl_ms=round(self._scope.settings.memory.simulation_ttl_s * 1000),
        )  # fmt: skip
        return (await self._scope.call(call)).length

    async def buffer(self, entity: str, last: int = 100) -> list[Any]:
        """Return the last items of the buffer of an entity, oldest first.

        Args:
            entity: name of the entity.
            last: maximum number, 1 to 10,000.

        Raises:
            InvalidInput, StoreError: an invalid name or number; no reply.
        """
        key = self._scope.keys.key(self._scope.keys.buffer_part(entity))
        return [read_json(text) for text in await self._scope.read("LRANGE", key, -_checked(last), -1)]


def simulation_scope(store: Store, settings: Settings | LiveSettings, simulation: str) -> ScopedStore:
    """Bind a store to the scope of one simulation.

    Raises:
        InvalidInput: not an id.
    """
    prefix = LiveSettings.of(settings).current.prefix
    return ScopedStore(store, ScopeKeys(prefix, "sim", simulation), settings)


async def make_listings(scope: ScopedStore, rows: Sequence[scripts.ListingRow]) -> None:
    """List states of agents in the indices of their simulation, or remove them.

    Raises:
        StoreError: Redis did not do it; a repeat is made once.
    """
    ttl_ms = round(scope.settings.memory.simulation_ttl_s * 1000)
    for first in range(0, len(rows), MAX_PUSH):
        await scope.call(scripts.index(scope.keys, rows=rows[first : first + MAX_PUSH], ttl_ms=ttl_ms))


def _by_distance(placed: tuple[bytes, tuple[float, StateRef]]) -> tuple[float, int, str, str]:
    distance, ref = placed[1]
    return distance, ref.step, ref.agent, ref.id


def _ref(member: bytes, step: int) -> StateRef:
    agent, _, id_ = read_text(member).partition(" ")
    return StateRef(agent, id_, step)


def _checked(limit: int) -> int:
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_READ:
        raise InvalidInput(f"limit must be a whole number from 1 to {MAX_READ}, not {limit!r:.80}")
    return limit


def _step(what: str, step: int) -> int:
    if not isinstance(step, int) or isinstance(step, bool) or not -_MAX_STEP <= step <= _MAX_STEP:
        raise InvalidInput(f"{what} must be a whole number up to 2^40, not {step!r:.80}")
    return step
