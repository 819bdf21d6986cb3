"""Descriptions of skills: one per version, replaced by the next worker, gone when no worker repeats them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lua.pool import Team

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

DAY_MS = 86_400_000


def stored(pool: Pool, skill: str = "sum") -> dict[bytes, bytes]:
    """The descriptions of a skill by version; each has its time."""
    flat = pool.execute("HGETALL", pool.keys.descriptions(skill))
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    texts = {name: value for name, value in fields.items() if not name.startswith(b"ms:")}
    assert fields.keys() == {*texts, *(b"ms:" + name for name in texts)}
    return texts


def test_the_last_worker_decides(pool: Pool) -> None:
    """A version has one description, that of the worker that came last; versions stay apart."""
    pool.describe(("sum", "d1", b'{"doc":"a"}'), ("other", "d1", b"{}"))
    pool.describe(("sum", "d1", b'{"doc":"b"}'), ("sum", "d2", b"{}"))
    assert stored(pool) == {b"d1": b'{"doc":"b"}', b"d2": b"{}"}
    assert stored(pool, "other") == {b"d1": b"{}"}


def test_old_versions_go(pool: Pool) -> None:
    """A version that no worker has described for 8 days goes with the next description; the key goes after as long."""
    pool.describe(("sum", "d1", b"{}"), ("sum", "d2", b"{}"))
    pool.sleep(4 * DAY_MS)
    pool.describe(("sum", "d2", b"{}"))
    pool.sleep(4 * DAY_MS + 1)
    pool.describe(("sum", "d3", b"{}"))
    assert set(stored(pool)) == {b"d2", b"d3"}
    assert 0 < pool.execute("PTTL", pool.keys.descriptions("sum")) <= 8 * DAY_MS


def test_cost_does_not_depend_on_agents(pool: Pool) -> None:
    """A description costs the same commands for any number of agents, and in one call of any number of skills."""

    def cost(*rows: tuple[str, str, bytes]) -> int:
        before = pool.commands()
        pool.describe(*rows)
        return pool.commands() - before

    one = ("sum", "d1", b"x" * 1000)
    first = [cost(one) for _ in range(2)][-1]
    for _ in range(50):
        pool.describe(one)
    assert cost(one) == first
    assert pool.execute("MEMORY", "USAGE", pool.keys.descriptions("sum"), "SAMPLES", 0) < 1500


def test_redacted_skills_stay_redacted(pool: Pool) -> None:
    """A skill that one version declares redacted stays so: after other versions, and after all workers are gone."""
    one = ("sum", "d1", b"{}")
    pool.describe(one, ("other", "d1", b"{}"))
    assert pool.execute("EXISTS", pool.keys.redacted) == 0
    pool.describe(one, redact=True)
    pool.describe(("sum", "d2", b"{}"))
    pool.sleep(30 * DAY_MS)
    assert pool.execute("SMEMBERS", pool.keys.redacted) in ([b"sum"], {b"sum"})
    assert pool.execute("TTL", pool.keys.redacted) == -1


def test_a_registration_says_which_skills_are_redacted(pool: Pool) -> None:
    """They are known before the first task of the worker has values that a view could show."""
    pool.register(team=Team(skills=frozenset({"sum", "talk"}), redacted=frozenset({"talk"})))
    assert pool.execute("SMEMBERS", pool.keys.redacted) in ([b"talk"], {b"talk"})
    assert pool.execute("TTL", pool.keys.redacted) == -1
