"""Types the commands of a page as it shows them, and compares what they print.

A console block has commands behind `$ `, each with its output below. In an output `…` stands for anything on a line, and
alone on a line for any lines.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.docs.pages import blocks
from tests.helpers.terminal import ORC

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.docs.pages import Block


def steps(page: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a page, in order, with the output that the page shows."""
    for block in blocks(page):
        if block.language == "console" and block.runs:
            yield from steps_of(block)


def steps_of(block: Block) -> Iterator[tuple[str, str]]:
    """Yield the commands of one block."""
    for step in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = step.partition("\n")
        yield command, shown


def type_command(command: str, *, folder: Path, environment: Mapping[str, str]) -> str:
    """Type a command in a shell, and return what it printed.

    Raises:
        AssertionError: it failed.
    """
    path = f"{Path(ORC).parent}:{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**environment, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=50,
        check=False,
    )
    printed = done.stdout.decode()
    assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{printed}"
    return printed


def check_output(command: str, shown: str, printed: str) -> None:
    """Compare what a command printed with what the page shows.

    Raises:
        AssertionError: they differ.
    """
    lines = [r"(?:.*\n)*" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n" for line in shown.splitlines()]
    assert re.fullmatch("".join(lines), printed), f"{command} printed\n{printed}and the page shows\n{shown}"
