"""`orc stop` and `orc start`."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.active_commands import SHOWN
from orchestrator.cli.terminal.declared import declared, examples_of
from orchestrator.cli.terminal.parsing import Commands
from orchestrator.control.commands import Start, Stop
from orchestrator.core.slots import parse_slot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.control.commands import Command
    from orchestrator.services import Services


@asynccontextmanager
async def report_other_stops(services: Services, command: Command) -> AsyncIterator[None]:
    """Say when `orc start` changes nothing, and which other stops stay active."""
    from orchestrator.views.active_commands import read_stops

    before = await read_stops(services)
    slot, slots = command.changes[0].slot, {change.slot for change in command.changes}
    if all(one.slot not in slots for one in before):
        output.say(f"nothing changes: {parse_slot(slot).scope.replace(':', ' ', 1)} was not stopped")
    yield
    others = [parse_slot(one.slot).scope for one in before if one.slot not in slots]
    if others:
        more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
        named = output.clean(", ".join(others[:SHOWN])) + more
        output.say(f"still stopped: {named}; `orc start` with the same scope ends each")


stop_commands = Commands("stop", *examples_of(Stop))
stop_commands.itself(declared(Stop))
start_commands = Commands("start", *examples_of(Start))
start_commands.itself(declared(Start, around=report_other_stops))
