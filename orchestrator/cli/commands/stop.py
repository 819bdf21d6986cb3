"""`orc stop` and `orc start`."""

from __future__ import annotations

from typing import Annotated

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.active_commands import SHOWN, read_desired_state
from orchestrator.cli.terminal.command_options import USUAL, CommandOptions, send_and_show
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import Commands, option
from orchestrator.core.errors import InvalidInput

stop_commands = Commands(
    "stop",
    "Start nothing more, until `orc start`.",
    examples="""
        orc stop --reason "the model answers nonsense"
        orc stop --agent editor --now
        orc stop --session 101 --refuse
        orc stop --wait --timeout 2m
    """,
)
start_commands = Commands(
    "start",
    "End a stop.",
    examples="""
        orc start
        orc start --agent editor
    """,
)
stop_app, start_app = stop_commands.app, start_commands.app

Agent = Annotated[str | None, option("--agent", metavar="AGENT")]
Session = Annotated[str | None, option("--session", metavar="SESSION")]
Skill = Annotated[str | None, option("--skill", metavar="SKILL")]


@stop_commands.itself
async def stop(
    *,
    agent: Agent = None,
    session: Session = None,
    skill: Skill = None,
    now: Annotated[bool, option("--now")] = False,
    refuse: Annotated[bool, option("--refuse")] = False,
    wait: Annotated[bool, option("--wait")] = False,
    options: CommandOptions = USUAL,
    common: Globals = DEFAULTS,
) -> int:
    """Start nothing more: at all, or of one agent, session or skill. It holds until `orc start`, whatever restarts.

    What runs goes on, unless --now is said. New tasks are accepted and wait, unless --refuse is said.

    Exit code: 0 all have answered, or nobody runs; 5 somebody has not, and the stop holds all the same.

    Args:
        agent: Only this agent.
        session: Only tasks of this session.
        skill: Only tasks of this skill.
        now: Interrupt what runs; it goes back to its queue, no attempt is counted.
        refuse: Refuse new tasks too.
        wait: Wait until nothing of it runs any more.
        options: How to ask.
        common: Global options.
    """
    from orchestrator.cli.commands.agents import known_agent
    from orchestrator.control.commands import make_command
    from orchestrator.services import open_services

    if wait and options.no_wait:
        raise InvalidInput("--wait and --no-wait contradict each other")
    scope = {"agent": agent, "session": session, "skill": skill}
    command = make_command("stop", {**scope, "now": now, "refuse": refuse})
    async with open_services(common.settings(), name="cli") as services:
        if agent is not None:
            await known_agent(services, agent)
        return await send_and_show(services, command, options, common, until_done=wait)


@start_commands.itself
async def start(
    *,
    agent: Agent = None,
    session: Session = None,
    skill: Skill = None,
    options: CommandOptions = USUAL,
    common: Globals = DEFAULTS,
) -> int:
    """End the stop of the same scope: `orc start` ends `orc stop`, `orc start --agent A` ends `orc stop --agent A`.

    Exit code: 0 all have answered, or nobody runs; 5 somebody has not, and it holds all the same.

    Args:
        agent: Of this agent.
        session: Of this session.
        skill: Of this skill.
        options: How to ask.
        common: Global options.
    """
    from orchestrator.control.commands import make_command
    from orchestrator.services import open_services

    command = make_command("start", {"agent": agent, "session": session, "skill": skill})
    async with open_services(common.settings(), name="cli") as services:
        before = (await read_desired_state(services)).active
        slot = command.changes[0].slot
        if slot not in before:
            output.say(f"nothing changes: {slot.removeprefix('stop:').replace(':', ' ', 1)} was not stopped")
        code = await send_and_show(services, command, options, common)
    others = sorted(one.removeprefix("stop:") for one in before if one.startswith("stop:") and one != slot)
    if others:
        more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
        named = output.clean(", ".join(others[:SHOWN])) + more
        output.say(f"still stopped: {named}; `orc start` with the same scope ends each")
    return code
