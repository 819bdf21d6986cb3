"""Asks before a command is given, shows its receipts as they come, and lists the keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

import anyio
from rich.text import Text
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from orchestrator.cli.terminal.output import ago, clean
from orchestrator.cli.top.actions import POOL
from orchestrator.cli.top.lists import LISTS
from orchestrator.control.commands import KINDS, Job
from orchestrator.core.errors import OrchestratorError
from orchestrator.views.control import job_state, read_command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from orchestrator.cli.top.actions import Confirmation
    from orchestrator.services import Services
    from orchestrator.views.control import CommandView

LOOK_EVERY_S: Final = 1.0
SHOWN: Final = 12
"""Receipts of one command that are shown, those that are missing first."""

Answer = TypeVar("Answer")


class Dialog(ModalScreen[Answer]):
    """Base of the screens that lie over the list until they are closed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Close")]

    def action_leave(self) -> None:
        """Close without an answer."""
        self.close(None)

    def close(self, answer: Answer | None) -> None:
        """Close with this answer."""
        _ = self.dismiss(answer)  # it ends when the message that closes the screen has been handled


class QuestionScreen(Dialog[str | None]):
    """Asks whether a command is to be given; the answer is the reason, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("n", "leave", "Leave it"), Binding("y", "agree", "Give it")]

    def __init__(self, question: Confirmation) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Show the command, what it is about, and what must be typed."""
        asked = self._question
        with Vertical():
            yield Static(Text(f"Give the command {clean(asked.command.words)}?"), id="question")
            if asked.about:
                yield Static(Text(clean(asked.about)[:300]))
            if asked.danger == "C":
                yield Static("This cannot be undone.")
            if asked.name:
                yield Static(Text(f"Type {clean(asked.name)} to go on:"))
                yield Input(id="name", select_on_focus=False)
            yield Static("Reason:" if self._needs_reason else "Reason, if there is one to record:")
            yield Input(id="reason", max_length=500, select_on_focus=False)
            yield Static("", id="lacks")
            with Horizontal():
                yield Button(Text("[ Give it ]"), id="give", compact=True)
                yield Button(Text("[ Leave it ]"), id="leave", compact=True)

    def on_mount(self) -> None:
        """Put the focus where a person must act."""
        at = "#name" if self._question.name else {"A": "#give", "B": "#leave", "C": "#reason"}[self._question.danger]
        self.query_one(at).focus()

    @property
    def _needs_reason(self) -> bool:
        return self._question.danger == "C"

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Take the answer."""
        if event.button.id == "give":
            self.action_agree()
        else:
            self.close(None)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Go on to the reason, and from there to the end."""
        if event.input.id == "name":
            self.query_one("#reason").focus()
        else:
            self.action_agree()

    def action_agree(self) -> None:
        """Give the command, unless something must be typed first."""
        reason = self.query_one("#reason", Input).value.strip()
        lacks = ""
        if self._question.name and self.query_one("#name", Input).value != self._question.name:
            lacks = f"Type {self._question.name} first; nothing was changed."
        elif self._needs_reason and not reason:
            lacks = "This command needs a reason; nothing was changed."
        if lacks:
            self.query_one("#lacks", Static).update(Text(clean(lacks)))
        else:
            self.close(reason)


class ReceiptsScreen(Dialog[None]):
    """Shows a command with its receipts, and reads them again each second until none is missing."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter,q", "leave", "Close")]

    def __init__(self, services: Services, command: str) -> None:
        super().__init__()
        self._services = services
        self._command = command
        self._text = Static("Reading the receipts.")

    def compose(self) -> ComposeResult:
        """Show a place for the receipts."""
        with Vertical():
            yield self._text
            yield Static("Enter or Escape closes this. The command goes on.")

    def on_mount(self) -> None:
        """Begin to read."""
        self.run_worker(self._follow())

    async def _follow(self) -> None:
        waits = True
        while waits:
            try:
                found = await read_command(self._services, self._command)
            except OrchestratorError as failure:
                lines = [clean(str(failure)), "It is read again."]
            else:
                lines = list(receipt_lines(found))
                waits = _waits(found)
            self._text.update(Text("\n".join(lines)))
            await anyio.sleep(LOOK_EVERY_S)


def _waits(found: CommandView) -> bool:
    if found.record.state == "refused":
        return False
    if _is_job(found):
        return not job_state(found.receipts).ended
    return bool(found.receipts.missing or found.receipts.busy)


def _is_job(found: CommandView) -> bool:
    model = KINDS.get(found.record.kind)
    return model is not None and issubclass(model, Job)


def receipt_lines(found: CommandView) -> Iterator[str]:
    """Return the lines that tell of a command and its receipts."""
    record, receipts = found.record, found.receipts
    yield clean(record.words or record.kind)
    yield clean(f"by {record.actor} {ago(record.at)}" + (f": {record.reason}" if record.reason else ""))
    yield clean(f"{record.state}" + (f": {record.problem}" if record.problem else ""))
    if _is_job(found):
        job = job_state(receipts)
        ends = ", ".join(f"{number:,} {end}" for end, number in job.ends.items())
        yield clean(f"job {job.word} {job.detail} {ends}".rstrip())
    lines = [f"… {name} has not answered" for name in receipts.missing]
    lines += [
        f"{'✕' if one.word in {'failed', 'refused'} else '✓'} {one.sender} {one.word} {one.detail}".rstrip()
        for one in receipts.answered
    ]
    yield from (clean(each)[:200] for each in lines[:SHOWN])
    yield f"{len(receipts.answered):,} answered, {len(receipts.missing):,} missing" + (
        f", {len(receipts.busy):,} not done yet" if receipts.busy else ""
    )


class NameScreen(Dialog[str | None]):
    """Asks for the beginning of the names that a list shows; the answer may be empty."""

    def __init__(self, starts: str) -> None:
        super().__init__()
        self._starts = starts

    def compose(self) -> ComposeResult:
        """Show the field."""
        with Vertical():
            yield Static("Names that begin with (empty: all):")
            yield Input(self._starts, select_on_focus=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the answer."""
        self.close(event.value)


class HelpScreen(Dialog[None]):
    """Lists the keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter,q,question_mark", "leave", "Close")]

    def compose(self) -> ComposeResult:
        """Show the keys."""
        with Vertical():
            yield Static(Text("\n".join(help_lines())))


def help_lines() -> Iterator[str]:
    """Return a line for each group of keys."""
    yield "1 to 6    " + ", ".join(one.title for one in LISTS)
    yield "← →       the list before, the next list"
    yield "↑ ↓ j k   the row before, the next row"
    yield "n b       the next page, back to the page before"
    yield "/         show names that begin with a text"
    yield "Enter     show the receipts of the command in this row"
    yield "space     read again now"
    yield "q         end"
    for one in LISTS:
        if one.actions:
            yield f"{one.title}: " + ", ".join(f"{each.key} {each.word}" for each in one.actions)
    yield "everywhere: " + ", ".join(f"{each.key} {each.word}" for each in POOL)
    yield "Each action asks first. Escape closes this."
