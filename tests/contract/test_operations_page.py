"""`docs/guides/operations.md` shows each command that steers with an example that the command line takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

import pytest

from orchestrator.control.commands import KINDS
from tests.unit.cli.test_commands import COMMANDS

PAGE: Final = (Path(__file__).parents[2] / "docs" / "guides" / "operations.md").read_text(encoding="utf-8")
GROUPS: Final = {"control", "agents", "limits", "workers", "queues", "dead", "schedules"}
STEERING: Final = [
    *[" ".join(words) for words in COMMANDS if words[0] in GROUPS and len(words) > 1 and words[1] != "top"],
    "stop",
    "start",
    *[f"tasks {verb}" for verb in ("answer", "cancel", "retry", "delete", "why")],
]


def examples() -> list[str]:
    """What the page and the help of the declared commands say to type."""
    blocks = re.findall(r"^\$ (orc .*)$", PAGE, flags=re.MULTILINE)
    helped = [f"orc {model.verb} {typed}" for model in KINDS.values() for typed in model.examples]
    return [*re.findall(r"`(orc [^`]+)`", PAGE), *blocks, *helped]


@pytest.mark.parametrize("command", sorted(STEERING))
def test_shown(command: str) -> None:
    """There is an example of it."""
    words = ["orc", *command.split()]
    shown = [shlex.split(each.replace("…", "")) for each in examples()]
    assert [each for each in shown if each[: len(words)] == words], f"show `orc {command}` in docs/guides/operations.md"
