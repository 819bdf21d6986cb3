"""The desired state as a value: what is stopped, paused, drained. Pure; whoever holds one asks it before each start.

Where commands are signed, only what carries a true signature counts: of a slot that somebody else has changed, what was
verified before stays active (`lua/control/verify.lua`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from orchestrator.control.commands import KINDS, Command, LogLevel, SetLogLevel, decode_command
from orchestrator.core.errors import InvalidInput
from orchestrator.core.issued import Issued, SlotValue, read_slot_value
from orchestrator.core.slots import LOG_LEVEL, STOP_ALL, VERIFIED, drain_slot, job_slot, parse_slot, stop_slot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.control.signing import Signer

SKEW_MS: Final = 5000
"""As in `lua/control/append.lua`: a command may say that it was issued so much later than it was accepted."""
KEPT_SLOTS: Final = 20_000
"""Of so many slots it is remembered what they say: all of them are read after each change of one."""
COUNTED_DIGITS: Final = 15
"""As in `lua/includes/desired.lua`: nobody counts further than that."""
_SORTS: Final = frozenset(
    {parse_slot(slot).verb for kind in KINDS.values() for slot in kind.slots} | {"do", "verified"}
)
"""Prefixes of the slots that this version knows."""
_INTERRUPTS: Final = frozenset("nb")


@dataclass(frozen=True, slots=True)
class ActiveCommand:
    """A command that is active.

    Attributes:
        slot: its place, as `stop:agent:editor`.
        mark: see `commands.DesiredChange`.
        issued: who asked for it, why and when.
    """

    slot: str
    mark: str
    issued: Issued

    @property
    def interrupts(self) -> bool:
        """Whether what runs is to be interrupted too."""
        return parse_slot(self.slot).verb == "stop" and self.mark in _INTERRUPTS

    @property
    def ends_process(self) -> bool:
        """Whether the worker is to end when it has drained."""
        return parse_slot(self.slot)[:2] == ("drain", "worker") and self.mark == "s"

    @property
    def command(self) -> Command:
        """The command itself."""
        return decode_command(self.issued.command)


@dataclass(frozen=True, slots=True)
class Desired:
    """What is active.

    Attributes:
        seq: raised by every change.
        epoch: commands of an earlier one are refused.
        active: the active commands by slot.
        jobs: what the supervisor is to do, the oldest first.
        config: the configuration values that are published, by their keys.
        doubtful: slots whose entry is damaged or not truly signed.
    """

    seq: int = 0
    epoch: int = 0
    active: Mapping[str, ActiveCommand] = field(default_factory=dict)
    jobs: Sequence[ActiveCommand] = ()
    config: Mapping[str, ActiveCommand] = field(default_factory=dict)
    doubtful: frozenset[str] = frozenset()

    def stop_of(self, *, agent: str, skill: str | None = None, session: str | None = None) -> ActiveCommand | None:
        """The stop that forbids to start such a task, the widest first; None: it may start."""
        if not self.active:
            return None
        for slot in (
            STOP_ALL,
            stop_slot("agent", agent),
            skill is not None and stop_slot("skill", skill),
            session is not None and stop_slot("session", session),
        ):
            if slot and slot in self.active:
                return self.active[slot]
        return None

    def interrupts(self, *, agent: str, skill: str, session: str | None) -> ActiveCommand | None:
        """The stop that interrupts such a task while it runs; None: it may go on."""
        if not self.active:
            return None
        scoped = (stop_slot("agent", agent), stop_slot("skill", skill), stop_slot("session", session or ""))
        for slot in (STOP_ALL, *scoped):
            found = self.active.get(slot)
            if found is not None and found.interrupts:
                return found
        return None

    def drain_of(self, worker: str) -> ActiveCommand | None:
        """The command that lets a worker drain."""
        return self.active.get(drain_slot("worker", worker))

    @property
    def log_level(self) -> LogLevel | None:
        """The level that all log from; None: as their settings say."""
        found = self.active.get(LOG_LEVEL)
        command = found.command if found else None
        return command.level if isinstance(command, SetLogLevel) else None


NOTHING: Final = Desired()
"""Nothing is active."""


def read_desired(reply: Sequence[bytes], signer: Signer) -> Desired:
    """Make the value of the reply to `HGETALL` on `desired`."""
    fields = dict(zip((name.decode(errors="replace") for name in reply[::2]), reply[1::2], strict=True))
    seq, epoch = read_number(fields.pop("seq", b"0")), read_number(fields.pop("epoch", b"0"))
    fields.pop("sessions", None)
    slots = {name.removeprefix(VERIFIED) for name in fields}
    active: dict[str, ActiveCommand] = {}
    doubtful: set[str] = set()
    for slot in sorted(slots):
        found = _judge_slot(slot, fields.get(slot), fields.get(VERIFIED + slot), signer)
        if found is None and is_of_later_version(slot, fields.get(slot, b""), signer):
            continue
        if found is None and (slot in fields or signer.wanted):
            doubtful.add(slot)
            found = read_slot(slot, fields.get(VERIFIED + slot), signer)
        if found is not None and not found.ended:
            active[slot] = ActiveCommand(slot, found.mark, found.issued)
    jobs = [active.pop(slot) for slot in list(active) if parse_slot(slot).verb == "do"]
    config = {parsed.name: active.pop(slot) for slot in list(active) if (parsed := parse_slot(slot)).verb == "config"}
    return Desired(seq, epoch, active, tuple(jobs), config, frozenset(doubtful))


def _judge_slot(slot: str, value: bytes | None, verified: bytes | None, signer: Signer) -> SlotValue | None:
    """What stands in a slot, as `read_slot`; None also when it is older than what was verified.

    Then it was put there again, or two people gave commands at the same moment: the supervisor finds out
    (`orchestrator.control.verification`), and until it has what was verified goes on.
    """
    found = read_slot(slot, value, signer)
    before = (
        read_slot(slot, verified, signer) if found is not None and verified is not None and verified != value else None
    )
    return found if found is None or before is None or found.issued.issued_ms >= before.issued.issued_ms else None


@lru_cache(maxsize=KEPT_SLOTS)
def read_slot(slot: str, value: bytes | None, signer: Signer) -> SlotValue | None:
    """What stands in a slot, if it is whole, truly signed, and says what belongs there; else None."""
    if value is None:
        return None
    try:
        found = read_slot_value(value)
        if not signer.accepts(found.packed, found.signature):
            return None
        command = decode_command(found.issued.command)
    except InvalidInput:
        return None
    if parse_slot(slot).verb == "do":
        return found if command.job and slot == job_slot(found.issued.id) else None
    mark = "" if found.ended else found.mark
    return found if (slot, mark) in command.changes else None


def is_of_later_version(slot: str, value: bytes, signer: Signer) -> bool:
    """Whether this is truly an order of a sort that only a newer version knows: it stays, for those that obey it."""
    if parse_slot(slot).verb in _SORTS:
        return False
    try:
        found = read_slot_value(value)
    except InvalidInput:
        return False
    return signer.accepts(found.packed, found.signature)


def read_number(text: bytes) -> int:
    """One of the numbers of the desired state; what is none, or none that was counted there, is 0."""
    return int(text) if text.isdigit() and len(text) <= COUNTED_DIGITS else 0
