"""The demo's team on real Redis: from a folder to its reports, with a planted failure and with crashes."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import pytest

from orchestrator import Agent, Submission, TaskContext, TaskFailed
from orchestrator.workers.demo.analyst import measure
from orchestrator.workers.demo.editor import audit
from orchestrator.workers.demo.linker import link
from orchestrator.workers.demo.models import AuditResult
from orchestrator.workers.demo.reviewer import review
from orchestrator.workers.demo.scanner import scan, survey
from orchestrator.workers.demo.team import team as agents
from orchestrator.workers.testing import Team

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orchestrator import Snapshot, WorkspaceView
    from orchestrator.workers.testing.crashes import Step
    from tests.faultkit.servers import RedisServer

PLANTED = {"scan": 1, "survey": 1, "link": 1, "list_imports": 1, "measure": 4, "review": 2}
"""The children of an audit of the planted shop: reviews of the two files of the loop."""


@pytest.fixture
def make(redis_server: RedisServer, prefix: str) -> Callable[..., Team]:
    """Make the demo's team in the namespace of this test."""
    return partial(Team, *agents, url=redis_server.url, prefix=prefix)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A tree with one import cycle, one complexity of 13, one missing docstring and one broken file."""
    package = tmp_path / "src" / "shop"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"""A shop."""\n')
    (package / "cart.py").write_text(
        '"""Carts."""\n\nfrom shop import price\n\n\ndef total(n):\n    return price.of(n)\n'
    )
    (package / "price.py").write_text(
        '"""Prices."""\n\nimport os\nfrom .cart import total\n\n\ndef of(n):\n    """Price."""\n'
        + "".join(f"    if n == {n}:\n        return {n}\n" for n in range(12))
    )
    (package / "broken <i>.py").write_text("def f(:\n")
    return package.parent


async def check_shared(workspace: WorkspaceView) -> Snapshot:
    """See that each finding was shared once, by events too; answer the snapshot."""
    shared = await workspace.snapshot()
    found = [entry.value for entry in shared.logs["measures"]]
    assert sorted(file["path"] for file in found) == [
        "shop/__init__.py", "shop/broken <i>.py", "shop/cart.py", "shop/price.py",
    ]  # fmt: skip
    remarks = [(entry.value["path"], entry.value["rule"]) for entry in shared.logs["remarks"]]
    assert sorted(remarks) == [
        ("shop/cart.py", "cycle"), ("shop/price.py", "complexity"), ("shop/price.py", "cycle"),
    ]  # fmt: skip
    (graph,) = shared.logs["graphs"]
    assert (graph.value, graph.agent) == ({"modules": 4, "imports": 2, "cycles": 1}, "linker")
    assert {path: (held.value, held.version) for path, held in shared.paths.items()} == {
        "files_measured": (4, 4), "files_reviewed": (2, 2),
    }  # fmt: skip
    assert shared.states["audit"].state == "reporting"
    events = [event async for event in workspace.events("0-0", block=0)]
    made = Counter((event.agent, event.kind) for event in events)
    assert made == {
        ("editor", "transition"): 4, ("analyst", "append"): 4, ("analyst", "patch"): 4, ("linker", "append"): 1,
        ("reviewer", "append"): 2, ("reviewer", "patch"): 2,
    }  # fmt: skip
    assert [event.revision for event in events] == list(range(1, shared.revision + 1))
    return shared


def check_reports(out: Path) -> str:
    """See that the report names exactly what was planted; answer it."""
    markdown = (out / "REPORT.md").read_text()
    assert "`shop.cart` → `shop.price` → `shop.cart` (imports at `shop/cart.py:3`, `shop/price.py:4`)" in markdown
    assert "| `of` | `shop/price.py:7` | 13 | 1 | 26 |" in markdown
    assert "| `shop/cart.py` | 1 of 2 | `total` (line 6) |" in markdown
    assert "| `shop/broken <i>.py` | line 1: invalid syntax |" in markdown
    assert (out / "report.html").read_text().endswith("</html>\n")
    return markdown


async def test_an_audit_reports_exactly_what_was_planted(make: Callable[..., Team], shop: Path, tmp_path: Path) -> None:
    """Two workers audit a tree: every child ends once, the linker is retried once, the reports name the faults."""
    async with make(workers=2) as team:
        args = {"path": str(shop), "out": str(tmp_path / "out")}
        result = await team.run(audit, args, session="s", skip_time=True)
        assert (result.files, result.functions, result.cycles, result.attempts - result.tasks) == (4, 2, 1, 1)
        assert result.tasks == 1 + sum(PLANTED.values())
        for skill, times in PLANTED.items():
            team.assert_submitted(skill, times=times)
        assert {str(task.state) for task in team.submitted()} == {"succeeded"}
        shared = await check_shared(team.orc.workspace("s"))
        assert result.changes == shared.revision
    markdown = check_reports(tmp_path / "out")
    assert "planted failure" in markdown
    assert "1 change were repeated by a later attempt and changed nothing." in markdown


@pytest.mark.parametrize(
    ("skill", "at"),
    [
        (audit, "submit"),
        (audit, "progress"),
        (survey, "submit"),
        (link, "submit"),
        (measure, "result"),
        (review, "result"),
        (scan, "stored"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
async def test_an_audit_survives_crashes(
    make: Callable[..., Team], shop: Path, tmp_path: Path, skill: object, at: Step
) -> None:
    """Wherever a worker vanishes, no child is submitted twice, nothing is shared twice, and the report is the same."""
    async with make() as team:
        team.crash(skill, at=at)  # type: ignore[arg-type]
        args = {"path": str(shop), "out": str(tmp_path / "out"), "plant_failure": False}
        result = await team.run(audit, args, session="s", skip_time=True)
        assert (result.files, result.functions, result.cycles) == (4, 2, 1)
        for name, times in PLANTED.items():
            team.assert_submitted(name, times=times)
        await check_shared(team.orc.workspace("s"))
    check_reports(tmp_path / "out")


async def test_many_audits_do_not_block_each_other(make: Callable[..., Team], shop: Path, tmp_path: Path) -> None:
    """More audits than any agent has slots end all the same, on one worker."""
    many = 2 * max(agent.concurrency for agent in agents)
    args = [{"path": str(shop), "out": str(tmp_path / str(number)), "plant_failure": False} for number in range(many)]
    async with make() as team:
        handles = await team.orc.submit_many(
            [Submission(audit, each, session=f"s{number}") for number, each in enumerate(args)]
        )
        await team.drain(20, skip_time=True)
        results = [await handle.result(1, as_=AuditResult) for handle in handles]
    assert {result.attempts - result.tasks for result in results} == {0}
    assert len({result.markdown for result in results}) == many


async def test_a_folder_that_cannot_be_audited_is_refused_at_once(make: Callable[..., Team], tmp_path: Path) -> None:
    """A wrong path or a tree without Python ends in the dead letters with the reason, after one attempt."""
    async with make() as team:
        for path, says in [(tmp_path / "missing", "does not exist"), (tmp_path, "no Python files")]:
            with pytest.raises(TaskFailed, match=f"nothing was audited: .*{says}") as failed:
                await team.run(audit, {"path": str(path), "out": str(tmp_path / "out")}, session=path.name)
            assert len(failed.value.errors) == 1
        team.assert_not_submitted(link)
        assert {task.agent for task in team.submitted()} == {None}, "none is addressed to one agent"
    assert not (tmp_path / "out").exists()


async def test_a_session_takes_one_audit(make: Callable[..., Team], shop: Path, tmp_path: Path) -> None:
    """A second audit of the same session is refused at its first attempt, names the first, and changes nothing."""
    args = {"path": str(shop), "out": str(tmp_path / "out"), "plant_failure": False}
    async with make() as team:
        await team.run(audit, args, session="s")
        before = await check_shared(team.orc.workspace("s"))
        owner = before.states["audit"].value
        with pytest.raises(TaskFailed, match=f"session 's' belongs to the audit in task {owner}") as failed:
            await team.run(audit, args, session="s")
        assert len(failed.value.errors) == 1
        assert await team.orc.workspace("s").snapshot() == before


@pytest.mark.parametrize(("named", "entries"), [(True, 1), (False, 2)])
async def test_what_names_are_for(redis_server: RedisServer, prefix: str, *, named: bool, entries: int) -> None:
    """After the same crash, a task that does not name its changes has shared its finding twice."""
    finder = Agent("finder")

    @finder.skill
    async def find(ctx: TaskContext) -> None:
        op_id = f"{ctx.task_id}/found" if named else None
        await ctx.workspace.append("found", "it", op_id=op_id)

    async with Team(finder, url=redis_server.url, prefix=prefix) as team:
        team.crash(find, at="result")
        await team.run(find, session="s", skip_time=True)
        assert len(await team.orc.workspace("s").log("found")) == entries
