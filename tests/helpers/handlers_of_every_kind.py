"""An agent with a handler of each kind: in the event loop, in a thread that starts a program, in a process."""

from __future__ import annotations

import subprocess

from orchestrator import Agent, TaskContext

agent = Agent("every_kind", concurrency=2)


@agent.skill
async def in_loop(ctx: TaskContext) -> str:
    """Run in the event loop."""
    assert ctx.attempt
    return "in_loop"


@agent.skill
def in_thread() -> str:
    """Start a program from a thread."""
    return subprocess.run(["id"], capture_output=True, text=True, check=True).stdout


@agent.skill(process=True)
def in_process() -> str:
    """Run in a process."""
    return "in_process"
