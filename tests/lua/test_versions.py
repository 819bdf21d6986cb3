"""Versions of skills (protocol rule 28): what a worker refuses waits for workers with another version, or ends."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from orchestrator.agents.model import SkillVersion
from orchestrator.control import scripts as control_scripts
from orchestrator.core.rates import Rate
from orchestrator.tasks.model import TaskState
from tests.lua.pool import Team, row

if TYPE_CHECKING:
    from tests.lua.pool import Pool

pytestmark = pytest.mark.every_server

OLD = SkillVersion("d1", required=("text",))
NEW = SkillVersion("d2", required=("text",), optional=("polite",))
OLD_TEAM, NEW_TEAM = Team(version=OLD), Team(version=NEW)
WEEK_MS = 7 * 24 * 3_600_000


def roll_out(pool: Pool) -> None:
    """An agent in the middle of an upgrade: `w1` has the old version, `w2` the new one."""
    pool.register("w1", OLD_TEAM)
    pool.sleep(1000)
    pool.register("w2", NEW_TEAM)


def held(pool: Pool, refused: str, queue: str = "skill:sum") -> list[str]:
    """The tasks that these versions hold."""
    return pool.members(pool.keys.held(f"version:{refused}:{queue}"))


class TestWaits:
    """A task that an old version refused, while a newer one is or was live."""

    def test_until_the_old_workers_are_gone(self, pool: Pool) -> None:
        """It is assigned when no live worker has the old version; nothing is counted."""
        roll_out(pool)
        (id_,) = pool.put()
        assert pool.refuse(pool.one(), OLD, "text", "polite") == "ok"
        assert pool.task(id_)["refused"] == "d1"
        assert pool.assign().count == 0
        assert held(pool, "d1") == [id_]
        pool.deregister("w1")
        again = pool.one("w2")
        assert (again.task_id, again.attempt) == (id_, 1)
        assert not pool.execute("EXISTS", pool.keys.version_scopes, pool.keys.suspended_scopes)

    def test_without_calls(self, pool: Pool) -> None:
        """While it waits, `assign` neither asks to be called again nor wakes the supervisor."""
        roll_out(pool)
        pool.put()
        pool.refuse(pool.one(), OLD, "text", "polite")
        pool.assign()
        assert pool.notifications()[-1] == "queue:skill:sum"
        for _ in range(3):
            done = pool.assign()
            assert (done.count, done.left, done.wait_us) == (0, False, 0)
        assert pool.notifications() == []

    def test_at_its_place(self, pool: Pool) -> None:
        """The order is that of the submit, also among tasks that never waited."""
        roll_out(pool)
        first, second = pool.put()[0], pool.put()[0]
        pool.assign()
        for delivery in pool.read():
            pool.refuse(delivery, OLD, "text", "polite")
        pool.assign()
        pool.sleep(5)
        third = pool.put()[0]
        pool.deregister("w1")
        pool.assign()
        assert [delivery.task_id for delivery in pool.read("w2")] == [first, second, third]

    def test_does_not_block_its_queue(self, pool: Pool) -> None:
        """Tasks behind it are assigned, though more of it wait than the agent has room for."""
        pool.register("w1", OLD_TEAM, slots=2)
        pool.sleep(1000)
        pool.register("w2", NEW_TEAM, slots=1)
        pool.put(*[row() for _ in range(9)])
        for _ in range(3):
            while pool.assign().left:
                pass
            for delivery in pool.read():
                pool.refuse(delivery, OLD, "text", "polite")
        (id_,) = pool.put()
        while pool.assign().left:
            pass
        assert [delivery.task_id for delivery in pool.read()] == [id_]
        assert len(held(pool, "d1")) == 9

    def test_for_a_version_that_left(self, pool: Pool) -> None:
        """After a rollback it waits for the newer version, but no longer than this is known."""
        roll_out(pool)
        pool.deregister("w2")
        (id_,) = pool.put()
        pool.refuse(pool.one(), OLD, "text", "polite")
        assert pool.assign().count == 0
        pool.sleep(WEEK_MS - 60_000)
        pool.register("w1", OLD_TEAM)
        pool.expire()
        assert (release(pool), held(pool, "d1")) == ((0, False), [id_])
        pool.sleep(61_000)
        pool.register("w1", OLD_TEAM)
        pool.expire()
        assert release(pool) == (1, False)
        pool.refuse(pool.one(), OLD, "text", "polite")
        assert pool.task(id_).items() >= {"state": "dead", "reason": "do not fit", "error:1": "E"}.items()

    def test_keeps_its_deadline_and_its_slots_of_limits(self, pool: Pool) -> None:
        """It has not begun: `start_by` holds, and the start that it was granted is free again."""
        limited = Team(rate=Rate(1, 60_000_000), version=OLD)
        pool.register("w1", limited)
        pool.sleep(1000)
        pool.register("w2", replace(limited, version=NEW))
        (id_,) = pool.put(row(start_by_ms=pool.now_ms + 500))
        pool.refuse(pool.one(), OLD, "text", "polite")
        assert pool.assign().count == 0
        pool.put(row())
        assert pool.assign().count == 1
        pool.sleep(600)
        assert pool.promote().expired == 1
        assert (pool.task(id_)["state"], held(pool, "d1")) == ("expired", [])


class TestGoes:
    """A task that one version refused runs where another version is."""

    def test_to_another_agent(self, pool: Pool) -> None:
        """An agent whose version has not refused it takes it, older or newer; the others leave it alone."""
        pool.register("w1", NEW_TEAM)
        pool.sleep(1000)
        pool.register("w2", Team("al", version=OLD))
        (id_,) = pool.put()
        pool.refuse(pool.one(), NEW, "text")
        assert pool.assign("ed").count == 0
        assert "queue:skill:sum" in pool.notifications()
        assert pool.one("w2", agent="al").task_id == id_

    def test_not_if_it_is_addressed(self, pool: Pool) -> None:
        """A task for one agent waits for a version of this agent only."""
        pool.register("w1", OLD_TEAM)
        pool.sleep(1000)
        pool.register("w2", Team("al", version=NEW))
        (id_,) = pool.put(row(queue="agent:ed", skill="sum"))
        pool.refuse(pool.one(), OLD, "text", "polite")
        assert pool.task(id_)["state"] == "dead"

    def test_to_an_unknown_version(self, pool: Pool) -> None:
        """A version that came later is tried, once; then every known one has refused the task."""
        roll_out(pool)
        (id_,) = pool.put()
        pool.refuse(pool.one(), OLD, "text", "polite")
        pool.assign()
        pool.deregister("w1")
        pool.refuse(pool.one("w2"), NEW, "text", "polite")
        assert pool.task(id_)["state"] == "dead"
        assert pool.task(id_)["fails"] == "1"


class TestEnds:
    """A task that no version takes."""

    def test_at_once(self, pool: Pool) -> None:
        """The newest version refused it, or no other takes arguments with these names."""
        roll_out(pool)
        for version, names in ((OLD, ("text", "nonsense")), (OLD, ("polite",)), (NEW, ("polite",))):
            (id_,) = pool.put()
            pool.refuse(pool.one(), version, *names)
            assert pool.task(id_)["state"] == "dead"
        pool.deregister("w1")
        (id_,) = pool.put()
        pool.refuse(pool.one("w2"), NEW, "text")
        assert pool.task(id_)["state"] == "dead"

    def test_without_versions(self, pool: Pool) -> None:
        """Workers that register no versions refuse for good."""
        pool.register()
        (id_,) = pool.put()
        pool.refuse(pool.one(), OLD, "text")
        assert pool.task(id_)["state"] == "dead"

    def test_cancelled(self, pool: Pool) -> None:
        """A task that waits is cancelled like any other, and one whose cancel was requested does not wait."""
        roll_out(pool)
        waits, runs = pool.put(row(), row())
        pool.assign()
        first, second = pool.read()
        pool.refuse(first, OLD, "text", "polite")
        pool.assign()
        pool.cancel(waits, runs)
        pool.refuse(second, OLD, "text", "polite")
        assert pool.task(waits)["state"] == pool.task(runs)["state"] == "cancelled"
        assert held(pool, "d1") == []

    def test_retried(self, pool: Pool) -> None:
        """An operator's retry forgets who refused it."""
        pool.register("w1", OLD_TEAM)
        (id_,) = pool.put()
        pool.refuse(pool.one(), OLD, "text", "polite")
        pool.sleep(1000)
        pool.register("w2", NEW_TEAM)
        pool.retry(id_)
        assert "refused" not in pool.task(id_)
        assert pool.one("w2").task_id == id_


