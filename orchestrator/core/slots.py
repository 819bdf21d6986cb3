"""Slots of the desired state: fields of the hash `desired`, as `stop:agent:editor`. Unrelated to worker slots.

A slot names the effect of a command and its target. The commands in `control/commands.py` declare theirs as formats.
"""

from __future__ import annotations

from typing import Final, NamedTuple

STOP_ALL: Final = "stop:all"
LOG_LEVEL: Final = "log:level"
VERIFIED: Final = "verified:"
"""Prefix of the copy that the supervisor keeps of a slot whose signature it has checked."""

_SCOPED: Final = frozenset({"stop", "pause", "hold", "drain"})


class Slot(NamedTuple):
    """The parts of a slot.

    Attributes:
        verb: `stop`, `pause`, `hold` (a pause with an end), `drain`, `limit`, `share`, `budget`, `log`, `config` or
            `do`.
        kind: of a stop, pause, hold or drain: `all`, `agent`, `session`, `family`, `skill`,
            `queue`, `limit` or `worker`.
        name: of the agent, session, skill, queue, worker, first task of a family, limit, key of a share (encoded),
            budget, config value or job.
    """

    verb: str
    kind: str
    name: str

    @property
    def scope(self) -> str:
        """Kind and name, as `agent:editor`; `all`."""
        return f"{self.kind}:{self.name}" if self.name else self.kind


def parse_slot(slot: str) -> Slot:
    """Split a slot."""
    verb, _, rest = slot.partition(":")
    if verb not in _SCOPED:
        return Slot(verb, "", rest)
    kind, _, name = rest.partition(":")
    return Slot(verb, kind, name)


def stop_slot(kind: str, name: str) -> str:
    """Return the slot of a stop of an agent, session, family or skill."""
    return f"stop:{kind}:{name}"


def pause_slot(kind: str, name: str) -> str:
    """Return the slot of the pause of an agent or queue."""
    return f"pause:{kind}:{name}"


def hold_slot(kind: str, name: str) -> str:
    """Return the slot of the pause with an end of an agent or limit."""
    return f"hold:{kind}:{name}"


def drain_slot(kind: str, name: str) -> str:
    """Return the slot of the drain of a queue or worker."""
    return f"drain:{kind}:{name}"


def limit_slot(limit: str) -> str:
    """Return the slot of the rate of a limit."""
    return f"limit:{limit}"


def share_slot(encoded_key: str) -> str:
    """Return the slot of the share of a key, which is encoded as in keys of Redis."""
    return f"share:{encoded_key}"


def config_slot(key: str) -> str:
    """Return the slot of a published configuration value."""
    return f"config:{key}"


def job_slot(command: str) -> str:
    """Return the slot of a job of the supervisor, by the id of its command."""
    return f"do:{command}"
