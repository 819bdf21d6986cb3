"""Shares faults, network conditions, log and counts among the connections of a proxy, and plans each command."""

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
    """A command in flight and its plan.

    Attributes:
        replies_due: frames from the server that belong to it.
        answer: reply that is kept until its double arrives.
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
        """Plan the effect of a due fault; of two losses, the first one set wins."""
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
    """State that all connections of one proxy share."""

    def __init__(self, *, log_size: int) -> None:
        self.conditions = NetworkConditions()
        self.faults: list[Fault] = []
        self.applied: Counter[str] = Counter()
        self.log: deque[CommandRecord] = deque(maxlen=log_size)
        self._commands = 0

    def plan(self, command: Command, *, in_transaction: bool) -> Exchange:
        """Log a command and ask every fault if its turn has come."""
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
        """Count the effect of a fault."""
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
