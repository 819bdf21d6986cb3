"""The demo's team on real Redis: from a folder to its reports, with a planted failure, and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.core.errors import TaskFailed
from orchestrator.tasks import queries
from workers.demo.models import AuditResult
from workers.demo.team import team as agents

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.local_team import LocalTeam

PATIENCE_S = 20.0


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


async def test_an_audit_reports_exactly_what_was_planted(team: LocalTeam, shop: Path, tmp_path: Path) -> None:
    """Two workers audit a tree: every child ends once, the linker is retried once, the reports name the faults."""
    await team.work(*agents)
    await team.work(*agents)
    handle = await team.orc.submit("audit", {"path": str(shop), "out": str(tmp_path / "out")})
    result = await handle.result(PATIENCE_S, as_=AuditResult)
    assert (result.files, result.functions, result.cycles, result.attempts - result.tasks) == (4, 2, 1, 1)
    # One each of audit, scan, survey, link and list_imports, four measures, and reviews of the two files of the loop.
    assert result.tasks == 5 + 4 + 2
    counts = await queries.counters(team.services.store)
    assert (counts["succeeded"], counts["retried"], counts.get("dead", 0)) == (result.tasks, 1, 0)
    markdown = (tmp_path / "out" / "REPORT.md").read_text()
    assert "`shop.cart` → `shop.price` → `shop.cart` (imports at `shop/cart.py:3`, `shop/price.py:4`)" in markdown
    assert "| `of` | `shop/price.py:7` | 13 | 1 | 26 |" in markdown
    assert "| `shop/cart.py` | 1 of 2 | `total` (line 6) |" in markdown
    assert "| `shop/broken <i>.py` | line 1: invalid syntax |" in markdown
    assert "planted failure" in markdown
    assert (tmp_path / "out" / "report.html").read_text().endswith("</html>\n")
    said = (await handle.info()).progress
    assert said is not None
    assert said.message == "1 of the 2 worst files are reviewed"


async def test_many_audits_do_not_block_each_other(team: LocalTeam, shop: Path, tmp_path: Path) -> None:
    """More audits than any agent has slots end all the same, on one worker."""
    await team.work(*agents)
    many = 2 * max(agent.concurrency for agent in agents)
    handles = [
        await team.orc.submit("audit", {"path": str(shop), "out": str(tmp_path / str(n)), "plant_failure": False})
        for n in range(many)
    ]
    results = [await handle.result(PATIENCE_S, as_=AuditResult) for handle in handles]
    assert {result.attempts - result.tasks for result in results} == {0}
    assert len({result.markdown for result in results}) == many


async def test_a_folder_that_cannot_be_audited_is_refused_at_once(team: LocalTeam, tmp_path: Path) -> None:
    """A wrong path or a tree without Python ends in the dead letters with the reason, after one attempt."""
    await team.work(*agents)
    for path, says in [(tmp_path / "missing", "does not exist"), (tmp_path, "no Python files")]:
        handle = await team.orc.submit("audit", {"path": str(path), "out": str(tmp_path / "out")})
        with pytest.raises(TaskFailed, match=f"nothing was audited: .*{says}"):
            await handle.result(PATIENCE_S)
        assert (await handle.info()).attempts == 1
    assert not (tmp_path / "out").exists()
