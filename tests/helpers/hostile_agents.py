"""An agent whose documentation, errors, progress, output, questions and log lines are hostile to a terminal."""

from __future__ import annotations

import logging
from typing import Any

from orchestrator import Agent, Reject, Retry, TaskContext
from tests.helpers.pty_screen import HOSTILE

agent = Agent("eve", concurrency=4)


async def speak(ctx: TaskContext, how: str, value: Any = None) -> Any:
    """Do what handlers can do."""
    del value
    await ctx.progress(1, 2, HOSTILE)
    await ctx.emit(HOSTILE)
    await ctx.emit({HOSTILE: [HOSTILE]})
    match how:
        case "raise":
            error = ValueError(HOSTILE)
            error.add_note(HOSTILE)
            raise ExceptionGroup(HOSTILE, [error, KeyError(HOSTILE)])
        case "reject":
            raise Reject(HOSTILE)
        case "retry":
            raise Retry(0.01, reason=HOSTILE)
        case "snooze":
            raise Retry(3000, reason=HOSTILE)
        case "ask":
            return await ctx.ask(HOSTILE, options=[HOSTILE, {HOSTILE: 1}])
        case "log":
            ctx.log.warning(HOSTILE, **{HOSTILE: HOSTILE, "plain": [HOSTILE, {HOSTILE: HOSTILE}]})
            logging.getLogger("library").error("%s", HOSTILE, exc_info=ValueError(HOSTILE))
    return {HOSTILE: HOSTILE}


speak.__doc__ = f"Say it. {HOSTILE}\n\nMore: {HOSTILE}"
agent.skill(max_attempts=2, backoff=0.01)(speak)
