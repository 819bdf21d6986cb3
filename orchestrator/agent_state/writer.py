"""Sends one change of an agent's state: names it, shows the lock if there is one, says why it was refused."""

from __future__ import annotations

import itertools
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from orchestrator.agent_state import scripts
from orchestrator.agent_state.scripts import FieldRow
from orchestrator.core.errors import InvalidInput, OrchestratorError
from orchestrator.core.ids import check_name, check_text
from orchestrator.core.payload import encode_json
from orchestrator.store.keys import ScopeKeys

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.core.settings import Settings
    from orchestrator.locks.model import WriteGuard
    from orchestrator.store.store import Store

MAX_FIELDS: Final = 200
MAX_VALUE_BYTES: Final = 64 * 1024
_MAX_STEP: Final = 2**53 - 1
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class AgentStateBackend:
    """Where states lie; shared by all handles of a process."""

    store: Store
    settings: Settings

    @property
    def retry_for_s(self) -> float:
        """How long to repeat while Redis does not answer."""
        return self.settings.redis.command_timeout_s

    def keys(self, agent: str) -> ScopeKeys:
        """The slot of one agent."""
        return ScopeKeys(self.settings.prefix, "agent", check_name("agent", agent))


class AgentStateWriter:
    """The changes of one handle; `guard` None: no lock is shown."""

    __slots__ = ("_guard", "_numbers", "_stem", "backend")

    def __init__(self, backend: AgentStateBackend, guard: WriteGuard | None = None) -> None:
        self.backend, self._guard = backend, guard
        self._stem, self._numbers = secrets.token_urlsafe(9), itertools.count()

    async def set(self, agent: str, fields: Mapping[str, Any], op_id: str | None) -> None:
        """Write fields; see `Agents.set_state`."""
        await self._send(agent, self._rows(fields), op_id)

    def _rows(self, fields: Mapping[str, Any]) -> list[FieldRow]:
        if not 1 <= len(fields) <= MAX_FIELDS:
            raise InvalidInput(f"{len(fields)} fields cannot be written at once; give 1 to {MAX_FIELDS}")
        depth = self.backend.settings.queue.max_depth
        return [
            FieldRow(
                check_text("field", field),
                "set",
                encode_json(f"field {field!r}", value, max_bytes=MAX_VALUE_BYTES, max_depth=depth),
            )
            for field, value in fields.items()
        ]

    async def bump(self, agent: str, field: str, by: int, op_id: str | None) -> int:
        """Add to a whole number; see `Agents.bump`."""
        if not isinstance(by, int) or isinstance(by, bool) or not -_MAX_STEP <= by <= _MAX_STEP:
            raise InvalidInput(f"by must be a whole number up to 2^53, not {by!r:.80}")
        row = FieldRow(check_text("field", field), "bump", str(by).encode())
        numbers = await self._send(agent, [row], op_id)
        if len(numbers) != 1 or not numbers[0]:
            raise InvalidInput(
                f"op_id {op_id!r} names another change of agent {agent!r}, which has been made; nothing was changed"
            )
        return int(numbers[0])

    async def _send(self, agent: str, rows: Sequence[FieldRow], op_id: str | None) -> tuple[str, ...]:
        keys, guard = self.backend.keys(agent), self._guard
        # A name is given also when the caller gave none: the store repeats a call whose answer was lost.
        op = f"{self._stem}{next(self._numbers)}" if op_id is None else f"={check_text('op_id', op_id)}"
        proof = None if guard is None else await guard.proof()
        for _ in range(_TRIES):
            shown = {} if proof is None else {"lock": proof.lock, "token": proof.value}
            call = scripts.change(keys, op=op, rows=rows, most=MAX_FIELDS, **shown)
            answer = await self.backend.store.call(call, retry_for_s=self.backend.retry_for_s)
            match answer.status:
                case "ok" | "duplicate":
                    return answer.rest
                case "full":
                    raise InvalidInput(f"agent {agent!r} would have more than {MAX_FIELDS} fields; nothing was changed")
                case "number":
                    raise InvalidInput(
                        f"field {answer.rest[0]!r} of agent {agent!r} holds no whole number, or the sum is above 2^53"
                    )
            assert guard is not None
            assert proof is not None
            proof = await guard.reacquire(proof, answer.rest[0])
        raise OrchestratorError(f"the lock of agent {agent!r} lapses faster than it can be used")
