"""Scripts and the table of damage kinds name the same codes."""

from __future__ import annotations

import re
from typing import Final

from orchestrator.repair.findings import DAMAGE_KINDS
from orchestrator.store.script_files import all_scripts

_OF_TASKS: Final = ("tasks/repair", "tasks/check_inbox", "tasks/check_keys", "agents/repair", "schedules/repair")
SCRIPTS: Final = (
    *_OF_TASKS,
    *sorted(name for name in all_scripts() if name.startswith("repair/")),
    "memory/check_vectors",
)


def test_the_scripts_know_the_same_codes() -> None:
    """Each code that a script explains is in the table; those of the table come from a script, but two."""
    told: set[str] = set()
    for name in SCRIPTS:
        text = all_scripts()[name].text
        told |= set(re.findall(r"'(\w+(?:-\w+)+|gone|damaged|unreadable|misplaced)'", text)) & set(DAMAGE_KINDS)
        header = " ".join(line.removeprefix("--") for line in text.splitlines()[1:30] if line.startswith("--"))
        codes = re.sub(r"\([^)]*\)", "", header.partition("codes:")[2].partition("returns:")[0])
        assert set(re.findall(r"[a-z]+(?:-[a-z]+)*", codes)) <= set(DAMAGE_KINDS), name
    assert set(DAMAGE_KINDS) - told == {"foreign", "renamed"}
