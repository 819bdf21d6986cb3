"""Runs two agents that edit one document, of which one freezes during an edit. No line is lost, and none is doubled.

`python two_editors.py` runs all of it: a Redis, a supervisor, and a worker process for each agent. Needs no `orc up`.

An edit reads the whole document, waits, and writes it back. Without a lock it would overwrite concurrent changes. With
`lock="session"` only one task of the session edits at a time. But a lock cannot stop a frozen process from continuing
after its lock has lapsed and another task has had it. The fence stops it: each change presents its lock, and Redis
refuses a change whose lock is no longer active.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from orchestrator import Agent, Fenced, Orchestrator, TaskContext
from orchestrator.embedded.attachment import attach_ephemeral

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator import WorkspaceView

SESSION = "report-7"
DOCUMENT = "report"
LEASE_S = 2.0
"""Time after which an agent's lock lapses without renewal. Its worker renews it three times in that time."""

ada = Agent("ada", lease=LEASE_S)
bob = Agent("bob", lease=LEASE_S)


def say(who: str, what: str) -> None:
    """Print a step with the second of the minute."""
    now_s = time.time()
    # The line and its end in one write: with PYTHONUNBUFFERED, print() writes each, and three processes mix theirs.
    print(f"{now_s % 60:04.1f} {who:>6}: {what}\n", end="", flush=True)


async def write(ctx: TaskContext, line: str, *, freeze: bool = False) -> None:
    """Add a line to the document, unless an earlier attempt has added it."""
    text = await read(ctx)
    if line in text:
        say(ctx.agent, f"{line!r} is there already")
        return
    if freeze:
        await freeze_process(ctx)
    try:
        # The worker cancels this handler: the lock is lost. The shield simulates code that ignores cancellation.
        with anyio.CancelScope(shield=True):
            done = await ctx.workspace.set(DOCUMENT, [*text, line])
    except Fenced as refused:
        say(ctx.agent, f"would have made {[*text, line]} of it. Fenced: {refused}")
        raise
    say(ctx.agent, f"{line!r} is written, version {done.version} of the document")


async def read(ctx: TaskContext) -> list[str]:
    """Read the document: a list of lines."""
    found = await ctx.workspace.get(DOCUMENT)
    return list(found[DOCUMENT].value) if found else []


async def freeze_process(ctx: TaskContext) -> None:
    """Freeze this worker process, with all of its threads, until `main` wakes it. Once in a session."""
    if await ctx.workspace.get("frozen"):
        return
    await ctx.workspace.set("frozen", os.getpid())
    say(ctx.agent, "has read the document and freezes")
    os.kill(os.getpid(), signal.SIGSTOP)
    say(ctx.agent, "wakes up, does not know of bob's edits, and writes")


@ada.skill(lock="session")
async def ada_edits(ctx: TaskContext) -> None:
    """Write two lines; freeze between reading and writing the second one."""
    say(ctx.agent, f"has the document to herself, fence {ctx.fence}")
    await write(ctx, "ada 1")
    await write(ctx, "ada 2", freeze=True)


@bob.skill(lock="session")
async def bob_edits(ctx: TaskContext) -> None:
    """Write two lines, the second one after a while."""
    say(ctx.agent, f"has the document to himself, fence {ctx.fence}")
    await write(ctx, "bob 1")
    await anyio.sleep(LEASE_S / 2)
    await write(ctx, "bob 2")


async def main(url: str) -> None:
    """Submit both edits, wake ada while bob edits, and print the document."""
    async with Orchestrator(url) as orc:
        document = orc.workspace(SESSION)
        hers = await orc.submit(ada_edits, session=SESSION)
        frozen = await change(document, "frozen", by="ada")
        try:
            say("main", "submits bob's task; ada's lock has to lapse first")
            his = await orc.submit(bob_edits, session=SESSION)
            await change(document, DOCUMENT, by="bob")
        finally:
            os.kill(frozen, signal.SIGCONT)
        for handle in (his, hers):
            await handle.result(timeout=60)
        say("main", f"the document: {(await document.get(DOCUMENT))[DOCUMENT].value}")


async def change(document: WorkspaceView, path: str, *, by: str) -> Any:
    """Wait for the first change of a path by an agent, and return the new value."""
    value: Any = None
    with anyio.fail_after(60):
        async for event in document.events("0-0"):
            if event.agent == by and event.changes[0].name == path:
                value = event.changes[0].value
                break
    return value


@contextmanager
def running(environ: dict[str, str], *command: str) -> Iterator[None]:
    """Run an `orc` command until the block ends, then terminate it."""
    orc = [sys.executable, "-m", "orchestrator", *command]
    with subprocess.Popen(orc, env=environ, cwd=Path(__file__).parent) as process:  # noqa: S603 - our own interpreter
        try:
            yield
        finally:
            process.terminate()


if __name__ == "__main__":
    with attach_ephemeral() as server, ExitStack() as beside:
        variables = {**os.environ, "ORC_REDIS__URL": server.url, "ORC_LOGGING__LEVEL": "error"}
        for part in (["supervisor", "run"], ["worker", "run", "two_editors:ada"], ["worker", "run", "two_editors:bob"]):
            beside.enter_context(running(variables, *part))
        anyio.run(main, server.url)
