"""`lua/README.md` lists every script and every module. Run this file as a script to write its tables anew."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from orchestrator.store.script_files import all_scripts

LUA: Final = Path(__file__).parents[2] / "lua"
PAGE: Final = LUA / "README.md"
_SENTENCE: Final = re.compile(r"[.:;] (?![^(]*\))")


def render_scripts() -> str:
    """Write one row per script: the first sentence of its header."""
    rows = []
    for name in all_scripts():
        lines = (LUA / f"{name}.lua").read_text(encoding="utf-8").splitlines()[1:]
        text = " ".join(line.removeprefix("-- ") for line in lines if line.startswith("-- "))
        rows.append(f"| `{name}` | {_SENTENCE.split(text)[0]} |\n")
    return "".join(["\n| script | does |\n|---|---|\n", *rows, "\n"])


def render_modules() -> str:
    """Write one row per module: its subject, its functions."""
    rows = []
    for path in sorted((LUA / "includes").glob("*.lua")):
        text = path.read_text(encoding="utf-8")
        functions = ", ".join(f"`{name}`" for name in re.findall(r"^local function (\w+)", text, re.MULTILINE))
        rows.append(f"| `{path.stem}` | {text.splitlines()[0].removeprefix('-- ').rstrip('.')} | {functions} |\n")
    return "".join(["\n| module | subject | functions |\n|---|---|---|\n", *rows, "\n"])


def render_page(text: str) -> str:
    """Put the present tables into the page."""
    for name, table in (("scripts", render_scripts()), ("modules", render_modules())):
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        before, _, rest = text.partition(begin)
        text = before + begin + table + end + rest.partition(end)[2]
    return text


def test_page_lists_scripts_and_modules() -> None:
    """The tables have every script and every module, in the words of the files."""
    text = PAGE.read_text(encoding="utf-8")
    assert text == render_page(text), f"run: python {__file__}"


if __name__ == "__main__":
    PAGE.write_text(render_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
