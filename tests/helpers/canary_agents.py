"""An agent whose handlers read the settings and let their secrets slip: into errors, reasons, log lines, commands."""

from __future__ import annotations

import logging
import os
import subprocess
from pathlib import Path

from orchestrator import Agent, Reject, Retry, TaskContext
from orchestrator.core.settings_sources import load_settings

agent = Agent("careless", concurrency=4)
PLAIN = "n0-s3cret"
"""Stands beside the secrets in each text, and shows that the text came where it is searched for."""
IMPORTED = dict(os.environ)
"""What the module found when it was imported."""


def texts() -> str:
    """Return the secrets of the settings as an error of a library may have them."""
    settings = load_settings()
    assert settings.redis.url is not None
    url = settings.redis.url.get_secret_value()
    return f"{PLAIN} {url} {' '.join(settings.secrets)} {url!r} http://u:c4n4ry-other@h/?x=1&password=c4n4ry-third"


def leak(how: str) -> object:
    """Do what handlers of each kind can do."""
    match how:
        case "raise":
            try:
                raise KeyError(texts())
            except KeyError as first:
                raise ExceptionGroup(texts(), [RuntimeError(texts())]) from first
        case "reject":
            raise Reject(texts())
        case "retry":
            raise Retry(0.01, reason=texts())
        case "snooze":
            raise Retry(3000, reason=texts())
        case "log":
            logging.getLogger("library").error("cannot reach %s", texts(), exc_info=ValueError(texts()))
        case "environ":
            program = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
            found = "\n".join([*IMPORTED.values(), *os.environ.values(), program, _initial()])
            return {"canary": "c4n4ry" in found, "path": "PATH=" in program}
    return None


def _initial() -> str:
    return Path("/proc/self/environ").read_bytes().decode(errors="replace")


@agent.skill(max_attempts=2, backoff=0.01)
async def in_loop(ctx: TaskContext, how: str) -> object:
    """Leak in the event loop."""
    if how == "log":
        ctx.log.warning("unreachable", url=texts(), password="c4n4ry")
    if how == "hold":
        await ctx.pause_agent(0.2, reason=texts()[:500])
    return leak(how)


@agent.skill(max_attempts=2, backoff=0.01)
def in_thread(how: str) -> object:
    """Leak in a thread."""
    return leak(how)


@agent.skill(max_attempts=2, backoff=0.01, process=True)
def in_process(how: str) -> object:
    """Leak in a process."""
    return leak(how)
