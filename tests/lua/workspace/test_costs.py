"""What shared state costs the server: memory for each agent, commands for each change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lua.workspace.space import Space

pytestmark = pytest.mark.every_server


def memory(space: Space) -> int:
    """Bytes of all keys of the workspace; what tells repeats apart goes by itself and does not count."""
    names = [name for name in space.names() if ":ops" not in name and not name.endswith(":ws:ev")]
    return sum(int(space.execute("MEMORY", "USAGE", name, "SAMPLES", 0)) for name in names)


@pytest.mark.parametrize(("directive", "most"), [(False, 1300), (True, 5800)])
def test_bytes_per_agent(space: Space, *, directive: bool, most: int) -> None:
    """An agent with a place in the directory, a status and a draft, 100 bytes each. A directive costs a stream more.

    The server sets 4 KiB aside for the first entries of each stream.
    """

    def come(number: int) -> None:
        name, text = f"agent-{number:03}", b'"' + b"x" * 98 + b'"'
        space.join(name, 60_000, text)
        space.patch((f"agents.{name}.status", "set", text))
        space.patch(("draft", "set", text), owner=name)
        if directive:
            space.direct(name)

    for number in range(100):
        come(number)
    before = memory(space)
    for number in range(100, 200):
        come(number)
    assert 300 < (memory(space) - before) / 100 <= most


@pytest.mark.parametrize("space", [{"max_events": 10**6}], indirect=True)
def test_changes_do_not_grow(space: Space) -> None:
    """The same commands for a change of a small workspace and of a large one; for a log that is full one more."""

    def calls(change: Callable[[], object]) -> int:
        change()
        before = total_calls(space)
        for _ in range(10):
            change()
        return total_calls(space) - before

    changes: list[Callable[[], object]] = [
        lambda: space.append("log", b"1", cap=10**6),
        lambda: space.patch(("p",)),
        lambda: space.members("s", "add", "x"),
        lambda: space.transition("t", "open"),
        lambda: space.join("ada", 60_000),
    ]
    small = [calls(change) for change in changes]
    for start in range(0, 5000, 250):
        space.append("log", *[b"1"] * 250, cap=10**6)
        space.patch(*[(f"p{number}",) for number in range(start, start + 250)])
        space.members("s", "add", *[f"m{number}" for number in range(start, start + 250)])
    assert [calls(change) for change in changes] == small


def total_calls(space: Space) -> int:
    """Commands that the server has run, those inside scripts too."""
    lines = space.execute("INFO", "commandstats").decode().splitlines()
    return sum(int(line.split("calls=")[1].split(",")[0]) for line in lines if "calls=" in line)
