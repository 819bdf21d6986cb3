"""On a server whose memory is full: new work is refused in clear words, what runs can end, so the server drains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.control.commands import make_command
from orchestrator.control.scripts import ReceiptRow, receipt
from orchestrator.core.errors import ServerFull
from orchestrator.core.rates import Rate
from orchestrator.store.calls import opaque
from orchestrator.tasks.model import (
    AnswerStatus,
    CancelStatus,
    FinishStatus,
    LeaseStatus,
    Verdict,
    VerdictKind,
    WatchStatus,
)
from tests.faultkit.servers import RedisServer
from tests.helpers.server_matrix import ALL_SERVERS, binary_of
from tests.lua.pool import LEASE_MS, Pool, Team, chunk, row

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=ALL_SERVERS)
def full_pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """A pool with running, waiting and lost tasks on a server that takes no more."""
    with RedisServer(binary_of(request.param)) as server:
        pool = Pool(server.url, "full:t:t")
        pool.register(team=Team(rate=Rate(10_000, 1_000_000)), slots=20)
        pool.put(
            *[row(reply="c1", envelope=opaque(b"x" * 1000)) for _ in range(40)],
            row(delay_ms=5),
            row(start_by_ms=pool.now_ms + 5),
        )
        while pool.assign().left:
            pass
        pool.execute("CONFIG", "SET", "maxmemory-policy", "noeviction")
        pool.execute("CONFIG", "SET", "maxmemory", 100_000)
        yield pool
        pool.close()


def test_submit_is_refused(full_pool: Pool) -> None:
    """A submit is refused as a whole and nothing of it is stored."""
    with full_pool.unchanged(), pytest.raises(ServerFull, match=r"out of memory; raise maxmemory"):
        full_pool.submit(row())


def test_retry_is_refused(full_pool: Pool) -> None:
    """A retry is new work: refused as a whole, and the dead letter stays one."""
    (delivery,) = full_pool.read(limit=1)
    full_pool.end(delivery, VerdictKind.DEAD, payload=b"trace")
    with full_pool.unchanged(), pytest.raises(ServerFull):
        full_pool.retry(delivery.task_id)
    assert full_pool.state(delivery.task_id) == "dead"


def test_emit_is_refused(full_pool: Pool) -> None:
    """What a handler would add is refused as a whole; who follows its task still does, and sees the end."""
    pool = full_pool
    first, second = pool.read(limit=2)
    assert [status for status, _ in pool.watch(first.task_id)] == [WatchStatus.LIVE]
    with pool.unchanged(), pytest.raises(ServerFull, match=r"out of memory; raise maxmemory"):
        pool.emit(chunk(first, 1), chunk(second, 1))
    pool.end(first)
    assert [kind for kind, *_ in pool.out(first.task_id)] == ["assigned", "succeeded"]


def test_everything_else_works(full_pool: Pool) -> None:
    """Workers read, renew, finish, adopt and send heartbeats; supervisors assign and promote; clients cancel."""
    pool = full_pool
    deliveries = pool.read(limit=20)
    assert pool.renew(deliveries) == (20, [LeaseStatus.KEPT] * 20)
    kinds = [kind for kind in VerdictKind if kind is not VerdictKind.ASK]
    rows = [(delivery, Verdict(kind, b"r" * 100)) for delivery, kind in zip(deliveries, kinds, strict=False)]
    assert pool.finish(*rows) == [FinishStatus.OK] * len(kinds)
    asker = deliveries[len(kinds)]
    assert pool.once(asker) == ("stored", b"")
    assert pool.effect(asker)[0] == "stored"
    assert pool.ask(asker) is FinishStatus.OK
    assert pool.answer(asker.task_id).status is AnswerStatus.ANSWERED
    assert pool.cancel(deliveries[-1].task_id)[0][0] == CancelStatus.SIGNALLED
    assert pool.why(deliveries[-1].task_id)
    assert pool.cancel(pool.queue()[-1])[0][0] == CancelStatus.ENDED
    pool.look("w2")
    pool.age(LEASE_MS + 1)
    pool.register("w2", Team(rate=Rate(10_000, 1_000_000)), slots=20)
    assert pool.adopt("w2", limit=3)
    assert pool.abandon("w2")[0] == 3
    assert pool.heartbeat("w1")
    assert pool.promote().promoted >= 1
    assert pool.assign().count > 0
    pool.deregister("w2")
    pool.sleep(30_000)
    assert pool.expire() == ["w1"]


def test_drains(full_pool: Pool) -> None:
    """Working on drains the server, and then it takes new tasks."""
    pool = full_pool
    pool.sleep(10)
    for _ in range(10):
        pool.promote()
        pool.finish(*[(delivery, Verdict(VerdictKind.SUCCEEDED, b"1")) for delivery in pool.deliver()])
    assert pool.queue() == []
    assert pool.inbox_length() == 0
    pool.execute("CONFIG", "SET", "maxmemory", 0)
    pool.put()


def test_a_stop_passes(full_pool: Pool) -> None:
    """Operators command all the same: a stop is active at once and answered, and a start ends it."""
    answer, issued = full_pool.append(make_command("stop", {}))
    assert answer.status == "accepted"
    assert full_pool.call(receipt(full_pool.keys, rows=[ReceiptRow(issued.id, "w1", "done")])) == 1
    full_pool.sleep(10_000)
    full_pool.promote()
    assert full_pool.assign().count == 0
    assert full_pool.append(make_command("start", {}))[0].status == "accepted"
    assert set(full_pool.desired()) == {"seq"}
