"""`orc top` as a program on a terminal of its own: what it writes there, and that it gives the terminal back."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Final

import pytest

from tests.helpers.terminal import ORC, Terminal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.faultkit.servers import RedisServer

COLOUR: Final = re.compile(rb"\x1b\[(?:[\d;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[\d;]*)?m")
ENTERED: Final = b"\x1b[?1049h"
LEFT: Final = b"\x1b[?1049l"
"""What switches to the other screen of a terminal and back."""


class TypedTop:
    """A running `orc top`."""

    def __init__(self, terminal: Terminal, **variables: str) -> None:
        self._ours, theirs = pty.openpty()
        self.screen = b""
        self.program = subprocess.Popen(
            [ORC, "top"],
            cwd=terminal.folder,
            env={**terminal.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24", **variables},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def press(self, keys: str) -> None:
        """Press keys."""
        os.write(self._ours, keys.encode())

    def read_until(self, text: str, within_s: float = 30.0) -> None:
        """Read what it writes until a text is among it."""
        self._read(lambda: text.encode() in self.screen, within_s)
        if text.encode() not in self.screen:
            self.program.kill()
        assert text.encode() in self.screen, self.screen[-3000:]

    def end(self) -> int:
        """Read the rest and return the exit code."""
        self._read(lambda: False, 30)
        os.close(self._ours)
        try:
            return self.program.wait(20)
        finally:
            self.program.kill()

    def _read(self, enough: Callable[[], bool], within_s: float) -> None:
        deadline_s = time.monotonic() + within_s
        while not enough() and time.monotonic() < deadline_s:
            if select.select([self._ours], [], [], 0.1)[0]:
                try:
                    data = os.read(self._ours, 65_536)
                except OSError:  # it has closed its side
                    return
                self.screen += data


@pytest.fixture
def terminal(redis_server: RedisServer, prefix: str, tmp_path: Path) -> Terminal:
    """A terminal whose commands see a pool with one waiting task."""
    made = Terminal(tmp_path, ORC_REDIS__URL=redis_server.url, ORC_PREFIX=prefix)
    assert made.orc("tasks", "submit", "translate").code == 0
    return made


@pytest.mark.parametrize("colours", [True, False])
def test_on_a_terminal(terminal: Terminal, *, colours: bool) -> None:
    """It shows the pool, gives a command and ends; without colours if `NO_COLOR` says so."""
    top = TypedTop(terminal, **({} if colours else {"NO_COLOR": "1"}))
    top.read_until("[1 Overview]")
    top.read_until("no worker runs")
    top.press("2")
    top.read_until("> skill:translate")
    top.press("p")
    top.read_until("Give the command pause-queue")
    top.press("\r")
    top.read_until("0 missing")
    top.press("\r")
    top.read_until("■ paused")
    top.press("q")
    assert top.end() == 0
    assert ENTERED in top.screen
    assert LEFT in top.screen
    assert bool(COLOUR.search(top.screen)) is colours
    assert "pause-queue" in terminal.orc("control", "list").out


def test_a_signal_gives_the_terminal_back(terminal: Terminal) -> None:
    """SIGTERM ends it as `q` does."""
    top = TypedTop(terminal)
    top.read_until("[1 Overview]")
    top.program.send_signal(signal.SIGTERM)
    assert top.end() == 0
    assert LEFT in top.screen


def test_without_a_server(tmp_path: Path) -> None:
    """When Redis does not answer at the start, it says so instead of an empty screen."""
    top = TypedTop(Terminal(tmp_path, ORC_REDIS__URL="redis://127.0.0.1:1", ORC_REDIS__COMMAND_TIMEOUT_S="0.1"))
    assert top.end() == 69
    assert b"127.0.0.1:1" in top.screen
    assert ENTERED not in top.screen
