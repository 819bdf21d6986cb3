"""The program `orc`: its commands, each in a module that is imported when it is asked for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from orchestrator.cli.terminal.failures import exit_code_of
from orchestrator.cli.terminal.parsing import Commands

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMMANDS = (
    ("demo", "Watch a team of agents audit a tree of Python source."),
    ("up", "Run everything in one terminal: Redis, supervisor, workers."),
    ("status", "Show on one screen whether everything works."),
    ("doctor", "Find what is wrong, and say what to do."),
    ("stop", "Start nothing more: at all, or of an agent, a session, a skill."),
    ("start", "End a stop."),
    ("control", "Look at the commands that were given."),
    ("tasks", "Submit tasks, look at them, wait for them, cancel them."),
    ("dead", "Look at dead letters, let them run again, export or delete them."),
    ("agents", "Look at the agents of the pool; pause, resume and limit them."),
    ("limits", "Look at the limits of starts; change their rates."),
    ("workers", "Look at the worker processes; drain and stop them."),
    ("queues", "Look at what waits; pause, resume and drain queues."),
    ("schedules", "Submit tasks at times of a calendar or at intervals."),
    ("locks", "Look at the locks of a session, an agent or the pool; release one."),
    ("workspace", "Look at what the agents of a session share; change it."),
    ("keys", "Look whether what is stored is whole, and what it takes."),
    ("supervisor", "Run the supervisor alone."),
    ("worker", "Run worker processes alone."),
    ("redis", "Run the embedded Redis alone; look at it."),
    ("bench", "Measure this machine and a server."),
    ("config", "Show and check the settings."),
    ("completion", "Let a shell complete commands."),
    ("version", "Show the version."),
)

_PLACES = {"stop": "stop:stop_app", "start": "stop:start_app"}
"""Where a command lies whose module is not called like it."""


def program() -> Commands:
    """Declare every command; none of their modules is imported."""
    orc = Commands(
        "orc",
        "Coordinates teams of agents through Redis.",
        examples="""
            orc demo                                   see it work
            orc up my_agents:agent                     run your own agents
            orc tasks submit greet -a name=Ada --wait  in another terminal
        """,
    )
    for name, about in _COMMANDS:
        orc.lazy(name, f"orchestrator.cli.commands.{_PLACES.get(name, f'{name}:app')}", about)
    return orc


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and answer its exit code."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    if tokens in (["--version"], ["-V"]):
        tokens = ["version"]
    return exit_code_of(lambda: program().run(tokens), debug="--debug" in tokens)
