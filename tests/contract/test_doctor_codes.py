"""Every code of `orc doctor` can be reported as ok and as trouble."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

from orchestrator.doctor.findings import TOPICS

ROOT: Final = Path(__file__).parents[2]


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
