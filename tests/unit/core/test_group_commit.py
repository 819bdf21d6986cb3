"""Group commit: who sends, how batches grow, what bounds them, how it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from anyio.lowlevel import checkpoint

from orchestrator.core import group_commit
from orchestrator.core.errors import OrchestratorError, ServerUnavailable, StoreError
from orchestrator.core.group_commit import GroupCommit, split_to_fit

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.anyio


class _Server:
    """Answers each row with itself; holds calls back while `gate` is closed."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.gate = anyio.Event()
        self.refused: set[str] = set()

    async def send(self, rows: Sequence[str]) -> list[str]:
        self.calls.append(list(rows))
        await self.gate.wait()
        if self.refused & set(rows):
            raise StoreError("refused")
        return list(rows)


async def test_the_next_batch_grows_behind_a_call() -> None:
    """The first row is sent by its caller; rows that arrive meanwhile share the next call, in their order."""
    server, given = _Server(), dict[str, str]()
    commits: GroupCommit[str, str] = GroupCommit("client", server.send, size=len)

    async def add(row: str) -> None:
        given[row] = await commits.add(row)

    async with anyio.create_task_group() as group:
        group.start_soon(commits.run)
        for row in "abcde":
            group.start_soon(add, row)
        await anyio.wait_all_tasks_blocked()
        assert server.calls == [["a"]]
        server.gate.set()
        await anyio.wait_all_tasks_blocked()
        assert await commits.add("f") == "f"
        group.cancel_scope.cancel()
    assert server.calls == [["a"], list("bcde"), ["f"]]
    assert given == {row: row for row in "abcde"}


async def test_a_lone_verdict_waits_for_no_turn() -> None:
    """At rest a row that `put` queued is sent in the next turn of the event loop; rows of one turn share the call."""
    server = _Server()
    commits: GroupCommit[str, str] = GroupCommit("worker", server.send, size=len)
    async with anyio.create_task_group() as group:
        group.start_soon(commits.run)
        await anyio.wait_all_tasks_blocked()
        commits.put("a")
        commits.put("b")
        await checkpoint()
        assert server.calls == [["a", "b"]]
        group.cancel_scope.cancel()


async def test_rows_gather_before_a_slow_call() -> None:
    """Rows of one turn of the event loop share the first call, if it takes much longer than a round trip."""
    server = _Server()
    server.gate.set()
    commits: GroupCommit[str, str] = GroupCommit("client", server.send, size=len, sends_lone=False)
    async with anyio.create_task_group() as group:
        group.start_soon(commits.run)
        async with anyio.create_task_group() as callers:
            for row in "abc":
                callers.start_soon(commits.add, row)
        assert await commits.add("d") == "d"
        group.cancel_scope.cancel()
    assert server.calls == [list("abc"), ["d"]]


async def test_rows_gather_while_recent_calls_met_others() -> None:
    """Pairs of one turn soon share their calls; a caller alone soon sends its row itself again."""
    server = _Server()
    server.gate.set()
    commits: GroupCommit[str, str] = GroupCommit("client", server.send, size=len)
    async with anyio.create_task_group() as group:
        group.start_soon(commits.run)
        for _ in range(10):
            async with anyio.create_task_group() as callers:
                callers.start_soon(commits.add, "a")
                callers.start_soon(commits.add, "b")
        assert server.calls[:2] == [["a"], ["b"]]
        assert server.calls[-1] == ["a", "b"]
        for _ in range(20):
            await commits.add("c")
        server.calls.clear()
        # Its caller sends it before `run` could.
        sends = commits.add("d")
        sends.send(None)
        assert server.calls == [["d"]]
        sends.close()
        group.cancel_scope.cancel()


