"""The demo's team on real Redis: from a folder to its reports, with a planted failure and with crashes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from orchestrator import Submission, TaskFailed
from workers.demo.analyst import measure
from workers.demo.editor import audit
from workers.demo.linker import link
from workers.demo.models import AuditResult
from workers.demo.scanner import scan, survey
from workers.demo.team import team as agents
from workers.testing import Team

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from orchestrator.testing.servers import RedisServer
    from workers.testing.crashes import Step

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
        result = await team.run(audit, {"path": str(shop), "out": str(tmp_path / "out")}, skip_time=True)
        assert (result.files, result.functions, result.cycles, result.attempts - result.tasks) == (4, 2, 1, 1)
        assert result.tasks == 1 + sum(PLANTED.values())
        for skill, times in PLANTED.items():
            team.assert_submitted(skill, times=times)
        assert {str(task.state) for task in team.submitted()} == {"succeeded"}
    assert "planted failure" in check_reports(tmp_path / "out")


@pytest.mark.parametrize(
    ("skill", "at"),
    [
        (audit, "submit"),
        (audit, "progress"),
        (survey, "submit"),
        (link, "submit"),
        (measure, "result"),
        (scan, "stored"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
async def test_an_audit_survives_crashes(
    make: Callable[..., Team], shop: Path, tmp_path: Path, skill: object, at: Step
) -> None:
    """Wherever a worker vanishes, no child is submitted twice and the report is the same."""
    async with make() as team:
        team.crash(skill, at=at)  # type: ignore[arg-type]
        args = {"path": str(shop), "out": str(tmp_path / "out"), "plant_failure": False}
        result = await team.run(audit, args, skip_time=True)
        assert (result.files, result.functions, result.cycles) == (4, 2, 1)
        for name, times in PLANTED.items():
            team.assert_submitted(name, times=times)
    check_reports(tmp_path / "out")


async def test_many_audits_do_not_block_each_other(make: Callable[..., Team], shop: Path, tmp_path: Path) -> None:
    """More audits than any agent has slots end all the same, on one worker."""
    many = 2 * max(agent.concurrency for agent in agents)
    args = [{"path": str(shop), "out": str(tmp_path / str(number)), "plant_failure": False} for number in range(many)]
    async with make() as team:
        handles = await team.orc.submit_many([Submission(audit, each) for each in args])
        await team.drain(20, skip_time=True)
        results = [await handle.result(1, as_=AuditResult) for handle in handles]
    assert {result.attempts - result.tasks for result in results} == {0}
    assert len({result.markdown for result in results}) == many


async def test_a_folder_that_cannot_be_audited_is_refused_at_once(make: Callable[..., Team], tmp_path: Path) -> None:
    """A wrong path or a tree without Python ends in the dead letters with the reason, after one attempt."""
    async with make() as team:
        for path, says in [(tmp_path / "missing", "does not exist"), (tmp_path, "no Python files")]:
            with pytest.raises(TaskFailed, match=f"nothing was audited: .*{says}") as failed:
                await team.run(audit, {"path": str(path), "out": str(tmp_path / "out")})
            assert len(failed.value.errors) == 1
        team.assert_not_submitted(link)
        assert {task.agent for task in team.submitted()} == {None}, "none is addressed to one agent"
    assert not (tmp_path / "out").exists()
