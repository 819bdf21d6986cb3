"""lua/tasks/once.lua: results of what is done once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.tasks.model import VerdictKind

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server


def test_first_result_stands(pool: Pool) -> None:
    """The first result is stored, and given to whoever comes later with another one, in later attempts too."""
    pool.register()
    pool.put()
    first = pool.one()
    assert pool.once(first, "pay", b'{"id":7}') == ("stored", b"")
    with pool.unchanged():
        assert pool.once(first, "pay", b"8") == ("already", b'{"id":7}')
    assert pool.once(first, "mail\nwith: blanks", b"null") == ("stored", b"")
    pool.end(first, VerdictKind.RETRY)
    again = pool.one()
    with pool.unchanged():
        assert pool.once(again, "pay", b"9") == ("already", b'{"id":7}')
    assert pool.task(first.task_id)["once:pay"] == '{"id":7}'


def test_stale(pool: Pool) -> None:
    """An attempt whose task was taken away stores nothing; nor does one that has ended."""
    pool.register()
    pool.put()
    first = pool.one()
    pool.abandon("w1")
    second = pool.one()
    with pool.unchanged():
        assert pool.once(first) == ("stale", b"")
    pool.end(second)
    with pool.unchanged():
        assert pool.once(second) == ("stale", b"")


def test_unknown(pool: Pool) -> None:
    """A task that is gone takes nothing."""
    pool.register()
    pool.put()
    held = pool.one()
    pool.execute("DEL", pool.keys.task(held.task_id))
    with pool.unchanged():
        assert pool.once(held) == ("stale", b"")
