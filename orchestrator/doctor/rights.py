"""Looks at what the user of our URL may do: every command that we use, on the keys of the pool, without running one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.core.errors import ServerRefused, StoreError
from orchestrator.doctor.commands import acl_name, used_commands
from orchestrator.doctor.findings import ok, problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.doctor.findings import Finding
    from orchestrator.doctor.subject import Subject
    from orchestrator.store.store import Store


async def check_rights(subject: Subject) -> list[Finding]:
    """Which commands and keys the user may not use."""
    store = subject.store
    commands = used_commands(store.keys)
    user = await _who_we_are(store)
    verdicts = await _dry_run(store, user, commands) if user else None
    if verdicts is None:
        verdicts = await _queue_and_discard(store, commands)
    who = f"user {user!r}" if user else "the user of the URL"
    if verdicts is None:
        return [ok("rights", f"unknown: {who} may use neither ACL DRYRUN nor MULTI")]
    forbidden = [acl_name(command) for command, verdict in zip(commands, verdicts, strict=True) if "to run" in verdict]
    locked = any("key" in verdict and "to run" not in verdict for verdict in verdicts)
    if not forbidden and not locked:
        return [ok("rights", f"{who} may use all {len(commands)} commands, on the keys of the pool")]
    # The root itself is the key that scripts declare, so a pattern that asks for a colon behind it is too narrow.
    pattern = f"~{store.keys.prefix}:*"
    found = [f"may not run {', '.join(forbidden)}"] if forbidden else []
    found += [f"may not use keys like {store.keys.root}"] if locked else []
    rules = [*(f"+{name}" for name in forbidden), *([pattern] if locked else [])]
    fix = f"`redis-cli ACL SETUSER {user or 'USER'} {' '.join(rules)}`"
    return [problem("rights", f"{who} {' and '.join(found)}", fix)]


async def _who_we_are(store: Store) -> str | None:
    try:
        name: bytes = await store.execute("ACL", "WHOAMI")
    except ServerRefused:
        return None
    return name.decode(errors="replace")


async def _dry_run(store: Store, user: str, commands: Sequence[Sequence[str]]) -> list[str] | None:
    """What the server would answer, as texts; None: asking is not allowed."""
    replies = await store.pipeline([("ACL", "DRYRUN", user, *command) for command in commands])
    if isinstance(replies[0], StoreError):
        return None
    return [_denial(reply) for reply in replies]


async def _queue_and_discard(store: Store, commands: Sequence[Sequence[str]]) -> list[str] | None:
    """The same for a user who may not ask: what goes into a transaction is checked, and the transaction is dropped."""
    # First without anything in it: were it refused below, the commands would run.
    if any(isinstance(reply, StoreError) for reply in await store.pipeline([("MULTI",), ("DISCARD",)])):
        return None
    _, *replies, _ = await store.pipeline([("MULTI",), *commands, ("DISCARD",)])
    return [_denial(reply) for reply in replies]


def _denial(reply: Any) -> str:
    """Why a command would be refused; empty when it would not, or when this version of Redis does not know it."""
    if isinstance(reply, StoreError):
        text = str(reply)
        return text if "NOPERM" in text else ""
    return "" if reply in {b"OK", b"QUEUED"} else reply.decode(errors="replace")
