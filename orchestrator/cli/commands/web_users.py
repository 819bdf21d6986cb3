"""`orc web user` and `orc web token`: who may use the dashboard."""

from __future__ import annotations

import getpass
import sys
import warnings
from typing import Annotated, Literal, TypeAlias

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.confirm import ask
from orchestrator.cli.terminal.options import DEFAULTS, Globals, Yes
from orchestrator.cli.terminal.output import is_terminal
from orchestrator.cli.terminal.parsing import Commands, option, positional
from orchestrator.core.errors import InvalidInput

Agents: TypeAlias = Annotated[tuple[str, ...], option("--agent", metavar="AGENT", many=True)]
Queues: TypeAlias = Annotated[tuple[str, ...], option("--queue", metavar="QUEUE", many=True)]
Sessions: TypeAlias = Annotated[tuple[str, ...], option("--session", metavar="SESSION", many=True)]
RoleWord: TypeAlias = Literal["viewer", "operator", "admin"]

users = Commands("user", "orc web user add ada --role admin", "orc web user list", "orc web user remove ada")
tokens = Commands(
    "token", "orc web token make ci --role operator --days 90", "orc web token list", "orc web token revoke ci"
)

UserName: TypeAlias = Annotated[str, positional("NAME", help="Name of the user.")]
TokenName: TypeAlias = Annotated[str, positional("NAME", help="Name of the token.")]


@users.command("add", "orc web user add ada --role operator", "pass show orc | orc web user add ada")
async def add(
    name: UserName,
    /,
    *,
    role: Annotated[RoleWord, option("--role")] = "viewer",
    agents: Agents = (),
    queues: Queues = (),
    sessions: Sessions = (),
    common: Globals = DEFAULTS,
) -> None:
    """Add a user, or give one a new role and password, which ends its sessions.

    The password is asked for, or read from standard input.

    Args:
        role: viewer reads; operator pauses, stops, cancels and retries; admin also deletes [viewer].
        agents: Narrow it to this agent; may be repeated.
        queues: Narrow it to this queue, as skill:review; may be repeated.
        sessions: Narrow it to this session; may be repeated.
    """
    from orchestrator.accounts.model import AccountScope, Role

    scope = AccountScope(frozenset(agents), frozenset(queues), frozenset(sessions))
    async with common.services():
        pass  # a pool that is away is told before the password is typed
    password = _read_password()
    async with common.services() as services:
        await services.accounts.put_user(name, Role.of_word(role), password, scope=scope)
    output.say(f"user {name} may log in as {role}")


@users.command("list", "orc web user list", "orc web user list -o json")
async def list_users(*, common: Globals = DEFAULTS) -> None:
    """List the users of the dashboard."""
    async with common.services() as services:
        found = await services.accounts.users()
    rows = [
        {"name": user.name, "role": user.role.word, "sees": user.scope.words, "since": user.made_at} for user in found
    ]
    output.show_list(
        common.output, rows, ("name", "role", "sees", "since"), key="name", empty="no users; one-time links log in"
    )


@users.command("remove", "orc web user remove ada", alias="rm")
async def remove(name: UserName, /, *, yes: Yes = False, common: Globals = DEFAULTS) -> None:
    """Remove a user, which ends its sessions."""
    ask(f"remove user {name}", yes=yes)
    async with common.services() as services:
        await services.accounts.remove_user(name)
    output.say(f"user {name} is removed")


@tokens.command("make", "orc web token make ci --role operator --days 90")
async def make(
    name: TokenName,
    /,
    *,
    role: Annotated[RoleWord, option("--role")] = "viewer",
    days: Annotated[float, option("--days", metavar="N")] = 90.0,
    agents: Agents = (),
    queues: Queues = (),
    sessions: Sessions = (),
    common: Globals = DEFAULTS,
) -> None:
    """Make a bearer token for the API and print it; it cannot be shown again.

    Args:
        role: viewer, operator or admin [viewer].
        days: Days until it ends [90].
        agents: Narrow it to this agent; may be repeated.
        queues: Narrow it to this queue, as skill:review; may be repeated.
        sessions: Narrow it to this session; may be repeated.
    """
    from orchestrator.accounts.model import AccountScope, Role

    scope = AccountScope(frozenset(agents), frozenset(queues), frozenset(sessions))
    async with common.services() as services:
        token = await services.accounts.make_token(name, Role.of_word(role), days=days, scope=scope)
    output.write(f"{token}\n")


@tokens.command("list", "orc web token list", "orc web token list -o json")
async def list_tokens(*, common: Globals = DEFAULTS) -> None:
    """List the tokens, without their secrets."""
    async with common.services() as services:
        found = await services.accounts.tokens()
    rows = [
        {
            "name": token.name,
            "hash": short,
            "role": token.role.word,
            "sees": token.scope.words,
            "since": token.made_at,
            "until": token.ends_at,
        }
        for short, token in found
    ]
    columns = ("name", "hash", "role", "sees", "since", "until")
    output.show_list(common.output, rows, columns, key="name", empty="no tokens")


@tokens.command("revoke", "orc web token revoke ci")
async def revoke(name: TokenName, /, *, common: Globals = DEFAULTS) -> None:
    """Revoke all tokens of a name."""
    async with common.services() as services:
        count = await services.accounts.revoke(name)
    output.say(f"{count} token{'s' * (count != 1)} of {name} revoked")


def _read_password() -> str:
    if not is_terminal(sys.stdin):
        return sys.stdin.readline().rstrip("\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error", getpass.GetPassWarning)
        try:
            password, again = getpass.getpass("password: "), getpass.getpass("again: ")
        except getpass.GetPassWarning:
            raise InvalidInput("this terminal cannot hide a password; send it to the standard input") from None
    if again != password:
        raise InvalidInput("the two passwords differ; nothing was changed")
    return password
