"""A class name means one class in the product."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_class_names_occur_once() -> None:
    """No two classes of `orchestrator/` and `workers/` share a name, so that a traceback names one class."""
    names = Counter(
        node.name
        for folder in ("orchestrator", "workers")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "orchestrator/workers" not in path.as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert len(names) > 400
    assert {name: count for name, count in names.items() if count > 1} == {}
