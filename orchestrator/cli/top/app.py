"""Runs `orc top`: one screen that shows a list of the pool and follows its changes.

It reads when the feed tells of a change, at most once a second, and else every 15 seconds; ages are drawn each second
from what was read. A key reads at once. One refresh is the state of the pool and one page of one list.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio
from rich.text import Text
from textual.app import App
from textual.binding import Binding
from textual.screen import Screen
from textual.widgets import Static

from orchestrator.cli.terminal.output import clean
from orchestrator.cli.top import drawing
from orchestrator.cli.top.actions import POOL
from orchestrator.cli.top.dialogs import HelpScreen, NameScreen, QuestionScreen, ReceiptsScreen
from orchestrator.cli.top.lists import LISTS, TopPage, TopRequest
from orchestrator.core.errors import CommandRefused, InvalidInput, OrchestratorError
from orchestrator.dashboard.feed import Feed
from orchestrator.views.control import lacks_secret
from orchestrator.views.health import read_health

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual import events
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from orchestrator.cli.top.actions import Action
    from orchestrator.cli.top.lists import PoolList, TopRow
    from orchestrator.client.client import Orchestrator
    from orchestrator.views.health import PoolHealth

LEAST_GAP_S: Final = 1.0
"""Between two reads that no key asked for, and between two reads of the state of the pool."""
KEY_GAP_S: Final = 0.2
"""Between two reads, so that a key that is held down costs no more."""
AT_REST_S: Final = 15.0
"""How often a list is read again while nothing seems to change: heartbeats change without notice."""
MOST_ROWS: Final = 50


class PoolScreen(Screen[None]):
    """Shows one list at a time."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up"),
        Binding("down,j", "move(1)", "Down"),
        Binding("left,shift+tab", "turn(-1)", "List before"),
        Binding("right,tab", "turn(1)", "Next list"),
        Binding("n,pagedown", "next_page", "Next page"),
        Binding("b,pageup", "page_before", "Page before"),
        Binding("slash", "ask_name", "Names"),
        Binding("enter", "receipts", "Receipts"),
        Binding("space", "read_again", "Read again"),
        Binding("question_mark", "help", "Keys"),
        Binding("q,ctrl+c", "app.quit", "End"),
    ]

    def __init__(self, orc: Orchestrator) -> None:
        super().__init__()
        self._orc = orc
        self._services = orc.services
        self._feed = Feed(orc.services)
        self._changes = 0
        self._wanted = anyio.Event()
        self._list: PoolList = LISTS[0]
        self._health: PoolHealth | None = None
        self._health_s = -math.inf
        self._found: tuple[PoolList, Any] | None = None
        """The list that was read, and what its reader returned."""
        self._cursors: list[str | None] = [None]
        """Where the pages up to this one begin."""
        self._starts = ""
        self._found_s = -math.inf
        self._found_changes = 0
        self._row = 0
        self._key = ""
        """Of the row under the cursor."""
        self._trouble = ""
        self._said = ""
        self._lines = {
            name: Static("", id=name) for name in ("title", "counts", "rates", "tabs", "rows", "note", "keys")
        }
        self.reads = 0
        """Refreshes so far."""

    def compose(self) -> ComposeResult:
        """Make the lines of the screen."""
        yield from self._lines.values()

    def on_mount(self) -> None:
        """Begin to follow the pool, and draw ages each second."""
        self.set_interval(1.0, self._draw)
        self.run_worker(self._follow())

    # --------------------------------------------------------------------------------------------------------- reading

    async def _follow(self) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(self._feed.run)
            with self._feed.reader():
                while True:
                    asked, self._wanted = self._wanted.is_set(), anyio.Event()
                    await self._read(asked=asked)
                    self._draw()
                    await anyio.sleep(KEY_GAP_S)
                    with anyio.move_on_after(LEAST_GAP_S - KEY_GAP_S):
                        await self._wanted.wait()
                    if not self._wanted.is_set() and not self._trouble:
                        await self._wait()

    async def _wait(self) -> None:
        """Wait for a change since the state of the pool was read, a key, or the next look."""
        async with anyio.create_task_group() as group:

            async def end_on_key() -> None:
                await self._wanted.wait()
                group.cancel_scope.cancel()

            group.start_soon(end_on_key)
            due_s = (
                AT_REST_S
                if self._found_changes == self._changes
                else self._found_s + self._list.every_s - time.monotonic()
            )
            await self._feed.wait(self._changes, most_s=max(0.0, due_s))
            group.cancel_scope.cancel()

    async def _read(self, *, asked: bool) -> None:
        """Read the state of the pool and a page of the list, each unless that was just now."""
        wanted, cursors, starts, now_s = self._list, self._cursors, self._starts, time.monotonic()
        try:
            if self._health is None or self._trouble or now_s - self._health_s >= LEAST_GAP_S - KEY_GAP_S:
                self._changes, self._health_s = self._feed.changes, now_s
                self._health = await read_health(self._services)
            if asked or self._trouble or now_s - self._found_s >= wanted.every_s:
                self._found_changes, self._found_s = self._feed.changes, now_s
                page = TopRequest(self._services, self._health, cursors[-1], starts, self._page_rows())
                found = await wanted.read(page)
                if self._cursors is cursors:  # else a key has turned the page meanwhile
                    self._found = (wanted, found)
        except OrchestratorError as failure:
            self._trouble = str(failure)
            return
        self._trouble = ""
        self.reads += 1

    def _page_rows(self) -> int:
        return max(1, min(MOST_ROWS, self._lines["rows"].size.height - 1))

    def _ask(self) -> None:
        """Read again as soon as may be."""
        self._wanted.set()
        self._draw()

    # --------------------------------------------------------------------------------------------------------- drawing

    def _listed(self) -> TopPage | None:
        if self._found is None or self._found[0] is not self._list:
            return None
        return self._list.show(self._found[1])

    def _draw(self) -> None:
        width = self.size.width
        listed = self._listed()
        self._put("title", self._title(), width)
        counts, rates = drawing.head(self._health) if self._health is not None else ("", "")
        self._put("counts", counts, width)
        self._put("rates", rates, width)
        self._put("tabs", "  ".join(map(self._tab, range(len(LISTS)))), width)
        self._draw_rows(listed, width)
        self._put("note", self._said or self._note(listed), width)
        self._put("keys", self._keys(), width)

    def _title(self) -> str:
        where = f"orc top  pool {self._services.settings.pool}"
        if self._trouble:
            return f"{where}  ✕ not current: {self._trouble}"
        if self._health is None:
            return f"{where}  reading"
        leader = f"supervisor {self._health.supervisor}" if self._health.supervisor else "✕ no supervisor"
        return f"{where}  {'■ STOPPED  ' if self._health.stopped else ''}{leader}"

    def _tab(self, number: int) -> str:
        title = f"{number + 1} {LISTS[number].title}"
        return f"[{title}]" if LISTS[number] is self._list else title

    def _draw_rows(self, listed: TopPage | None, width: int) -> None:
        place = self._lines["rows"]
        if listed is None:
            place.update(Text("Reading."))
            return
        if not listed.rows:
            starts = f" Names that begin with {clean(self._starts)}." if self._starts else ""
            place.update(Text(self._list.empty + starts))
            return
        self._keep_row(listed.rows)
        # The page was read for the height that the terminal had then.
        shown, first = place.size.height - 1, 0
        if shown > 0:
            first = max(0, self._row - shown + 1)
        rows = [row.cells for row in listed.rows[first : first + max(1, shown)]]
        place.update(drawing.table(self._list.columns, rows, current=self._row - first, width=width))

    def _keep_row(self, rows: Sequence[TopRow]) -> None:
        """Keep the cursor on its row while others come and go."""
        known = {row.key: number for number, row in enumerate(rows)}
        self._row = known.get(self._key, min(self._row, len(rows) - 1))
        self._key = rows[self._row].key

    def _note(self, listed: TopPage | None) -> str:
        if listed is None:
            return ""
        page = f"page {len(self._cursors)}" if listed.cursor or len(self._cursors) > 1 else ""
        more = "n: next page" if listed.cursor else ""
        starts = f"names that begin with {self._starts}" if self._starts else ""
        return "  ".join(filter(None, (page, more, starts, listed.note)))

    def _keys(self) -> str:
        actions = "  ".join(f"{each.key} {each.word}" for each in (*self._list.actions, *POOL))
        return f"{actions}  ? keys  q end"

    def _put(self, place: str, text: str, width: int) -> None:
        self._lines[place].update(Text(drawing.line(text, width)))

    # ------------------------------------------------------------------------------------------------------------ keys

    def on_key(self, event: events.Key) -> None:
        """Change the list, or begin an action."""
        pressed = event.character or ""
        if pressed.isdecimal() and 0 < int(pressed) <= len(LISTS):
            self._open(int(pressed) - 1)
            return
        action = next((each for each in (*self._list.actions, *POOL) if each.key == pressed), None)
        if action is not None:
            event.stop()
            self._begin(action)

    def on_resize(self) -> None:
        """Read as many rows as there is room for."""
        self._ask()

    def _open(self, number: int) -> None:
        self._list = LISTS[number % len(LISTS)]
        self._cursors, self._starts, self._row, self._key, self._said = [None], "", 0, "", ""
        self._ask()

    def action_turn(self, by: int) -> None:
        """Show the list before or behind this one."""
        self._open(LISTS.index(self._list) + by)

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        listed = self._listed()
        if listed is not None and listed.rows:
            self._row = max(0, min(len(listed.rows) - 1, self._row + by))
            self._key = listed.rows[self._row].key
        self._said = ""
        self._draw()

    def action_next_page(self) -> None:
        """Show the next page, if there is one."""
        listed = self._listed()
        if listed is not None and listed.cursor is not None:
            self._show_page([*self._cursors, listed.cursor])

    def action_page_before(self) -> None:
        """Show the page before this one."""
        if len(self._cursors) > 1:
            self._show_page(self._cursors[:-1])

    def _show_page(self, cursors: list[str | None]) -> None:
        self._cursors, self._row, self._key, self._found, self._said = cursors, 0, "", None, ""
        self._ask()

    def action_read_again(self) -> None:
        """Read now."""
        self._said = ""
        self._ask()

    async def action_help(self) -> None:
        """List the keys."""
        await self.app.push_screen(HelpScreen())

    async def action_ask_name(self) -> None:
        """Ask which names to show."""
        if self._list.named:
            await self.app.push_screen(NameScreen(self._starts), self._narrow)
        else:
            self._say("this list has no names; queues, agents and workers have")

    def _narrow(self, starts: str | None) -> None:
        if starts is not None:
            self._starts = starts
            self._show_page([None])

    async def action_receipts(self) -> None:
        """Show the receipts of the command under the cursor."""
        row = self._current()
        if row is not None and row.command is not None:
            await self.app.push_screen(ReceiptsScreen(self._services, row.command))

    def _current(self) -> TopRow | None:
        listed = self._listed()
        return listed.rows[self._row] if listed is not None and self._row < len(listed.rows) else None

    def _say(self, text: str) -> None:
        self._said = text
        self._draw()

    # --------------------------------------------------------------------------------------------------------- actions

    def _begin(self, action: Action) -> None:
        row = self._current()
        if not action.everywhere and (row is None or row.target is None):
            self._say(f"there is no row to {action.word}")
            return
        self.run_worker(self._act(action, None if row is None else row.target), group="action", exclusive=True)

    async def _act(self, action: Action, target: Any) -> None:
        """Ask, give the command, and show its receipts."""
        try:
            if await lacks_secret(self._services):
                raise InvalidInput("the pool's commands are signed, and this program has no control.secret")
            question = await action.ask(self._services, target)
            reason = await self.app.push_screen_wait(QuestionScreen(question))
            if reason is None:
                self._say("no command was given; nothing was changed")
                return
            sent = await self._orc.admin.give(question.command, id_=question.id_, reason=reason, tasks=question.tasks)
        except CommandRefused as refused:
            self._say(str(refused))
        except OrchestratorError as failure:
            self._say(f"{action.word}: {failure}")
        else:
            self._said = f"gave {question.command.words}"
            self._ask()
            await self.app.push_screen_wait(ReceiptsScreen(self._services, sent.id))
            self._ask()  # no feed tells of the end of a job


class TopApp(App[None]):
    """The program on the terminal; it has the colours of the terminal, and none with `NO_COLOR`."""

    CSS = """
    PoolScreen Static { height: 1; text-wrap: nowrap; text-overflow: clip; }
    PoolScreen #rows { height: 1fr; }
    PoolScreen #title { text-style: reverse; }
    Dialog { align: center middle; }
    Dialog > Vertical { width: 76; height: auto; max-height: 100%; border: ascii; padding: 0 1; }
    Dialog Static { height: auto; }
    Dialog Input { border: ascii; }
    Dialog Input:focus { border: ascii; text-style: bold; }
    Dialog Horizontal { height: 1; }
    Dialog Button { margin-right: 2; }
    Dialog Button:focus { text-style: reverse bold; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", "End", priority=True)]

    def __init__(self, orc: Orchestrator) -> None:
        super().__init__(ansi_color=True)
        self.pool = PoolScreen(orc)

    async def on_mount(self) -> None:
        """Show the pool."""
        self.theme = "ansi-dark"
        await self.push_screen(self.pool)
