"""Gives a control command, waits for the receipts and prints them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.failures import DONE, FAILED, REFUSED, TIMED_OUT, joint_exit_code, say_error
from orchestrator.cli.terminal.inputs import duration_s
from orchestrator.cli.terminal.parsing import option, option_group

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from orchestrator.cli.terminal.options import Globals
    from orchestrator.client.admin import Sent
    from orchestrator.control.commands import Command
    from orchestrator.control.receipts import Receipts
    from orchestrator.services import Services

ANSWER_WITHIN_S: Final = 5.0
FORGED_SHOWN: Final = 20
"""Receipts without a valid signature that a table shows; anyone who can write to Redis can add more."""


@option_group("Options of control commands")
@dataclass(frozen=True, slots=True)
class CommandOptions:
    """Options of every control command."""

    reason: Annotated[str, option("--reason", metavar="TEXT")] = ""
    """Reason; kept with the command and shown with its effect."""

    no_wait: Annotated[bool, option("--no-wait")] = False
    """Do not wait for receipts."""

    timeout: Annotated[str | None, option("--timeout", metavar="DURATION")] = None
    """How long to wait for receipts [5s]."""

    def timeout_s(self) -> float | None:
        """Return the time-out in seconds, or None if the option is absent."""
        return duration_s("--timeout", self.timeout)


USUAL: Final = CommandOptions()


async def send_and_show(
    services: Services, command: Command, options: CommandOptions, common: Globals, *, until_done: bool = False
) -> int:
    """Give a command that is not a job, wait for the receipts and print them.

    Args:
        services: the pool.
        command: the command.
        options: its options.
        common: global options.
        until_done: wait until every process is done, by default without a time-out.

    Returns:
        The exit code: 0 every process answered or none runs; 1 one failed, or a receipt is forged; 4 one refused; 5 a
        receipt is missing; 6 the processes answered differently.

    Raises:
        CommandRefused: the command was not accepted; nothing changed.
    """
    from orchestrator.client.admin import Admin

    timeout_s = options.timeout_s()  # invalid options are refused before the command is given
    sent = await Admin(lambda: services).give(command, reason=options.reason)
    if options.no_wait:
        _show(sent, None, common)
        return DONE
    if until_done and timeout_s is None:
        output.hint(f"command {sent.id} is stored; Ctrl-C stops the waiting, not the command")
    elif timeout_s is None:
        timeout_s = ANSWER_WITHIN_S
    found = await sent.receipts(timeout=timeout_s, until_done=until_done)
    _show(sent, found, common)
    late = [*found.missing, *(found.busy if until_done else ())]
    if late:
        _report_late(sent, found, waited_s=timeout_s or 0.0)
    elif not found.answered and not found.forged:
        output.say(f"no process runs that could answer; command {sent.id} is stored and applies to those that start")
    if found.forged:
        _report_forged(sent, found)
    codes = [_exit_code(receipt.word) for receipt in found.answered] + [TIMED_OUT] * len(late)
    codes += [FAILED] * len(found.forged)
    return joint_exit_code(codes) if codes else DONE


def receipt_rows(found: Receipts, at: datetime) -> list[dict[str, Any]]:
    """Return a row for each receipt of a command that was accepted at this time."""
    return [
        {
            "sender": receipt.sender,
            "after_ms": max(0, round((receipt.at - at).total_seconds() * 1000)),
            "word": receipt.word,
            "detail": receipt.detail,
            "at": receipt.at,
        }
        for receipt in found.answered
    ] + [
        {
            "sender": receipt.sender,
            "after_ms": max(0, round((receipt.at - at).total_seconds() * 1000)),
            "word": "forged",
            "detail": f"{receipt.word}, without a valid signature",
            "at": receipt.at,
        }
        for receipt in found.forged[:FORGED_SHOWN]
    ]


def receipt_table(rows: Sequence[dict[str, Any]]) -> str:
    """Format the rows as a table."""
    shown = [
        [output.clean(row["sender"]), f"{row['after_ms']} ms", row["word"], output.clean(row["detail"])] for row in rows
    ]
    return output.table(shown, ("answered", "after", "word", "detail"))


def _show(sent: Sent, found: Receipts | None, common: Globals) -> None:
    rows = receipt_rows(found, sent.at) if found else []
    if common.output == "table":
        output.write(f"command {sent.id}: {output.clean(sent.command.words)}\n" + (receipt_table(rows) if rows else ""))
        return
    record: dict[str, Any] = {"id": sent.id, "kind": sent.command.kind, "words": sent.command.words, "at": sent.at}
    if found is not None:
        record |= {"answered": rows, "missing": found.missing, "busy": found.busy}
        record["forged"] = [receipt.sender for receipt in found.forged[:FORGED_SHOWN]]
    output.show_record(common.output, record, key="id")


def _report_late(sent: Sent, found: Receipts, *, waited_s: float) -> None:
    late = f"not answered within {waited_s:g} s: " + ", ".join(found.missing)
    if not found.missing:
        late = f"not done within {waited_s:g} s: " + ", ".join(found.busy)
    say_error(f"{late}; the command is active all the same, see `orc control show {sent.id}`")


def _report_forged(sent: Sent, found: Receipts) -> None:
    senders = ", ".join(output.clean(receipt.sender) for receipt in found.forged[:FORGED_SHOWN])
    more = f" and {len(found.forged) - FORGED_SHOWN} more" if len(found.forged) > FORGED_SHOWN else ""
    text = f"forged receipts, or those of an older program or of another secret: {senders}{more}; they do not count"
    say_error(f"{text}, see `orc doctor` and `orc control show {sent.id}`")


def _exit_code(word: str) -> int:
    return {"refused": REFUSED, "failed": FAILED}.get(word, DONE)
