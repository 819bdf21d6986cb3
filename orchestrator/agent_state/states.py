"""`Agents`: the states of all agents, for any client. `AgentState`: that of one agent, under an attempt's right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orchestrator.agent_state.writer import AgentStateWriter
from orchestrator.core.durations import Duration, from_instant_ms, to_ms
from orchestrator.core.errors import InvalidInput, StoreError
from orchestrator.core.ids import check_text
from orchestrator.core.payload import decode_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from orchestrator.agent_state.writer import AgentStateBackend
    from orchestrator.locks.model import WriteGuard

MAX_AGENTS: Final = 500


class Agents:
    """What agents say of themselves, and which of them live: `orc.agents`.

    A change made here is made by no attempt, so no lock is asked for; of two at once, the later one stands. States are
    shared by the pools of one prefix, and kept for seven days after the last change.
    """

    __slots__ = ("_backend", "_writer")

    def __init__(self, backend: AgentStateBackend) -> None:
        self._backend, self._writer = backend, AgentStateWriter(backend)

    async def state(self, agent: str, *fields: str) -> dict[str, Any]:
        """The state of one agent: these fields, all if none is named. Missing ones are left out.

        Raises:
            InvalidInput, StoreError: a name that cannot be; no answer.
        """
        return (await self.states([agent], *fields))[agent]

    async def states(self, agents: Iterable[str], *fields: str) -> dict[str, dict[str, Any]]:
        """The states of up to 500 agents, in one round trip; see `state`."""
        names = list(dict.fromkeys(agents))
        if len(names) > MAX_AGENTS:
            raise InvalidInput(f"{len(names)} agents are too many for one call; ask for {MAX_AGENTS} at a time")
        for field in fields:
            check_text("field", field)
        keys = [self._backend.keys(name).key("state") for name in names]
        commands = [("HMGET", key, *fields) if fields else ("HGETALL", key) for key in keys]
        replies = await self._read(commands)
        return {name: _fields(reply, fields) for name, reply in zip(names, replies, strict=True)}

    async def set_state(self, agent: str, fields: Mapping[str, Any], *, op_id: str | None = None) -> None:
        """Write fields of an agent's state, all at once; others stay as they are.

        Args:
            agent: its name.
            fields: any JSON values, at most 64 KiB each; an agent has up to 200 fields.
            op_id: name of the change; within ten minutes the same one is made once.

        Raises:
            InvalidInput: a name or value that cannot be, or too many fields; nothing was changed.
            StoreError: Redis did not do it; repeated with the same `op_id` it is not done twice.
        """
        await self._writer.set(agent, fields, op_id)

    async def bump(self, agent: str, field: str, by: int = 1, *, op_id: str | None = None) -> int:
        """Add to a field that holds a whole number, and return what it holds then. Exact, whoever else does so.

        Args:
            agent: its name.
            field: one that is missing counts as 0.
            by: how much; less than 0 takes away.
            op_id: see `set_state`; a repeat returns what the first call did.

        Raises:
            InvalidInput, StoreError: see `set_state`; also when the field holds something else.
        """
        return await self._writer.bump(agent, field, by, op_id)

    async def active(self, within: Duration = 30) -> dict[str, datetime]:
        """The agents of this pool of which a worker gave a sign of life lately, with when; the latest one first.

        Args:
            within: seconds or timedelta, by the server's clock. Workers send a heartbeat every `worker.heartbeat_s`.

        Raises:
            InvalidInput, StoreError: that is no duration; no answer.
        """
        within_ms = to_ms("within", within)
        agents = self._backend.store.keys.agents
        (seconds, micros), flat = await self._read([("TIME",), ("ZRANGE", agents, 0, -1, "REV", "WITHSCORES")])
        since_ms = int(seconds) * 1000 + int(micros) // 1000 - within_ms
        heartbeats = zip(flat[::2], (int(float(score)) for score in flat[1::2]), strict=True)
        return {
            name.decode(): from_instant_ms(heartbeat_ms)
            for name, heartbeat_ms in heartbeats
            if heartbeat_ms >= since_ms
        }

    async def _read(self, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        async def read() -> list[Any]:
            replies = await self._backend.store.pipeline(commands)
            for reply in replies:
                if isinstance(reply, StoreError):
                    raise reply
            return replies

        return await self._backend.store.ask(read, retry_for_s=self._backend.retry_for_s) if commands else []


class AgentState:
    """What the agent of an attempt says of itself: `ctx.agent_state`.

    Each change presents the attempt's right to change what its agent remembers, taken at the first one: an attempt that
    has lost its task changes nothing any more. Other tasks of the same agent may change it at the same time.

    Attributes:
        agent: whose it is.
    """

    __slots__ = ("_writer", "agent")

    def __init__(self, backend: AgentStateBackend, agent: str, guard: WriteGuard) -> None:
        self.agent: str = agent
        self._writer = AgentStateWriter(backend, guard)

    async def get(self, *fields: str) -> dict[str, Any]:
        """These fields, all if none is named; missing ones are left out."""
        return await Agents(self._writer.backend).state(self.agent, *fields)

    async def set(self, fields: Mapping[str, Any], *, op_id: str | None = None) -> None:
        """Write fields; see `Agents.set_state`.

        Raises:
            Fenced: the task was taken away from this attempt; nothing was changed.
        """
        await self._writer.set(self.agent, fields, op_id)

    async def bump(self, field: str, by: int = 1, *, op_id: str | None = None) -> int:
        """Add to a whole number; see `Agents.bump`.

        Raises:
            Fenced: as `set`.
        """
        return await self._writer.bump(self.agent, field, by, op_id)


def _fields(reply: Sequence[bytes | None], fields: Sequence[str]) -> dict[str, Any]:
    if fields:
        return {name: decode_json(value) for name, value in zip(fields, reply, strict=True) if value is not None}
    pairs = zip(reply[::2], reply[1::2], strict=True)
    return {name.decode(): decode_json(value) for name, value in pairs if name is not None and value is not None}
