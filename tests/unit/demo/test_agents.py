"""The handlers of the demo's agents, each alone: what it asks others for, and what it makes of their answers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from orchestrator import TaskFailed
from orchestrator.workers.demo.analyst import list_imports, measure
from orchestrator.workers.demo.editor import audit
from orchestrator.workers.demo.models import (
    FileMeasure,
    Span,
    Tree,
)
from orchestrator.workers.demo.scanner import scan, survey
from orchestrator.workers.testing import run_skill

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.demo.conftest import WriteTree

SPAN = Span(agent="a", worker="w", task="t", what="it", started=time.time(), ended=time.time())
TREE = Tree(root="/r", package="", files=("a.py", "b.py"))


async def test_the_scanner_finds_the_files(write_tree: WriteTree) -> None:
    """Its result is the tree; its span names agent, worker and attempt."""
    root = write_tree({"a.py": "", "sub/b.py": "", "c.txt": ""})
    found = (await run_skill(scan, {"path": str(root)}, attempt=2)).value
    assert found.tree.files == ("a.py", "sub/b.py")
    assert (found.span.agent, found.span.attempt) == ("scanner", 2)


async def test_the_scanner_refuses_what_is_no_tree(tmp_path: Path) -> None:
    """A folder that is not there is a dead letter at the first attempt."""
    outcome = await run_skill(scan, {"path": str(tmp_path / "missing")})
    assert outcome.verdict == "dead"
    assert "does not exist" in outcome.reason


async def test_a_survey_asks_for_each_file() -> None:
    """Children in the order of the files; one that failed becomes a finding, not a failure."""
    measured = SPAN
    outcome = await run_skill(
        survey,
        {"root": "/r", "files": ["a.py", "b.py"]},
        children={measure: [measured, TaskFailed("t", "deaths")]},
    )
    assert [child.args for child in outcome.submitted] == [{"root": "/r", "path": path} for path in ("a.py", "b.py")]
    failed = FileMeasure(path="b.py", problem="its task failed: deaths")
    assert outcome.value.unmeasured == (failed,)
    assert len(outcome.value.spans) == 2


async def test_an_analyst_lists_imports(write_tree: WriteTree) -> None:
    """The imports of a file that cannot be parsed are none."""
    root = str(write_tree({"good.py": "import os\n", "bad.py": "def f(:\n"}))
    lists = (await run_skill(list_imports, {"root": root, "files": ["good.py", "bad.py"]})).value
    assert [len(one.imports) for one in lists.files] == [1, 0]


async def test_an_audit_needs_a_session() -> None:
    """Without a session there is nowhere to share anything: a dead letter at once, and nobody is asked."""
    outcome = await run_skill(audit, {"path": "/r", "out": "/o"})
    assert outcome.verdict == "dead"
    assert "submit it with session=" in outcome.reason
    assert not outcome.submitted
