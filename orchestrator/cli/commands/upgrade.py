"""`orc upgrade`: status, load, finish."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.confirm import ask
from orchestrator.cli.terminal.options import DEFAULTS, Globals, Reason, Yes
from orchestrator.cli.terminal.parsing import Commands, option

if TYPE_CHECKING:
    from orchestrator.views.upgrade import UpgradeView

commands = Commands(
    "upgrade",
    "orc upgrade status",
    "orc upgrade load",
    "orc upgrade finish",
)

COLUMNS: Final = ("kind", "id", "version", "format", "pool")
UNKNOWN: Final = "clients and standby supervisors of older versions are unknown: the Redis user may not run CLIENT LIST"


@commands.command("status", "orc upgrade status", "orc upgrade status -o json")
async def status(*, common: Globals = DEFAULTS) -> None:
    """Show the formats of the live programs, the lowest one that the pool admits, and what waits for a higher one.

    Older programs do not name their pool in their connections, so they are shown with an uncertain pool.
    """
    from orchestrator.views.upgrade import read_upgrade

    async with common.services() as services:
        found = await read_upgrade(services)
    if common.output != "table":
        output.show_record(common.output, asdict(found), key="floor")
        return
    output.write(
        f"the pool admits programs of format {found.floor} and newer; this version has format {found.format}\n"
    )
    rows = [{**asdict(program), "pool": "this" if program.certain else "uncertain"} for program in found.programs]
    output.show_list("table", rows, COLUMNS, key="id", empty="no program uses the pool")
    if found.waiting:
        output.write(f"waiting for `orc upgrade finish`: {', '.join(found.waiting)}\n")
    _say_unknown(found)


@commands.command("load", "orc upgrade load", "ORC_REDIS__URL=redis://loader:PASSWORD@10.0.0.5:6379/0 orc upgrade load")
async def load(*, common: Globals = DEFAULTS) -> None:
    """Load the scripts of this version into each server of Redis, for programs whose users may load none.

    Needs the rights of the role `loader` alone. Redis forgets scripts when it restarts.
    """
    from orchestrator.views.upgrade import load_scripts

    missing = await load_scripts(common.settings())
    if common.output == "table":
        output.write(f"loaded {missing} scripts\n" if missing else "Redis has all scripts\n")
    else:
        output.show_record(common.output, {"loaded": missing}, key="loaded")


@commands.command(
    "finish",
    "orc upgrade finish",
    'orc upgrade finish --reason "all hosts run 0.2" --yes',
    "orc upgrade finish --ignore-connections",
)
def finish(
    *,
    ignore_connections: Annotated[bool, option("--ignore-connections")] = False,
    reason: Reason = "",
    yes: Yes = False,
    common: Globals = DEFAULTS,
) -> None:
    """Admit no program older than this one from now on. Asks for confirmation.

    New features that older programs would misread can be used from then on. An older program that starts later ends
    with an error. Refused while an older program uses the pool.

    Args:
        ignore_connections: Count no connections of older programs whose pool is uncertain, and finish also if the Redis
            user may not list connections.

    Exit code: 0 finished, 1 finished but not recorded, 4 an older program uses the pool, or not confirmed.
    """
    # Not a coroutine, so that Ctrl-C ends the question.
    import anyio

    anyio.run(_finish, ignore_connections, reason, yes, common)


async def _finish(ignore_connections: bool, reason: str, yes: bool, common: Globals) -> None:  # noqa: FBT001
    from anyio import to_thread

    from orchestrator.views.upgrade import read_upgrade

    async with common.client() as orc:
        found = await read_upgrade(orc.services)
        _say_unknown(found)
        action = f"admit no program older than format {found.format} (version {found.version})"
        await to_thread.run_sync(lambda: ask(action, yes=yes), abandon_on_cancel=True)
        sent = await orc.admin.finish_upgrade(ignore_connections=ignore_connections, reason=reason)
        found = await read_upgrade(orc.services)
    if common.output == "table":
        output.write(f"the pool admits programs of format {found.floor} and newer\n")
    else:
        output.show_record(common.output, asdict(found), key="floor")
    if sent.older:
        output.say(f"older programs have started meanwhile, upgrade or stop them: {', '.join(sent.older)}")


def _say_unknown(found: UpgradeView) -> None:
    if not found.connections_known:
        output.say(UNKNOWN)
