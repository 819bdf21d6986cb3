"""`orc locks`: list, release."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.confirm import ask
from orchestrator.cli.terminal.options import DEFAULTS, Globals, Reason, Yes
from orchestrator.cli.terminal.parsing import Commands, positional

if TYPE_CHECKING:
    from orchestrator.locks.model import LockInfo

commands = Commands(
    "locks",
    "orc locks list",
    "orc locks list session:101",
)

Scope = Annotated[str, positional("SCOPE", help="session:ID, agent:NAME, user:ID, domain:NAME, global or pool.")]
COLUMNS: Final = ("name", "holder", "fence", "left_ms", "waiting")


@commands.command("list", "orc locks list", "orc locks list session:101", "orc locks list agent:editor -o json")
async def list_(scope: Scope = "pool", /, *, common: Globals = DEFAULTS) -> None:
    """List the held locks of one scope, with holder, remaining time and number of waiters.

    `exec` is the execution lock of a scope; `exec:TASK` is the write lock of an attempt. Holders renew
    their locks.
    """
    async with common.client() as orc:
        rows = [_row(lock) for lock in await orc.locks(scope).list()]
    output.show_list(common.output, rows, COLUMNS, key="name", empty=f"no lock of {output.clean(scope)} is held")


@commands.command(
    "release",
    "orc locks release session:101 report",
    'orc locks release pool nightly --reason "its holder hangs" --yes',
)
def release(
    scope: Scope,
    name: Annotated[str, positional("NAME", help="Name of the lock.")],
    /,
    *,
    reason: Reason = "",
    yes: Yes = False,
    common: Globals = DEFAULTS,
) -> int:
    """Take a lock from its holder. Asks for confirmation.

    The holder's work is cancelled at its next renewal. Until then it may overlap with the next holder, so writes must
    check the fence.

    Exit code: 0 released, 3 not held, 4 the holder has changed, or not confirmed.
    """
    # Not a coroutine, so that Ctrl-C ends the question.
    import anyio

    return anyio.run(_release, scope, name, reason, yes, common)


async def _release(scope: str, name: str, reason: str, yes: bool, common: Globals) -> int:  # noqa: FBT001
    from anyio import to_thread

    from orchestrator.cli.terminal.failures import DONE, CommandAborted, say_error
    from orchestrator.client.lock_actions import release_lock
    from orchestrator.views.locks import find_lock

    async with common.client() as orc:
        locks = orc.locks(scope)
        lock = await find_lock(locks, name)
        action = f"release lock {output.clean(name)} of {output.clean(scope)}, held by {output.clean(lock.holder)}"
        await to_thread.run_sync(lambda: ask(action, yes=yes), abandon_on_cancel=True)
        taken = await release_lock(orc.services, locks, lock, reason=reason)
        if not taken.released:
            raise CommandAborted(f"lock {name!r} has another holder than {lock.holder} now; nothing was changed")
    if taken.unrecorded:
        say_error(f"the lock was released, which was not recorded: {taken.unrecorded}")
    if common.output == "table":
        output.write(f"released lock {output.clean(name)} of {output.clean(lock.holder)}\n")
    else:
        output.show_record(common.output, _row(lock), key="name")
    return DONE


def _row(lock: LockInfo) -> dict[str, Any]:
    row = asdict(lock)
    del row["at"], row["nonce"]
    return row