async def test_gathering_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows wait for others no longer than the limit, also while each turn brings some."""
    monkeypatch.setattr(group_commit, "MAX_GATHER_S", 0.0)
    server = _Server()
    server.gate.set()
    commits: GroupCommit[str, str] = GroupCommit("client", server.send, size=len)
    async with anyio.create_task_group() as group:
        group.start_soon(commits.run)
        async with anyio.create_task_group() as callers:
            for _ in range(100):
                callers.start_soon(commits.add, "a")
        server.calls.clear()
        async with anyio.create_task_group() as callers:
            for _ in range(50):
                callers.start_soon(commits.add, "b")
                await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert len(server.calls) > 5


async def test_a_batch_has_bounds() -> None:
    """No call carries more rows or bytes than allowed, except a single row that is larger."""
    server = _Server()
    commits: GroupCommit[str, str] = GroupCommit("worker", server.send, size=len, max_rows=3, max_bytes=10)
    rows = ["a", "b", "c", "d", "eeeeee", "ffffff", "g" * 50, "h"]
    async with anyio.create_task_group() as group:
        group.start_soon(commits.run)
        for row in rows:
            commits.put(row)
        server.gate.set()
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert server.calls == [["a", "b", "c"], ["d", "eeeeee"], ["ffffff"], ["g" * 50], ["h"]]
    assert list(split_to_fit(rows, len, max_bytes=10)) == [rows[:5], rows[5:6], rows[6:7], rows[7:]]


async def test_rows_wait_for_room() -> None:
    """`wait_for_room` holds callers back while too much is queued, and lets them go on when it is sent."""
    server = _Server()
    commits: GroupCommit[str, str] = GroupCommit("worker", server.send, size=len, max_waiting_bytes=4)
    async with anyio.create_task_group() as group:
        group.start_soon(commits.run)
        commits.put("aa")
        await anyio.wait_all_tasks_blocked()
        commits.put("bbbb")
        with anyio.move_on_after(0.01) as waited:
            await commits.wait_for_room()
        assert waited.cancelled_caught
        server.gate.set()
        await commits.wait_for_room()
        group.cancel_scope.cancel()


@pytest.mark.parametrize("end", ["sent", "closed"])
async def test_all_who_wait_for_room_go_on(end: str) -> None:
    """Room wakes every waiter, in the order of their calls, and each one looks again; so does the end of the owner."""
    server, added = _Server(), list[int]()
    commits: GroupCommit[str, str] = GroupCommit("worker", server.send, size=len, max_waiting_bytes=4)

    async def wait_and_add(number: int) -> None:
        await commits.wait_for_room()
        added.append(number)
        if end == "sent":
            commits.put("cccc")

    with anyio.move_on_after(2):
        async with anyio.create_task_group() as callers, anyio.create_task_group() as group:
            group.start_soon(commits.run)
            commits.put("aa")
            await anyio.wait_all_tasks_blocked()
            commits.put("bbbb")
            for number in range(5):
                callers.start_soon(wait_and_add, number)
            await anyio.wait_all_tasks_blocked()
            assert not added
            if end == "sent":
                server.gate.set()
                await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
    assert added == list(range(5))
    assert server.calls == ([["aa"], ["bbbb"], *[["cccc"]] * 5] if end == "sent" else [["aa"]])


async def test_a_failure_reaches_the_rows_of_its_call_alone() -> None:
    """Callers of a refused call get its failure; the next call is sent."""
    server, failed = _Server(), list[str]()
    server.refused = {"b"}
    commits: GroupCommit[str, str] = GroupCommit("client", server.send, size=len)

    async def add(row: str) -> None:
        try:
            await commits.add(row)
        except StoreError:
            failed.append(row)

    async with anyio.create_task_group() as group:
        group.start_soon(commits.run)
        for row in "abc":
            group.start_soon(add, row)
        await anyio.wait_all_tasks_blocked()
        server.gate.set()
        await anyio.wait_all_tasks_blocked()
        assert await commits.add("d") == "d"
        group.cancel_scope.cancel()
    assert failed == ["b", "c"]


async def test_no_caller_waits_for_an_end() -> None:
    """When `run` ends, rows in the call are lost with an unknown outcome, queued rows and later ones are refused."""
    server, told = _Server(), dict[str, OrchestratorError]()
    commits: GroupCommit[str, str] = GroupCommit("client", server.send, size=len)

    async def add(row: str) -> None:
        try:
            await commits.add(row)
        except OrchestratorError as failure:
            told[row] = failure

    async with anyio.create_task_group() as callers, anyio.create_task_group() as group:
        group.start_soon(commits.run)
        commits.put("first")
        await anyio.wait_all_tasks_blocked()
        callers.start_soon(add, "queued")
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    with pytest.raises(OrchestratorError, match="the client was closed before this was sent"):
        await commits.add("late")
    assert not isinstance(told["queued"], ServerUnavailable)

    commits = GroupCommit("client", server.send, size=len)
    async with anyio.create_task_group() as callers, anyio.create_task_group() as group:
        group.start_soon(commits.run)
        group.start_soon(commits.add, "lead")
        await anyio.wait_all_tasks_blocked()
        callers.start_soon(add, "sent")
        await anyio.wait_all_tasks_blocked()
        server.gate.set()
        await anyio.wait_all_tasks_blocked()
        server.gate = anyio.Event()
        commits.put("next")
        callers.start_soon(add, "in the call")
        await anyio.wait_all_tasks_blocked()
        opened, server.gate = server.gate, anyio.Event()
        opened.set()
        await anyio.wait_all_tasks_blocked()
        assert server.calls[-1] == ["in the call"]
        group.cancel_scope.cancel()
    lost = told["in the call"]
    assert isinstance(lost, ServerUnavailable)
    assert lost.outcome_unknown


async def test_a_cancelled_row_is_not_sent() -> None:
    """A caller that is cancelled while its row is queued takes the row along."""
    server = _Server()
    commits: GroupCommit[str, str] = GroupCommit("client", server.send, size=len)
    async with anyio.create_task_group() as group:
        group.start_soon(commits.run)
        group.start_soon(commits.add, "a")
        await anyio.wait_all_tasks_blocked()
        with anyio.move_on_after(0.01):
            await commits.add("b")
        server.gate.set()
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert server.calls == [["a"]]
