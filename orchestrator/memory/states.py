"""Remembers the states that an agent goes through, and reads them by their position relative to the newest one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from orchestrator.core.errors import InvalidInput
from orchestrator.memory import queries
from orchestrator.memory.differences import compare
from orchestrator.memory.encoding import is_whole
from orchestrator.memory.model import MemoryQuery, Record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.core.durations import Duration
    from orchestrator.memory.model import Json, RecordChange, StoredRecord, ValueChange
    from orchestrator.store.scoped import ScopedStore

KIND: Final = "state"
"""Kind of the records that hold states."""
_METADATA: Final = frozenset({"state_id", "agent_id", "simulation_id", "step_number", "stored_at"})


class RecordStore(Protocol):
    """Interface of a `Memory` that `StateMemory` uses."""

    @property
    def scope(self) -> ScopedStore:
        """The scope of the agent."""
        ...

    async def store(self, record: Record, *, op_id: str | None = None) -> RecordChange:
        """Store a record."""
        ...


class StateMemory:
    """Remembers the states of one agent, one per step, as records of kind `state`.

    A state is a JSON object. Reads add its metadata: `state_id`, `agent_id`, `simulation_id`, `step_number` and
    `stored_at` (Unix seconds). Positions count back from the newest state: 0 is the newest, -1 the one before it. They
    reach the newest `memory.relative_states` states, at most `memory.max_stm_records`; older ones remain records of
    the memory until they expire.

    Args:
        memory: memory of the agent, from `orc.memory(agent)` or `ctx.memory`. None: memory is switched off; nothing is
            stored, and reads return None or an empty list.
        simulation: simulation that the states belong to, unless a call names another one. Reads return the states of
            this simulation alone; without one, all states.
    """

    __slots__ = ("_memory", "_simulation")

    def __init__(self, memory: RecordStore | None, *, simulation: str | None = None) -> None:
        self._memory, self._simulation = memory, simulation

    async def store_agent_state(
        self,
        state_data: Mapping[str, Json],
        step_number: int,
        *,
        simulation_id: str | None = None,
        ttl: Duration | None = None,
        op_id: str | None = None,
    ) -> str | None:
        """Store the state of a step, in place of an earlier one of the same step, and return its id.

        The mapping is not changed. `position_x` and `position_y` place the state in the plane, `agent_type` lists it
        under that type in the simulation.

        Args:
            state_data: JSON object; a field with the name of metadata is replaced.
            step_number: a whole number of at most 2^40.
            simulation_id: simulation that the state belongs to.
            ttl: retention, seconds or timedelta. None: that of short-term records, then of intermediate ones.
            op_id: id of the change; repeated within ten minutes, the change is made once.

        Returns:
            The name of the agent and the step, as `ed-7`, and the simulation if there is one, as `ed-7@run 1`: a
            step of one simulation replaces none of another. None if memory is switched off.

        Raises:
            InvalidInput: JSON cannot hold the state, or it is too large; nothing was stored.
            MemoryFull, Fenced, LockLost, Occupied, StoreError: as `Memory.store`.
        """
        if self._memory is None:
            return None
        state = {name: value for name, value in state_data.items() if name not in _METADATA}
        agent_type = state.get("agent_type")
        simulation = self._simulation if simulation_id is None else simulation_id
        id_ = f"{self._memory.scope.keys.id}-{step_number}"
        record = Record(
            id=id_ if simulation is None else f"{id_}@{simulation}",
            step=step_number,
            kind=KIND,
            content=state,
            action=None if simulation is None else _action(simulation),
            position=_position(state),
            simulation=simulation,
            agent_type=agent_type if isinstance(agent_type, str) and agent_type else None,
            ttl=ttl,
        )
        return (await self._memory.store(record, op_id=op_id)).id

    async def get_current_state(self) -> dict[str, Json] | None:
        """Return the newest state, or None if there is none."""
        return await self.get_state_at_relative_position(0)

    async def get_previous_state(self) -> dict[str, Json] | None:
        """Return the state before the newest one, or None if there is none."""
        return await self.get_state_at_relative_position(-1)

    async def get_state_at_relative_position(self, relative_position: int) -> dict[str, Json] | None:
        """Return the state at a position: 0 the newest, -1 the one before it. None if there is none.

        Args:
            relative_position: 0 or negative.

        Raises:
            InvalidInput, StoreError: a positive position; no reply.
        """
        if self._memory is None:
            return None
        if not is_whole(relative_position) or relative_position > 0:
            raise InvalidInput(
                f"a position is 0 for the newest state or a negative whole number, not {relative_position!r:.80}"
            )
        if -relative_position >= _reach(self._memory):
            return None
        found = await queries.recall(self._memory.scope, self._newest(1), offset=-relative_position, to_end=True)
        return self._state(self._memory, found[0]) if found else None

    async def get_state_history(self, steps: int = 5) -> list[dict[str, Json]]:
        """Return the newest states in the order of their steps, in one round trip.

        Args:
            steps: number of states, at least 1; positions bound it as they bound all reads.

        Raises:
            InvalidInput, StoreError: not a number; no reply.
        """
        if self._memory is None:
            return []
        count = min(_checked(steps), _reach(self._memory))
        found = await queries.recall(self._memory.scope, self._newest(count), to_end=True)
        return [self._state(self._memory, record) for record in found.records[::-1]]

    async def calculate_state_changes(self, steps: int = 1) -> dict[str, dict[str, Any]] | None:
        """Compare the newest state with the one `steps` positions before it, field by field, without metadata.

        Args:
            steps: positions between the two, at least 1.

        Returns:
            Per field, for two numbers `previous`, `current`, `change` and `percent_change`: the change in percent of
            the previous number without its sign, None if that is 0. For other values `previous`, `current` and
            `changed`. A field that only one of the states has also gets `added` or `removed`. None if there is no state
            that far back.

        Raises:
            InvalidInput, StoreError: not a number; no reply.
        """
        if self._memory is None:
            return None
        if _checked(steps) >= _reach(self._memory):
            return None
        # The newest state, and the one `steps` positions behind it.
        found = await queries.recall(self._memory.scope, self._newest(2), every=steps, to_end=True)
        if len(found) < 2:
            return None
        return {name: _as_dict(change) for name, change in compare(found[1].content, found[0].content).items()}

    def _newest(self, limit: int) -> MemoryQuery:
        if self._simulation is None:
            return MemoryQuery(kinds=(KIND,), limit=limit)
        # One index has the states of a simulation alone, so that a position is a rank.
        return MemoryQuery(actions=(_action(self._simulation),), limit=limit)

    @staticmethod
    def _state(memory: RecordStore, record: StoredRecord) -> dict[str, Json]:
        return {
            **record.content,
            "state_id": record.id,
            "agent_id": memory.scope.keys.id,
            "simulation_id": record.simulation,
            "step_number": record.step,
            "stored_at": int(record.stored.timestamp()),
        }


def _action(simulation: str) -> str:
    return f"state of {simulation}"


def _reach(memory: RecordStore) -> int:
    settings = memory.scope.settings.memory
    return min(settings.relative_states, settings.max_stm_records)


def _checked(steps: int) -> int:
    if not is_whole(steps) or steps < 1:
        raise InvalidInput(f"steps must be a whole number from 1, not {steps!r:.80}")
    return steps


def _position(state: Mapping[str, Json]) -> tuple[float, float] | None:
    x, y = state.get("position_x"), state.get("position_y")
    if isinstance(x, bool) or isinstance(y, bool) or not isinstance(x, int | float) or not isinstance(y, int | float):
        return None
    return x, y


def _as_dict(change: ValueChange) -> dict[str, Any]:
    found: dict[str, Any] = {"previous": change.previous, "current": change.current}
    if change.kind == "number":
        return {**found, "change": change.change, "percent_change": change.percent}
    found["changed"] = change.changed
    return found if change.kind == "other" else {**found, change.kind: True}
