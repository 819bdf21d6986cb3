"""The handlers of the demo's agents, each alone: what it asks others for, and what it makes of their answers."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from orchestrator import Submission, TaskFailed
from workers.demo.analyst import list_imports, measure
from workers.demo.editor import audit
from workers.demo.linker import link
from workers.demo.models import (
    FileMeasure,
    Found,
    ImportGraph,
    ImportList,
    Linked,
    Listed,
    Measured,
    Reviewed,
    Span,
    Surveyed,
    Tree,
)
from workers.demo.reviewer import review
from workers.demo.scanner import scan, survey
from workers.testing import run_skill

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.demo.conftest import Plant

SPAN = Span(agent="a", worker="w", task="t", what="it", started=time.time(), ended=time.time())
TREE = Tree(root="/r", package="", files=("a.py", "b.py"))


async def test_the_scanner_finds_the_files(plant: Plant) -> None:
    """Its result is the tree; its span names agent, worker and attempt."""
    root = plant({"a.py": "", "sub/b.py": "", "c.txt": ""})
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
    measured = Measured(file=FileMeasure(path="a.py"), span=SPAN)
    outcome = await run_skill(
        survey,
        {"root": "/r", "files": ["a.py", "b.py"]},
        children={measure: [measured, TaskFailed("t", "deaths")]},
    )
    assert [child.args for child in outcome.submitted] == [{"root": "/r", "path": path} for path in ("a.py", "b.py")]
    assert [file.problem for file in outcome.value.files] == ["", "its task failed: deaths"]
    assert len(outcome.value.spans) == 2


async def test_the_linker_fails_once_when_told_to() -> None:
    """The planted failure is the first attempt's; the second asks for the same children and returns their graph."""
    args = {"tree": TREE, "plant_failure": True}
    listed = Listed(files=tuple(ImportList(path=path) for path in TREE.files), span=SPAN)
    first, second = [
        await run_skill(link, _plain(args), attempt=attempt, children={list_imports: listed}) for attempt in (1, 2)
    ]
    assert (first.verdict, first.delay) == ("retry", timedelta(seconds=0.5))
    assert first.reason == "Retry: planted failure: shows what a retry looks like"
    assert second.verdict == "succeeded"
    assert (
        first.submitted == second.submitted == (Submission("list_imports", {"root": "/r", "files": ["a.py", "b.py"]}),)
    )
    assert len(second.value.graph.modules) == 2


async def test_an_analyst_reads_what_is_there(plant: Plant) -> None:
    """A file that cannot be parsed is a finding; its imports are none."""
    root = str(plant({"good.py": "import os\n\n\ndef f():\n    pass\n", "bad.py": "def f(:\n"}))
    good = (await run_skill(measure, {"root": root, "path": "good.py"})).value
    bad = (await run_skill(measure, {"root": root, "path": "bad.py"})).value
    lists = (await run_skill(list_imports, {"root": root, "files": ["good.py", "bad.py"]})).value
    assert (good.file.functions, bad.file.problem) == (1, "line 1: invalid syntax")
    assert [len(one.imports) for one in lists.files] == [1, 0]


async def test_the_reviewer_remarks() -> None:
    """Arguments arrive as models, remarks leave as such."""
    outcome = await run_skill(review, _plain({"file": FileMeasure(path="a.py", problem="unreadable")}))
    assert isinstance(outcome.value, Reviewed)


async def test_an_audit_joins_what_the_others_found(tmp_path: Path) -> None:
    """Every stage is asked for in its order and told of; the report is written from their answers."""
    out = tmp_path / "out"
    outcome = await run_skill(
        audit,
        {"path": "/r", "out": str(out), "plant_failure": False},
        children={
            scan: Found(tree=TREE, span=SPAN),
            survey: Surveyed(files=tuple(FileMeasure(path=path) for path in TREE.files), spans=(SPAN,)),
            link: Linked(graph=ImportGraph(modules=(), edges=()), spans=(SPAN,)),
            review: Reviewed(remarks=(), span=SPAN),
        },
    )
    assert outcome.value.files == 2
    assert [child.skill for child in outcome.submitted][:3] == ["scan", "link", "survey"]
    assert outcome.progress[0].message == "2 files are measured and linked"
    assert (out / "REPORT.md").exists()


async def test_an_audit_of_nothing_is_refused() -> None:
    """What the scanner refuses ends the audit at once, with its reason."""
    failed = TaskFailed("t", "no Python files")
    outcome = await run_skill(audit, {"path": "/r", "out": "/o"}, children={scan: failed})
    assert (outcome.verdict, outcome.reason) == ("dead", "nothing was audited: no Python files")


def _plain(args: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.model_dump(mode="json") if hasattr(value, "model_dump") else value for name, value in args.items()
    }
