"""Types `orc` on a pseudo terminal, and finds what in its output a terminal obeys or a reader does not see."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import pty
import re
import sys
import threading
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.cli.app import main

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FORGED: Final = "FORGED"
"""Begins the lines that no text may start."""
HOSTILE: Final = (
    "red\x1b[8m \x1b]0;owned\x07\x1b]52;c;aGk=\x1b\\ \x1bc\x1b[2J\x9b2J\x9d0;owned\x9c \u202egnp\u2066\u200f "
    f"\u200b\ufeff\xad\U000e0041 \x00\x07\x08\x7f\r\n{FORGED} done\u2028{FORGED}\x85{FORGED}\x0b{FORGED}\r{FORGED}"
)
"""A text that writes to the clipboard, renames the window, clears the screen, and hides, reorders and forges lines."""

_OWN: Final = re.compile(r"\x1b\[(?:0|1|2|3[0-7])m|\r\x1b\[K")
"""Colours of the program, and the erasure of its progress bar. `HOSTILE` has neither."""
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def unsafe_in(screen: bytes) -> list[str]:
    """Return the characters that a terminal obeys or does not show, and the lines that a text has started."""
    lines = _OWN.sub("", screen.decode()).replace("\r\n", "\n").split("\n")
    found = {f"{char!a} in {line[:300]!a}" for line in lines for char in line if unicodedata.category(char) in _HIDDEN}
    return sorted(found) + [f"a line: {line[:200]!a}" for line in lines if line.startswith(FORGED)]


class Screen:
    """The output of a program on a terminal of its own.

    Attributes:
        terminal: file number of the program's side.
        text: what came out so far.
    """

    def __init__(self) -> None:
        self._ours, self.terminal = pty.openpty()
        os.write(self._ours, b"n\n")  # the answer to a question
        self.text = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the program's side is closed
            while data := os.read(self._ours, 65_536):
                self.text += data

    def close(self) -> None:
        """Wait for the rest of the output, when the program has ended."""
        os.close(self.terminal)
        self._reader.join(10)
        os.close(self._ours)


@contextlib.contextmanager
def _on(screen: Screen, environ: Mapping[str, str], folder: Path) -> Iterator[None]:
    """Let this process use the terminal, with other variables and in another folder."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    streams, variables, here = (sys.stdin, sys.stdout, sys.stderr), dict(os.environ), Path.cwd()
    ends = [
        io.TextIOWrapper(os.fdopen(os.dup(screen.terminal), mode, buffering=0), encoding="utf-8", write_through=True)
        for mode in ("rb", "wb", "wb")
    ]
    sys.stdin, sys.stdout, sys.stderr = ends
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
        os.environ.clear()
        os.environ.update(variables)
        os.chdir(here)
        for added in [handler for handler in root.handlers if handler not in handlers]:
            added.close()
        root.handlers[:] = handlers
        root.setLevel(level)
        for end in ends:
            end.close()


def type_on_terminal(environ: Mapping[str, str], folder: Path, *words: str) -> tuple[int, bytes]:
    """Run a command inside this process, on a terminal that is wide; return its exit code and its output."""
    screen = Screen()
    with _on(screen, {**environ, "TERM": "xterm", "COLUMNS": "100000"}, folder):
        code = main(words)
    screen.close()
    return code, screen.text
