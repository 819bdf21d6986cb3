"""Two agents edit one document, and one of them freezes in the middle of an edit. No line is lost, and none doubled.

`python two_editors.py` runs all of it: a Redis, a supervisor, and a worker process for each agent. Needs no `orc up`.

An edit reads the whole document, thinks, and writes it back: without a lock that loses what others write meanwhile.
With `lock="session"` only one task of the session edits at a time. But no lock can keep a process that stood still from
going on later as if nothing had happened: its lock has lapsed by then, and somebody else has had it. What stops it is
the fence: each change shows the right under which it is made, and the server refuses one that is no longer active.
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
"""How long an agent's lock lasts without a sign of life; its worker renews it three times in that time."""

ada = Agent("ada", lease=LEASE_S)
bob = Agent("bob", lease=LEASE_S)


def say(who: str, what: str) -> None:
    """Print what happens, with the second of the minute."""
    now_s = time.time()
    print(f"{now_s % 60:04.1f} {who:>6}: {what}", flush=True)


async def write(ctx: TaskContext, line: str, *, freeze: bool = False) -> None:
    """Add a line to the document, unless an attempt before this one has done so."""
    text = await read(ctx)
    if line in text:
        say(ctx.agent, f"{line!r} is there already")
        return
    if freeze:
        await stand_still(ctx)
    try:
        # Its worker has noticed by now and cancels what runs here. The shield stands for code that does not listen.
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


async def stand_still(ctx: TaskContext) -> None:
    """Freeze this worker process, with all of its threads, until somebody wakes it. Once in a session."""
    if await ctx.workspace.get("frozen"):
        return
    await ctx.workspace.set("frozen", os.getpid())
    say(ctx.agent, "has read the document and freezes")
    os.kill(os.getpid(), signal.SIGSTOP)
    say(ctx.agent, "wakes up, knows of nothing, and writes")


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
    """Let both edit, wake ada while bob is at it, and look at what they have made."""
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
    """Wait for the first change of a path by an agent; answer what is there now."""
    value: Any = None
    with anyio.fail_after(60):
        async for event in document.events("0-0"):
            if event.agent == by and event.changes[0].name == path:
                value = event.changes[0].value
                break
    return value


@contextmanager
def running(environ: dict[str, str], *command: str) -> Iterator[None]:
    """Run an `orc` command beside this program; end it in order."""
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
