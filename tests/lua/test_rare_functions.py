"""A usual call needs none of the functions that a script lists as rare."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from orchestrator.core.errors import ServerRefused
from orchestrator.store.script_files import all_scripts
from orchestrator.tasks.model import Verdict, VerdictKind
from tests.lua.pool import USUAL_TTL_S, row

if TYPE_CHECKING:
    from orchestrator.store.script_files import ScriptFile
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

OPENING = "\nrare = function()\n"
"""The line that the loader writes above the rare functions of a script."""
WITH_RARE = frozenset(
    {
        "budgets/reserve",
        "budgets/settle",
        "tasks/adopt",
        "tasks/assign",
        "tasks/dispatch",
        "tasks/finish",
        "tasks/repair",
        "tasks/submit",
    }
)


@pytest.fixture(autouse=True)
def rare_functions_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a call fail that needs a rare function."""
    scripts = {name: _failing(script) for name, script in all_scripts().items()}
    for module in ("calls", "store"):
        monkeypatch.setattr(f"orchestrator.store.{module}.all_scripts", lambda: scripts)


def _failing(script: ScriptFile) -> ScriptFile:
    text = script.text.replace(OPENING, f"{OPENING}error('needs a rare function')\n")
    return replace(script, text=text, sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def test_scripts() -> None:
    """The calls below are those of all scripts that have rare functions."""
    assert {name for name, script in all_scripts().items() if OPENING in script.text} == WITH_RARE


@pytest.mark.parametrize("session", ["", "s"])
def test_usual_calls(pool: Pool, session: str) -> None:
    """Tasks, also of a session or lane, are submitted, assigned in both ways and end; a worker looks for lost ones."""
    pool.register(slots=100)
    pool.dispatch()
    pool.assign()
    for assign in (pool.dispatch, pool.assign):
        pool.put(*(row(ttl_s=USUAL_TTL_S, reply="c1", session=session) for _ in range(3)))
        assign()
    taken = pool.read()
    assert len(taken) == 6
    pool.adopt()
    pool.put(row(lane="a"), row(lane="a"))
    assert set(pool.finish(*((one, Verdict(VerdictKind.SUCCEEDED, b"1")) for one in taken))) == {"ok"}
    assert pool.repair(*[one.task_id for one in taken]) == []


def test_usual_calls_that_spend(pool: Pool) -> None:
    """A call takes its amounts and books them, while no task waits for its budget; a last call needs more."""
    pool.register(slots=100)
    pool.put(row())
    pool.assign()
    delivery = pool.one()
    pool.execute("HSET", pool.keys.budget("b"), "limit", "1000000 - - -", "spent", "0 0 0 0", "held", "0 0 0 0")
    pool.execute("HSET", pool.keys.task(delivery.task_id), "budget", "b")
    assert pool.reserve(delivery, 1, usd=0.5).status == "granted"
    assert pool.settle(delivery, 1, usd=0.25) == "settled"
    with pytest.raises(ServerRefused, match="needs a rare function"):
        pool.reserve(delivery, 2, usd=0.01, last=True)


def test_unusual_calls(pool: Pool) -> None:
    """A task for later and a failure need them."""
    pool.register(slots=100)
    with pytest.raises(ServerRefused, match="needs a rare function"):
        pool.put(row(delay_ms=1000))
    pool.put(row(), row())
    pool.assign()
    first, _ = pool.read()
    with pytest.raises(ServerRefused, match="needs a rare function"):
        pool.end(first, VerdictKind.DEAD)
