"""What users write with the synchronous client."""

from __future__ import annotations

from datetime import datetime
from typing import Any, assert_type

from orchestrator import (
    After,
    Agent,
    CancelStatus,
    ConfigChange,
    Flow,
    FlowTask,
    LogEntry,
    OutputChunk,
    Standing,
    Submission,
    TaskEvent,
    TaskStatus,
)
from orchestrator.sync import Lease, Orchestrator, TaskHandle, Workspace

agent = Agent("editor")


@agent.skill
async def count(text: str) -> int:
    """Its tasks have an `int` for a result."""
    return len(text)


def script() -> None:
    """The same calls, which block."""
    with Orchestrator("redis://localhost", pool="default") as orc:
        handle = orc.submit(count, {"text": "a"}, priority="high")
        assert_type(handle, TaskHandle[int])
        assert_type(handle.result(timeout=5), int)
        assert_type(handle.result(as_=float), float)
        assert_type(orc.submit("count", {"text": "a"}), TaskHandle[Any])
        assert_type(orc.submit_many([Submission(count), Submission("count")]), list[TaskHandle[Any]])
        for each in orc.as_completed([handle]):
            assert_type(each.result(), int)
        assert_type(handle.id, str)
        assert_type(handle.status(), TaskStatus)
        assert_type(handle.cancel(), CancelStatus)
        assert_type(next(iter(handle.output())), OutputChunk)
        assert_type(next(iter(handle.events())), TaskEvent)
        assert_type(orc.task("id"), TaskHandle[Any])


def flow_of_tasks(orc: Orchestrator) -> None:
    """The handle of a task of a flow knows its result."""
    flow = Flow("review")
    first = flow.task(count, {"text": "a"}, priority="high")
    assert_type(first, FlowTask[int])
    second = flow.task("count", {"text": first.result_or("b")}, after=[first, After(first, failed="run")])
    assert_type(second, FlowTask[Any])
    handle = orc.submit_flow(flow, key="one")
    assert_type(handle.task(first), TaskHandle[int])
    assert_type(handle.task("count").result(), Any)
    flow.task(count, prio="high")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


def wrong(orc: Orchestrator) -> None:
    """The same mistakes are errors."""
    orc.submit(count, {"text": "a"}, prio="high")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    orc.submit("count", delay="5 s")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    orc.submit(7)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    orc.submit_many(["count"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    orc.submit(count).result(timeout="5 s")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    assert_type(orc.submit(count).result(), str)  # type: ignore[assert-type]  # pyright: ignore[reportAssertTypeFailure]


async def wrong_await(orc: Orchestrator) -> None:
    """It is not awaited."""
    await orc.submit(count)  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    async with Orchestrator():  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass


def shared_state(orc: Orchestrator) -> None:
    """Locks, workspaces and the others block as well, and `with` takes what `async with` takes."""
    with orc.locks("session:101").hold("doc", ttl=30) as lease:
        assert_type(lease, Lease)
        assert_type(lease.fence, int)
        orc.workspace("101").under(lease).set("title", "Rain")
    with orc.workspace("101").edit() as workspace:
        assert_type(workspace, Workspace)
    assert_type(orc.workspace("101").log("notes"), list[LogEntry])
    assert_type(orc.board().top(), list[Standing])
    assert_type(orc.agents.active(), dict[str, datetime])
    assert_type(orc.config.all(), dict[str, Any])
    assert_type(next(iter(orc.config.changes())), ConfigChange)


def wrong_shared_state(orc: Orchestrator) -> None:
    """Views cannot be changed, and nothing is awaited."""
    orc.workspace("101").set("title", "Rain")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    orc.board().add("ada")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
