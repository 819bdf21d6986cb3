"""`docs/guides/doctor.md` lists every code of `orc doctor`. Run this file as a script to write its table anew."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

from orchestrator.doctor.findings import TOPICS

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "guides" / "doctor.md"
BEGIN: Final = "<!-- codes: begin -->\n"
END: Final = "<!-- codes: end -->\n"


def render_table() -> str:
    """Write one row per code: its name, when it is reported, what to do."""
    rows = [f"| `{topic.code}` | {topic.condition} | {topic.fix} |\n" for topic in TOPICS.values()]
    return "".join(["\n| code | trouble | fix |\n|---|---|---|\n", *rows, "\n"])


def test_page_has_every_code() -> None:
    """The table has every code with its cause and fix, and nothing else."""
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0] == render_table(), f"run: python {__file__}"


def test_every_code_is_in_use() -> None:
    """Each code can be found to be well and to be in trouble: some check answers both."""
    reported: dict[str, set[str]] = {code: set() for code in TOPICS}
    for module in (ROOT / "orchestrator" / "doctor").glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
                first = node.args[0]
                if node.func.id in {"ok", "warning", "problem"} and isinstance(first, ast.Constant):
                    reported[str(first.value)].add(node.func.id)
    assert not [code for code, severities in reported.items() if "ok" not in severities or len(severities) < 2]


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + render_table() + END + rest.partition(END)[2], encoding="utf-8")
