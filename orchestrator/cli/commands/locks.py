"""`orc locks`: list, release."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.confirm import ask
from orchestrator.cli.terminal.declared import noun
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import option, positional

if TYPE_CHECKING:
    from orchestrator.locks.model import LockInfo
    from orchestrator.locks.named import Locks

commands = noun(
    "locks",
    "Look at the locks of a session, an agent or the pool; release one.",
    "orc locks list",
    "orc locks list session:101",
)
app = commands.app

COLUMNS: Final = ("name", "holder", "fence", "left_ms", "waiting")


@commands.command("list", "orc locks list", "orc locks list session:101", "orc locks list agent:editor -o json")
async def list_(scope: Annotated[str, positional("SCOPE")] = "pool", /, *, common: Globals = DEFAULTS) -> None:
    """List the locks of one scope that somebody has: by whom, until when, and how many wait.

    `exec` is what one task of a session, or one execution of an agent, has for itself; `exec:TASK` is the right of an
    attempt to change shared state. A holder that lives renews its lock.

    Args:
        scope: session:ID, agent:NAME or pool [pool].
    """
    async with common.client() as orc:
        rows = [_row(lock) for lock in await orc.locks(scope).list()]
    output.show_list(common.output, rows, COLUMNS, key="name", empty=f"nobody has a lock of {output.clean(scope)}")


@commands.command(
    "release",
    "orc locks release session:101 report",
    'orc locks release pool nightly --reason "its holder hangs" --yes',
)
def release(
    scope: Annotated[str, positional("SCOPE")],
    name: Annotated[str, positional("NAME")],
    /,
    *,
    reason: Annotated[str, option("--reason", metavar="TEXT")] = "",
    yes: Annotated[bool, option("--yes")] = False,
    common: Globals = DEFAULTS,
) -> int:
    """Take a lock from its holder. What the holder does under it is cancelled when it next renews.

    Until then two may work at once; what looks at the fence refuses the old one. Asks first, and is recorded.

    Exit code: 0 it is free, 3 nobody has it, 4 somebody else has got it meanwhile, or the answer was no.

    Args:
        scope: session:ID, agent:NAME or pool.
        name: Its name, as `orc locks list` shows it.
        reason: Why; kept with the command.
        yes: Do not ask.
    """
    # No coroutine, so that Ctrl-C ends the question.
    import anyio

    return anyio.run(_release, scope, name, reason, yes, common)


async def _release(scope: str, name: str, reason: str, yes: bool, common: Globals) -> int:  # noqa: FBT001
    from anyio import to_thread

    from orchestrator.cli.terminal.failures import DONE, CommandAborted
    from orchestrator.control.commands import RecordLock

    async with common.client() as orc:
        locks = orc.locks(scope)
        lock = await _find(locks, name)
        action = f"release lock {output.clean(name)} of {output.clean(scope)}, held by {output.clean(lock.holder)}"
        await to_thread.run_sync(lambda: ask(action, yes=yes), abandon_on_cancel=True)
        if not await locks.take_away(lock):
            raise CommandAborted(f"lock {name!r} is not {lock.holder}'s any more; nothing was changed, look again")
        await orc.admin.give(RecordLock(lock=f"{scope} {name}"[:1000], holder=lock.holder), reason=reason)
    if common.output == "table":
        output.write(f"released; {output.clean(lock.holder)} loses it\n")
    else:
        output.show_record(common.output, _row(lock), key="name")
    return DONE


async def _find(locks: Locks, name: str) -> LockInfo:
    from orchestrator.core.errors import NotFound

    found = [lock for lock in await locks.list() if lock.name == name and lock.nonce]
    if not found:
        raise NotFound(f"nobody has a lock {name!r} of {locks.scope}; see `orc locks list {locks.scope}`")
    # A named lock may be called like an execution lock.
    return min(found, key=lambda lock: lock.task is not None)


def _row(lock: LockInfo) -> dict[str, Any]:
    row = asdict(lock)
    del row["at"], row["nonce"]
    return row
