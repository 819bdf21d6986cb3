"""Reads and changes agent state: `Agents` for any client, `AgentState` for an attempt, under its lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orchestrator.agent_state import scripts
from orchestrator.agent_state.scripts import FieldRow
from orchestrator.core.durations import Duration, from_instant_ms, to_ms
from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import check_text
from orchestrator.core.reading import read_json, read_text, read_whole
from orchestrator.locks.fenced_writer import FencedWriter
from orchestrator.store.keys import AGENT_STATE
from orchestrator.store.scoped import bind_scope, read_many

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from orchestrator.core.settings import Settings
    from orchestrator.locks.model import WriteGuard
    from orchestrator.locks.waiter import LockWaiter
    from orchestrator.store.calls import Argument
    from orchestrator.store.scoped import OnChange, ScopedStore
    from orchestrator.store.store import Store

MAX_AGENTS: Final = 500
MAX_FIELDS: Final = 200
MAX_VALUE_BYTES: Final = 64 * 1024
_MAX_STEP: Final = 2**53 - 1


class Agents:
    """Reads and changes the states of all agents, and lists the active ones: `orc.agents`.

    Changes made here take no lock; the last of two concurrent changes wins. They wait while a task with `lock="agent"`
    holds the agent, and then raise `Occupied`. All pools of one prefix share the states. A state expires seven days
    after its last change.
    """

    __slots__ = ("_on_change", "_settings", "_store", "_waiter")

    def __init__(self, store: Store, settings: Settings, waiter: LockWaiter, on_change: OnChange | None = None) -> None:
        self._store, self._settings, self._waiter, self._on_change = store, settings, waiter, on_change

    async def state(self, agent: str, *fields: str) -> dict[str, Any]:
        """Return these fields of an agent's state, or all fields. Missing fields are left out.

        Raises:
            InvalidInput, StoreError: not a name; no reply.
        """
        return (await self.states([agent], *fields))[agent]

    async def states(self, agents: Iterable[str], *fields: str) -> dict[str, dict[str, Any]]:
        """Return the states, or some fields, of up to 500 agents in one round trip; see `state`."""
        names = list(dict.fromkeys(agents))
        if len(names) > MAX_AGENTS:
            raise InvalidInput(f"{len(names)} agents are too many for one call; ask for {MAX_AGENTS} at a time")
        for field in fields:
            check_text("field", field)
        keys = [self._scope(name).keys.key(AGENT_STATE) for name in names]
        replies = await self._read([("HMGET", key, *fields) if fields else ("HGETALL", key) for key in keys])
        return {name: _parse_fields(reply, fields) for name, reply in zip(names, replies, strict=True)}

    async def set_state(self, agent: str, fields: Mapping[str, Any], *, op_id: str | None = None) -> None:
        """Write fields of an agent's state, all or none. Other fields stay.

        Args:
            agent: name of the agent.
            fields: JSON values of at most 64 KiB each; an agent has up to 200 fields.
            op_id: id of the change; repeated within ten minutes, the change is made once.

        Raises:
            InvalidInput: an invalid name or value, or too many fields; nothing was changed.
            Occupied: a task holds the agent alone; nothing was changed.
            StoreError: Redis did not do it; a repeat with the same `op_id` is made once.
        """
        await _Writer(self._scope(agent), waiter=self._waiter).set(fields, op_id)

    async def bump(self, agent: str, field: str, by: int = 1, *, op_id: str | None = None) -> int:
        """Add to a field that holds a whole number, and return the sum. Concurrent calls all count.

        Args:
            agent: name of the agent.
            field: name of the field; a missing one counts as 0.
            by: number to add; may be negative.
            op_id: as in `set_state`; a repeat returns the first result.

        Raises:
            InvalidInput, Occupied, StoreError: as `set_state`; also when the field holds another value.
        """
        return await _Writer(self._scope(agent), waiter=self._waiter).bump(field, by, op_id)

    async def active(self, within: Duration = 30) -> dict[str, datetime]:
        """Return the time of the last heartbeat of each active agent of this pool, the latest first.

        Args:
            within: maximum age of the heartbeat, seconds or timedelta. Workers send one every `worker.heartbeat_s`.

        Raises:
            InvalidInput, StoreError: not a duration; no reply.
        """
        within_ms = to_ms("within", within)
        commands = [("TIME",), ("ZRANGE", self._store.keys.agents, 0, -1, "REV", "WITHSCORES")]
        (seconds, micros), flat = await self._read(commands)
        since_ms = read_whole(seconds) * 1000 + read_whole(micros) // 1000 - within_ms
        heartbeats = zip(flat[::2], (read_whole(score) for score in flat[1::2]), strict=True)
        return {
            read_text(name): from_instant_ms(heartbeat_ms)
            for name, heartbeat_ms in heartbeats
            if heartbeat_ms >= since_ms
        }

    async def _read(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        retry_for_s = self._settings.redis.command_timeout_s
        return await read_many(self._store, commands, retry_for_s=retry_for_s) if commands else []

    def _scope(self, agent: str) -> ScopedStore:
        return bind_scope(self._store, self._settings, "agent", agent, on_change=self._on_change)


class AgentState:
    """Reads and changes the state of an attempt's agent: `ctx.agent_state`.

    The first change takes the attempt's lock on its agent, and every change presents it, so that an attempt that lost
    its task changes nothing. Other tasks of the same agent may change the state at the same time.

    Attributes:
        agent: name of the agent.
    """

    __slots__ = ("_writer", "agent")

    def __init__(self, scope: ScopedStore, guard: WriteGuard, waiter: LockWaiter) -> None:
        self.agent: str = scope.keys.id
        self._writer = _Writer(scope, guard, waiter=waiter)

    async def get(self, *fields: str) -> dict[str, Any]:
        """Return these fields, or all fields. Missing fields are left out."""
        scope = self._writer.scope
        return await Agents(scope.store, scope.settings, self._writer.waiter).state(self.agent, *fields)

    async def set(self, fields: Mapping[str, Any], *, op_id: str | None = None) -> None:
        """Write fields; see `Agents.set_state`.

        Raises:
            Fenced: the attempt no longer owns its task; nothing was changed.
            Occupied: another task holds the agent alone; nothing was changed.
        """
        await self._writer.set(fields, op_id)

    async def bump(self, field: str, by: int = 1, *, op_id: str | None = None) -> int:
        """Add `by` to a field that holds a whole number; see `Agents.bump`.

        Raises:
            Fenced, Occupied: as `set`.
        """
        return await self._writer.bump(field, by, op_id)


class _Writer(FencedWriter):
    """Changes fields of one agent's state."""

    def __init__(self, scope: ScopedStore, guard: WriteGuard | None = None, *, waiter: LockWaiter) -> None:
        super().__init__(scope, guard, waiter=waiter, max_value_bytes=lambda _: MAX_VALUE_BYTES)

    async def set(self, fields: Mapping[str, Any], op_id: str | None) -> None:
        if not 1 <= len(fields) <= MAX_FIELDS:
            raise InvalidInput(f"{len(fields)} fields cannot be written at once; give 1 to {MAX_FIELDS}")
        rows = [
            FieldRow(check_text("field", field), "set", self.encode(f"field {field!r}", value))
            for field, value in fields.items()
        ]
        await self._change(rows, op_id)

    async def bump(self, field: str, by: int, op_id: str | None) -> int:
        if not isinstance(by, int) or isinstance(by, bool) or not -_MAX_STEP <= by <= _MAX_STEP:
            raise InvalidInput(f"by must be a whole number up to 2^53, not {by!r:.80}")
        numbers = await self._change([FieldRow(check_text("field", field), "bump", str(by).encode())], op_id)
        if len(numbers) != 1 or not numbers[0]:
            raise InvalidInput(
                f"op_id {op_id!r} names another change of agent {self.scope.keys.id!r}, which has been made; "
                "nothing was changed"
            )
        return read_whole(numbers[0])

    async def _change(self, rows: Sequence[FieldRow], op_id: str | None) -> tuple[bytes, ...]:
        keys = self.scope.keys
        reply = await self.send(
            lambda caller: scripts.change(keys, caller=caller, rows=rows, most=MAX_FIELDS), op_id, "change-agent-state"
        )
        match reply.status:
            case "full":
                raise InvalidInput(f"agent {keys.id!r} would have more than {MAX_FIELDS} fields; nothing was changed")
            case "number":
                raise InvalidInput(
                    f"field {read_text(reply.rest[0])!r} of agent {keys.id!r} holds no whole number, "
                    "or the sum is above 2^53"
                )
        return reply.rest


def _parse_fields(reply: Sequence[bytes | None], fields: Sequence[str]) -> dict[str, Any]:
    if fields:
        return {name: read_json(value) for name, value in zip(fields, reply, strict=True) if value is not None}
    pairs = zip(reply[::2], reply[1::2], strict=True)
    return {read_text(name): read_json(value) for name, value in pairs if name is not None and value is not None}