def release(pool: Pool) -> tuple[int, bool]:
    """Run release for what the old version holds."""
    call = control_scripts.release(pool.keys, scope="version:d1:skill:sum", slot="", limit=500)
    moved, left = pool.call(call)
    return moved, bool(left)


class TestRegistry:
    """The registry knows the versions of live workers, and for a week those that left."""

    def test_live_and_left(self, pool: Pool) -> None:
        """A version is live while a worker with slots has it; the first registration dates it."""
        roll_out(pool)
        born = pool.now_ms - 1000
        assert pool.agent()["versions"] == "sum=d1 sum=d2"
        assert pool.execute("HGET", pool.keys.versions("sum"), "ed d2") == f"{pool.now_ms} text polite?".encode()
        pool.register("w1", OLD_TEAM, slots=0)
        assert pool.agent()["versions"] == "sum=d2"
        assert pool.members(pool.keys.left_versions) == ["ed sum=d1"]
        pool.sleep(5000)
        pool.register("w3", OLD_TEAM)
        assert pool.execute("EXISTS", pool.keys.left_versions) == 0
        assert pool.execute("HGET", pool.keys.versions("sum"), "ed d1") == f"{born} text".encode()

    def test_forgotten(self, pool: Pool) -> None:
        """A week after its last worker nothing of a version is left, also when the agent was forgotten earlier."""
        roll_out(pool)
        pool.deregister("w1")
        pool.deregister("w2")
        pool.sleep(WEEK_MS // 2)
        pool.expire()
        assert pool.execute("HLEN", pool.keys.versions("sum")) == 2
        pool.sleep(WEEK_MS // 2 + 1)
        pool.expire()
        assert pool.execute("EXISTS", pool.keys.versions("sum"), pool.keys.left_versions) == 0

    def test_bounded(self, pool: Pool) -> None:
        """Of more than 1000 versions that left, the oldest are forgotten first."""
        for number in range(1003):
            pool.register("w1", Team(version=SkillVersion(f"d{number}")))
            pool.sleep(1)
        pool.expire()
        assert pool.execute("ZCARD", pool.keys.left_versions) == 1000
        assert pool.execute("HEXISTS", pool.keys.versions("sum"), "ed d1") == 0
        assert pool.execute("HLEN", pool.keys.versions("sum")) == 1001

    def test_lost_agent(self, pool: Pool) -> None:
        """The reconciler lists versions of an agent whose record is lost, so that they are forgotten."""
        roll_out(pool)
        assert pool.repair_registry(("skill", "sum")) == []
        pool.execute("HDEL", pool.keys.agent("ed"), "versions")
        assert pool.repair_registry(("skill", "sum")) == [("sum", "skill-index")] * 2
        assert pool.members(pool.keys.left_versions) == ["ed sum=d1", "ed sum=d2"]
        pool.register("w1", OLD_TEAM)
        assert pool.execute("EXISTS", pool.keys.left_versions) == 0

    def test_count_against_the_cap(self, pool: Pool) -> None:
        """Tasks that wait for a version are part of their queue."""
        roll_out(pool)
        pool.put(row(), row())
        pool.assign()
        for delivery in pool.read():
            pool.refuse(delivery, OLD, "text", "polite")
        pool.assign()
        assert pool.submit(row(), row(), max_tasks=3) == [("created", ""), ("full", "skill:sum")]

    def test_found_again(self, pool: Pool) -> None:
        """The reconciler restores the lists of held tasks."""
        roll_out(pool)
        (id_,) = pool.put()
        pool.refuse(pool.one(), OLD, "text", "polite")
        pool.assign()
        place = "held:version:d1:skill:sum"
        assert pool.repair(id_, (id_, place), ("", place)) == []
        pool.execute("DEL", pool.keys.suspended_scopes, pool.keys.version_scopes)
        pool.notifications()
        assert pool.repair(("", place)) == [(place, "unlisted-queue")]
        assert pool.notifications() == ["queue:skill:sum"]
        pool.deregister("w1")
        assert pool.one("w2").task_id == id_


def test_why(pool: Pool) -> None:
    """It names the workers that refuse the task, and their reason."""
    roll_out(pool)
    (id_,) = pool.put()
    pool.refuse(pool.one(), OLD, "text", "polite")
    pool.assign()
    found = pool.why(id_)
    assert found is not None
    assert (found.state, found.refused, found.held) == (TaskState.READY, True, True)
    assert [agent.refusing for agent in found.agents] == [("w1",)]
