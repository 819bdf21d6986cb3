"""The team behind HTTP: start a report, follow it, answer its question, cancel it.

Needs the extra `examples`. Run `uvicorn web:app` while `orc up team:team` runs.
"""

from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from team import report

from orchestrator import Orchestrator, TaskState


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open one client for all requests."""
    async with Orchestrator() as orc:
        app.state.orc = orc
        yield


app = FastAPI(lifespan=lifespan)


async def client(request: Request) -> Orchestrator:
    """Return the client of the app; tests override it."""
    orc: Orchestrator = request.app.state.orc
    return orc


Client = Annotated[Orchestrator, Depends(client)]


@app.post("/{session}/reports", status_code=202)
async def start(
    session: str, topic: str, orc: Client, idempotency_key: Annotated[str | None, Header()] = None
) -> dict[str, str]:
    """Submit a report. The team writes the reports of one session one after the other."""
    handle = await orc.submit(report, {"topic": topic}, session=session, lane=session, key=idempotency_key)
    return {"report": handle.id}


async def newest_report(session: str, orc: Client) -> str:
    """Return the newest report of a session, before the stream begins, because that could not answer 404."""
    reports = [row.id for row in await orc.tasks.find(session=session) if row.parent is None]
    if not reports:
        raise HTTPException(404, f"session {session!r} has no report")
    return reports[0]


@app.get("/{session}/events", response_class=EventSourceResponse)
async def follow(
    newest: Annotated[str, Depends(newest_report)], orc: Client, last_event_id: Annotated[str | None, Header()] = None
) -> AsyncIterable[ServerSentEvent]:
    """Stream the newest report of a session. A browser that reconnects gets what it missed."""
    async for event in orc.task(newest).events(after=last_event_id):
        progress = event.progress and f"{event.progress.done} of {event.progress.total} {event.progress.message}"
        yield ServerSentEvent(id=event.id, event=event.kind, data=event.data or progress or event.reason)


@app.get("/{session}/questions")
async def questions(session: str, orc: Client) -> list[dict[str, Any]]:
    """List the questions that wait for a person."""
    asking = await orc.tasks.find(session=session, states=[TaskState.AWAITING_INPUT])
    found = [(await orc.task(row.id).status()).detail for row in asking]
    return [{"question": why.question, "options": why.options} for why in found if why is not None]


@app.post("/{session}/answer")
async def answer(session: str, value: str, orc: Client) -> dict[str, str]:
    """Answer the oldest question of a session."""
    asking = await orc.tasks.find(session=session, states=[TaskState.AWAITING_INPUT])
    if not asking:
        raise HTTPException(404, f"session {session!r} has no open question")
    return {"answer": await orc.task(asking[-1].id).answer(value, actor=session)}


@app.delete("/{session}/reports")
async def cancel(session: str, orc: Client) -> list[str]:
    """Cancel the reports of a session, each with all of its children."""
    reports = [row.id for row in await orc.tasks.find(session=session) if row.parent is None and row.ended_at is None]
    for report_id in reports:
        await orc.task(report_id).cancel(f"cancelled by {session}")
    return reports
