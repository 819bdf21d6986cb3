"""What the connections of one proxy share (faults, network conditions, log, counts) and the plan for each command."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from tests.faultkit import resp
from tests.faultkit.commands import SUBSCRIPTION_COMMANDS, Command, CommandRecord, repeatable
from tests.faultkit.faults import CommandLoss, Doubling, Fault, ReplyLoss, Watch
from tests.faultkit.network_conditions import NetworkConditions

_LOGGED_ARGUMENTS: Final = 8
_LOGGED_ARGUMENT_BYTES: Final = 64


@dataclass(slots=True, eq=False)
class Exchange:
    """A command under way, with what is planned for it.

    Attributes:
        replies_due: frames from the server that still belong to it.
        answer: the reply kept for the client while the other one of two is awaited.
    """

    command: Command
    record: CommandRecord
    replies_due: int = 1
    answer: bytes | None = None
    command_loss: CommandLoss | None = None
    reply_loss: ReplyLoss | None = None
    doubling: Doubling | None = None
    request_watches: list[Watch] = field(default_factory=list)
    reply_watches: list[Watch] = field(default_factory=list)

    def apply(self, fault: Fault) -> None:
        """Plan the effect of a fault whose turn it is; of two losses the one that was set first counts."""
        match fault:
            case CommandLoss():
                self.command_loss = self.command_loss or fault
            case ReplyLoss():
                self.reply_loss = self.reply_loss or fault
            case Doubling():
                self.doubling = fault
                self.replies_due = self.record.copies = 2
            case Watch(where="request"):
                self.request_watches.append(fault)
            case Watch():
                self.reply_watches.append(fault)


class FaultRegistry:
    """What all connections of one proxy share: faults, network conditions, log and counts."""

    def __init__(self, *, log_size: int) -> None:
        self.conditions = NetworkConditions()
        self.faults: list[Fault] = []
        self.applied: Counter[str] = Counter()
        self.log: deque[CommandRecord] = deque(maxlen=log_size)
        self._commands = 0

    def plan(self, command: Command, *, in_transaction: bool) -> Exchange:
        """Enter a command in the log and ask every fault whether it is its turn."""
        exchange = Exchange(command, self._record(command))
        if command.name in SUBSCRIPTION_COMMANDS:
            exchange.replies_due = max(len(command.arguments), 1)
        for fault in self.faults:
            if isinstance(fault, Doubling) and (in_transaction or not repeatable(command)):
                continue
            if fault.matches(command):
                exchange.apply(fault)
        return exchange

    def count_applied(self, fault: Fault, name: str) -> None:
        """Count a fault that has just had its effect."""
        fault.fired += 1
        self.applied[name] += 1

    def _record(self, command: Command) -> CommandRecord:
        self._commands += 1
        seen = resp.arguments(command.frame, limit=_LOGGED_ARGUMENTS + 1)
        next(seen)
        record = CommandRecord(
            number=self._commands,
            connection=command.connection,
            name=command.name,
            arguments=tuple(argument[:_LOGGED_ARGUMENT_BYTES] for argument in seen),
            size_bytes=len(command.frame),
        )
        self.log.append(record)
        return record
