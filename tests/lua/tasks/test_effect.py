"""lua/tasks/effect.lua: steps of effects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.tasks.model import VerdictKind

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server


def test_steps(pool: Pool) -> None:
    """A step is stored behind the time if the value before it is the one that the attempt has read, else nothing is."""
    pool.register()
    pool.put()
    first = pool.one()
    status, begun = pool.effect(first, value=b'{"a":1}')
    assert (status, begun) == ("stored", b'%d {"a":1}' % pool.now_ms)
    with pool.unchanged():
        assert pool.effect(first, value=b"2") == ("changed", b"")
        assert pool.effect(first, before=b"3 {}", value=b"2") == ("changed", b"")
    status, done = pool.effect(first, before=begun, value=b"line\nfeed")
    assert status == "stored"
    with pool.unchanged():
        assert pool.effect(first, before=begun, value=b"2") == ("changed", b"")
    task = pool.task(first.task_id)
    assert (task["effect:pay"].encode(), task["effects"]) == (done, "1")
    assert pool.effect(first, "mail")[0] == "stored"
    assert pool.task(first.task_id)["effects"] == "2"


def test_repeated(pool: Pool) -> None:
    """A call that is sent twice changes nothing the second time, and returns what is stored."""
    pool.register()
    pool.put()
    first = pool.one()
    begun = pool.effect(first)
    pool.sleep(5)
    with pool.unchanged():
        assert pool.effect(first) == begun
    done = pool.effect(first, before=begun[1], value=b"[\n]")
    pool.sleep(5)
    with pool.unchanged():
        assert pool.effect(first, before=begun[1], value=b"[\n]") == done


def test_later_attempts(pool: Pool) -> None:
    """The next attempt finds the effect; the one that lost its task changes nothing, nor does one that has ended."""
    pool.register()
    pool.put()
    first = pool.one()
    _, begun = pool.effect(first)
    pool.abandon("w1")
    second = pool.one()
    with pool.unchanged():
        assert pool.effect(first, before=begun, value=b"1") == ("stale", b"")
        assert pool.effect(first, "other") == ("stale", b"")
        assert pool.effect(second, value=b"1") == ("changed", b"")
    assert pool.effect(second, before=begun, value=b"1")[0] == "stored"
    pool.end(second, VerdictKind.DEAD)
    with pool.unchanged():
        assert pool.effect(second, "other") == ("stale", b"")
    assert pool.task(first.task_id)["effect:pay"].endswith(" 1")


def test_followed(pool: Pool) -> None:
    """Who follows a task reads each step in words once; a task that nobody follows has no stream."""
    pool.register()
    pool.put()
    first = pool.one()
    pool.put()
    other = pool.one()
    pool.watch(first.task_id)
    begun = pool.effect(first, told="pay: begun")[1]
    pool.effect(first, told="pay: begun")
    pool.effect(first, before=begun, value=b"1", told="")
    pool.effect(other, told="pay: begun")
    assert [entry for entry in pool.out(first.task_id) if "effect" in entry] == [
        ("effect", first.generation, 1, "pay: begun")
    ]
    assert pool.out(other.task_id) == []


def test_full(pool: Pool) -> None:
    """A task has at most so many effects; the known ones go on."""
    pool.register()
    pool.put()
    held = pool.one()
    _, begun = pool.effect(held, most=1)
    with pool.unchanged():
        assert pool.effect(held, "other", most=1) == ("full", b"")
    assert pool.effect(held, before=begun, value=b"1", most=1)[0] == "stored"


def test_unknown(pool: Pool) -> None:
    """A task that is gone takes nothing."""
    pool.register()
    pool.put()
    held = pool.one()
    pool.execute("DEL", pool.keys.task(held.task_id))
    with pool.unchanged():
        assert pool.effect(held) == ("stale", b"")
