"""The desired state as a value: the active commands by slot. Pure; workers check it before each start.

With a secret, only signed commands count: for a slot with an invalid signature, the verified command stays active
(`lua/control/verify.lua`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final

from orchestrator.core.command_record import Issued, SlotValue, pack_slot_value, read_slot_value
from orchestrator.core.errors import InvalidInput
from orchestrator.core.reading import read_text, read_whole
from orchestrator.core.slots import LOG_LEVEL, STOP_ALL, VERIFIED, drain_slot, job_slot, parse_slot, stop_slot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from orchestrator.control.commands import Command, LogLevel
    from orchestrator.control.signing import Signer

SKEW_MS: Final = 5000
"""Tolerated clock difference between issue and acceptance; the same number as in `lua/control/append.lua`."""
KEPT_SLOTS: Final = 20_000
"""Size of the cache of parsed slots, because every change of one slot reads all of them."""
COUNTED_DIGITS: Final = 15
"""Digits of the largest counter; the same number as in `lua/includes/desired.lua`."""
_INTERRUPTS: Final = frozenset("nb")


@cache
def _known_verbs() -> frozenset[str]:
    """Return the prefixes of the slots that this version knows."""
    # The models of the commands take long to import; a command line that finds no command does without.
    from orchestrator.control.commands import KINDS

    return frozenset({parse_slot(slot).verb for kind in KINDS.values() for slot in kind.slots} | {"do", "verified"})


@dataclass(frozen=True, slots=True)
class ActiveCommand:
    """An active command.

    Attributes:
        slot: its slot, as `stop:agent:editor`.
        mark: see `commands.DesiredChange`.
        issued: its envelope, with actor, reason and time.
        value: of the slot, as it is stored.
    """

    slot: str
    mark: str
    issued: Issued
    value: bytes = field(default=b"", compare=False, repr=False)

    @property
    def interrupts(self) -> bool:
        """True for a stop that interrupts running tasks."""
        return parse_slot(self.slot).verb == "stop" and self.mark in _INTERRUPTS

    @property
    def ends_process(self) -> bool:
        """True if the worker must exit when it has drained."""
        return parse_slot(self.slot)[:2] == ("drain", "worker") and self.mark == "s"

    @property
    def command(self) -> Command:
        """The decoded command."""
        from orchestrator.control.commands import decode_command

        return decode_command(self.issued.command)

    @property
    def until_ms(self) -> int | None:
        """The end of a pause that has one, by the clock of Redis; else None."""
        if parse_slot(self.slot).verb != "hold":
            return None
        from orchestrator.control.commands import TimedPause

        command = self.command
        return command.until_ms if isinstance(command, TimedPause) else None


@dataclass(frozen=True, slots=True)
class Desired:
    """The desired state.

    Attributes:
        seq: incremented by every change.
        epoch: commands of an earlier epoch are refused.
        active: the active commands by slot.
        jobs: the jobs of the supervisor, oldest first.
        config: the published configuration values by key.
        doubtful: slots with a damaged or unsigned value.
        revisions: by slot the `seq` of its last change; without those of old changes.
        pruned: highest revision of an ended command that was removed from `revisions`.
    """

    seq: int = 0
    epoch: int = 0
    active: Mapping[str, ActiveCommand] = field(default_factory=dict)
    jobs: Sequence[ActiveCommand] = ()
    config: Mapping[str, ActiveCommand] = field(default_factory=dict)
    doubtful: frozenset[str] = frozenset()
    revisions: Mapping[str, int] = field(default_factory=dict)
    pruned: int = 0

    @property
    def commands(self) -> dict[str, ActiveCommand]:
        """The active commands and the configuration values by slot."""
        return {**self.active, **{found.slot: found for found in self.config.values()}}

    def stop_of(
        self, *, agent: str, skill: str | None = None, session: str | None = None, family: str | None = None
    ) -> ActiveCommand | None:
        """Return the widest stop that applies to such a task, or None if it may start."""
        if not self.active:
            return None
        for slot in (
            STOP_ALL,
            stop_slot("agent", agent),
            skill is not None and stop_slot("skill", skill),
            session is not None and stop_slot("session", session),
            family is not None and stop_slot("family", family),
        ):
            if slot and slot in self.active:
                return self.active[slot]
        return None

    def interrupts(
        self, *, agent: str, skill: str, session: str | None, family: str | None = None
    ) -> ActiveCommand | None:
        """Return the stop that interrupts such a task while it runs, or None if it continues."""
        if not self.active:
            return None
        scoped = (
            stop_slot("agent", agent),
            stop_slot("skill", skill),
            stop_slot("session", session or ""),
            stop_slot("family", family or ""),
        )
        for slot in (STOP_ALL, *scoped):
            found = self.active.get(slot)
            if found is not None and found.interrupts:
                return found
        return None

    def drain_of(self, worker: str) -> ActiveCommand | None:
        """Return the command that drains a worker."""
        return self.active.get(drain_slot("worker", worker))

    @property
    def log_level(self) -> LogLevel | None:
        """The log level of all processes, or None if their settings decide."""
        found = self.active.get(LOG_LEVEL)
        if found is None:
            return None
        from orchestrator.control.commands import SetLogLevel

        command = found.command
        return command.level if isinstance(command, SetLogLevel) else None


NOTHING: Final = Desired()
"""The empty desired state."""


def read_desired(reply: Sequence[bytes], signer: Signer, revisions: Sequence[bytes] = ()) -> Desired:
    """Parse the replies to `HGETALL` on `desired` and, if they are needed, on its revisions, which were read first."""
    fields = dict(zip((read_text(name) for name in reply[::2]), reply[1::2], strict=True))
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
            active[slot] = ActiveCommand(slot, found.mark, found.issued, pack_slot_value(found))
    jobs = [active.pop(slot) for slot in list(active) if parse_slot(slot).verb == "do"]
    config = {parsed.name: active.pop(slot) for slot in list(active) if (parsed := parse_slot(slot)).verb == "config"}
    noted = {read_text(name): read_number(value) for name, value in _pairs(revisions)}
    if noted.pop("seq", 0) > seq:
        noted = {}  # of a desired state that is lost
    pruned = noted.pop("pruned", 0)
    # What became of a slot is unknown if this version cannot read it.
    if noted:
        known = _known_verbs()
        noted = {slot: each for slot, each in noted.items() if slot not in doubtful and parse_slot(slot).verb in known}
    return Desired(seq, epoch, active, tuple(jobs), config, frozenset(doubtful), noted, pruned)


def _pairs(reply: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return zip(reply[::2], reply[1::2], strict=True)


def _judge_slot(slot: str, value: bytes | None, verified: bytes | None, signer: Signer) -> SlotValue | None:
    """Return the value of a slot as `read_slot` does; None also if it is older than the verified one.

    An older value was copied back, or two commands were given at the same moment. The verified value stays active until
    the supervisor has decided (`orchestrator.control.verification`).
    """
    found = read_slot(slot, value, signer)
    before = (
        read_slot(slot, verified, signer) if found is not None and verified is not None and verified != value else None
    )
    return found if found is None or before is None or found.issued.issued_ms >= before.issued.issued_ms else None


@lru_cache(maxsize=KEPT_SLOTS)
def read_slot(slot: str, value: bytes | None, signer: Signer) -> SlotValue | None:
    """Return the value of a slot if it is well-formed, signed, and belongs to this slot; else None."""
    if value is None:
        return None
    from orchestrator.control.commands import decode_command

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


def is_signed(reply: Sequence[bytes]) -> bool:
    """Return whether a slot of the desired state, of the reply to `HGETALL`, has a command with a signature."""
    for value in reply[1::2]:
        try:
            if read_slot_value(value).signature:
                return True
        except InvalidInput:
            continue
    return False


def is_of_later_version(slot: str, value: bytes, signer: Signer) -> bool:
    """Return whether the slot holds a signed command of a newer version, which this version must keep."""
    if parse_slot(slot).verb in _known_verbs():
        return False
    try:
        found = read_slot_value(value)
    except InvalidInput:
        return False
    return signer.accepts(found.packed, found.signature)


def read_number(text: bytes) -> int:
    """Parse a counter of the desired state; malformed text is 0."""
    return read_whole(text) if text.isdigit() and len(text) <= COUNTED_DIGITS else 0
