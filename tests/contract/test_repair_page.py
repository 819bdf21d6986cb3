"""`docs/guides/repair.md` lists every code of a walk. Run this file as a script to write its table anew."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from orchestrator.repair.findings import DAMAGE_KINDS
from orchestrator.store.script_files import all_scripts

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "guides" / "repair.md"
BEGIN: Final = "<!-- codes: begin -->\n"
END: Final = "<!-- codes: end -->\n"
SCRIPTS: Final = ("tasks/repair", "tasks/check_inbox", "tasks/check_keys", "agents/repair", "schedules/repair")


def render_table() -> str:
    """Write one row per code: what is wrong, what a repair does."""
    rows = [
        f"| `{each.code}`{', harmless' * each.harmless} | {each.found} | {each.repair or 'Nothing: look at it.'} |\n"
        for each in DAMAGE_KINDS.values()
    ]
    return "".join(["\n| code | what is wrong | what a repair does |\n|---|---|---|\n", *rows, "\n"])


def test_page_has_every_code() -> None:
    """The table has every code with what is wrong and what is done, and nothing else."""
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0] == render_table(), f"run: python {__file__}"


def test_the_scripts_know_the_same_codes() -> None:
    """Each code that a script explains is in the table; those of the table come from a script, but `foreign`."""
    told: set[str] = set()
    for name in SCRIPTS:
        text = all_scripts()[name].text
        told |= set(re.findall(r"'(\w+(?:-\w+)+|gone|damaged|unreadable|misplaced)'", text)) & set(DAMAGE_KINDS)
        header = " ".join(line.removeprefix("--") for line in text.splitlines()[1:30] if line.startswith("--"))
        codes = re.sub(r"\([^)]*\)", "", header.partition("codes:")[2].partition("returns:")[0])
        assert set(re.findall(r"[a-z]+(?:-[a-z]+)*", codes)) <= set(DAMAGE_KINDS), name
    assert set(DAMAGE_KINDS) - told == {"foreign"}


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + render_table() + END + rest.partition(END)[2], encoding="utf-8")
