"""Handlers that run in processes: they must stand at the top of a module that another process can import."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from orchestrator import Agent, Reject, Retry, Snooze

cruncher = Agent("cruncher", concurrency=3, lease=2.0)


class Point(BaseModel):
    """A value that arrives as a model and leaves as one."""

    x: int
    y: int


@cruncher.skill(process=True)
def swap(point: Point, times: int = 1) -> Point:
    """Answer the point with its coordinates swapped."""
    assert isinstance(point, Point)
    return Point(x=point.y, y=point.x) if times % 2 else point


@cruncher.skill(process=True)
def where() -> dict[str, int]:
    """Answer process and thread."""
    return {"pid": os.getpid(), "threads": threading.active_count()}


@cruncher.skill(process=True)
async def wait_there() -> int:
    """An `async def` gets an event loop of its own."""
    import asyncio

    await asyncio.sleep(0)
    return os.getpid()


@cruncher.skill(process=True)
def talk(text: str) -> int:
    """Print a text, and answer the process."""
    print(text)  # noqa: T201
    return os.getpid()


class Hopeless(ValueError):
    """A failure that another attempt would repeat."""


@cruncher.skill(process=True, give_up_on=ValueError, backoff=0)
def give_up() -> None:
    """Raise what the skill gives up on."""
    raise Hopeless("not again")


@cruncher.skill(process=True, max_attempts=2, backoff=0)
def crash(how: str, marker: str) -> str:
    """Crash in the first attempt, leaving a mark; succeed in the second."""
    mark = Path(marker)
    if mark.exists():
        return "second"
    mark.write_text("here")
    match how:
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "fault":
            ctypes.string_at(0)
        case "orphan":  # what it has started keeps its files open, and lives on
            if os.fork() == 0:
                time.sleep(3)
                os._exit(0)
            os._exit(4)
    return "never"


@cruncher.skill(process=True, timeout=0.3, max_attempts=1)
def spin() -> None:
    """Hold the interpreter for ever."""
    while True:
        pass


@cruncher.skill(process=True)
def hold(marker: str) -> None:
    """Say who runs it, then sleep."""
    Path(marker).write_text(str(os.getpid()))
    time.sleep(60)


@cruncher.skill(process=True, max_attempts=1)
def run_program(pid_file: str, then: str = "wait") -> list[int]:
    """Start a program that outlives a plain kill of this process; leave the ids of both, then end in some way."""
    program = subprocess.Popen(["sleep", "600"])
    pids = [os.getpid(), program.pid]
    Path(pid_file).with_suffix(".part").write_text(json.dumps(pids))
    Path(pid_file).with_suffix(".part").rename(pid_file)
    if then == "wait":
        program.wait()
    elif then == "crash":
        os._exit(3)
    return pids


class Unreadable(Exception):
    """An exception that cannot be shown."""

    def __repr__(self) -> str:
        """Fail."""
        raise RuntimeError("no repr")

    __str__ = __repr__


_RAISED = {
    "retry": Retry(delay=0, reason="once more"),
    "reject": Reject("not like this"),
    "snooze": Snooze(3600, reason="tomorrow"),
    "raise": ValueError("broken there"),
    "leave": SystemExit("left"),
    "unreadable": Unreadable(),
}


@cruncher.skill(process=True, max_attempts=1)
def end(how: str) -> Any:
    """End an attempt in every other way."""
    if how in _RAISED:
        raise _RAISED[how]
    match how:
        case "unpicklable":
            return threading.Lock()
        case "lambda":
            return lambda: None
        case "large":
            return "x" * 2 * 1024 * 1024
        case "noisy":
            print("a handler prints")  # noqa: T201
            subprocess.run(["echo", "so does its child"], check=True)
            return "quiet"
    return None


tracer = Agent("tracer")


@tracer.skill(process=True)
def current_span() -> list[int]:
    """Answer trace id and span id of the current span."""
    from opentelemetry import trace

    found = trace.get_current_span().get_span_context()
    with trace.get_tracer("user").start_as_current_span("in the process"):
        return [found.trace_id, found.span_id]


def greet_in_process(name: str) -> str:
    """Greet; the version before an upgrade."""
    return f"hi {name}"


def greet_politely_in_process(name: str, polite: str = "") -> str:
    """Greet; the version after it."""
    return f"{'good day' if polite else 'hi'} {name}"


def shout_twice(text: str) -> str:
    """Return a text twice in upper case."""
    return text.upper() * 2
