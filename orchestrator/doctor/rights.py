"""Checks that the user of the URL may run every command on the keys of the pool, without running any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.core.errors import ServerRefused, StoreError
from orchestrator.core.reading import read_text
from orchestrator.doctor.acl import lacks_only, role_of
from orchestrator.doctor.commands import HINTS, acl_name, used_commands
from orchestrator.doctor.findings import ok, problem, warning

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orchestrator.doctor.context import CheckContext
    from orchestrator.doctor.findings import DoctorFinding
    from orchestrator.store.keys import PoolKeys
    from orchestrator.store.store import Store


async def check_rights(context: CheckContext) -> list[DoctorFinding]:
    """Report commands and keys that the user may not use."""
    store = context.store
    commands = used_commands(store.keys, durability=context.settings.queue.durability)
    user, verdicts = await ask_rights(store, commands)
    who = f"user {user!r}" if user else "the user of the URL"
    if verdicts is None:
        return [ok("rights", f"unknown: {who} may use neither ACL DRYRUN nor MULTI")]
    lacking = {acl_name(command) for command, verdict in zip(commands, verdicts, strict=True) if verdict}
    role = role_of(user) if user and lacking else None
    if role is not None and lacks_only(role, lacking):
        return [ok("rights", f"{who} has the rights of its role: {role.meaning}")]
    needed, optional = list(zip(commands, verdicts, strict=True))[: -len(HINTS)], verdicts[-len(HINTS) :]
    if any(verdict for _, verdict in needed):
        return [_missing_rights(who, user, needed, store.keys)]
    if any(optional):
        found = f"{who} may not publish or subscribe to hints; followers of a task receive its output later"
        names = " ".join(f"+{acl_name(hint.split(' '))}" for hint in HINTS)
        fix = f"`redis-cli ACL SETUSER {user or 'USER'} {names} &{store.keys.prefix}:*`"
        return [warning("rights", found, fix)]
    return [ok("rights", f"{who} may use all {len(commands)} commands, on the keys of the pool")]


async def ask_rights(store: Store, commands: Sequence[Sequence[str]]) -> tuple[str | None, list[str] | None]:
    """Return the user, if known, and the denial of each command, empty for an allowed one; None if it may not ask."""
    user = await _current_user(store)
    verdicts = await _dry_run(store, user, commands) if user else None
    return user, await _queue_and_discard(store, commands) if verdicts is None else verdicts


def _missing_rights(
    who: str, user: str | None, asked: Iterable[tuple[Sequence[str], str]], keys: PoolKeys
) -> DoctorFinding:
    verdicts = list(asked)
    forbidden = sorted({acl_name(command) for command, verdict in verdicts if "to run" in verdict})
    locked = any(verdict and "to run" not in verdict for _, verdict in verdicts)
    found = [f"may not run {', '.join(forbidden)}"] if forbidden else []
    found += [f"may not use keys like {keys.root}"] if locked else []
    # Scripts declare the root itself as their key, so a pattern that ends in a colon is too narrow.
    rules = [*(f"+{name}" for name in forbidden), *([f"~{keys.prefix}:*"] if locked else [])]
    return problem(
        "rights", f"{who} {' and '.join(found)}", f"`redis-cli ACL SETUSER {user or 'USER'} {' '.join(rules)}`"
    )


async def _current_user(store: Store) -> str | None:
    try:
        name: bytes = await store.execute("ACL", "WHOAMI")
    except ServerRefused:
        return None
    return read_text(name)


async def _dry_run(store: Store, user: str, commands: Sequence[Sequence[str]]) -> list[str] | None:
    """Return the denials of ACL DRYRUN, or None if the user may not run it."""
    replies = await store.pipeline([("ACL", "DRYRUN", user, *command) for command in commands])
    if isinstance(replies[0], StoreError):
        return None
    return [_denial(reply) for reply in replies]


async def _queue_and_discard(store: Store, commands: Sequence[Sequence[str]]) -> list[str] | None:
    """Return the denials of queueing commands in a discarded transaction, or None if MULTI is not allowed."""
    # Try an empty transaction first, because commands would run if MULTI were refused.
    if any(isinstance(reply, StoreError) for reply in await store.pipeline([("MULTI",), ("DISCARD",)])):
        return None
    _, *replies, _ = await store.pipeline([("MULTI",), *commands, ("DISCARD",)])
    return [_denial(reply) for reply in replies]


def _denial(reply: Any) -> str:
    """Return the reason of a denial; empty for an allowed command, and for one that this Redis does not know."""
    if isinstance(reply, StoreError):
        text = str(reply)
        return text if "NOPERM" in text else ""
    return "" if reply in {b"OK", b"QUEUED"} else read_text(reply)
