"""`orc auth`: acl."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Annotated, Final

from orchestrator.cli.terminal import inputs, output
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import Commands, option, positional
from orchestrator.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.doctor.acl import AclRole, AclScope

commands = Commands(
    "auth",
    "orc auth acl --prefix my:prod:pool --passwords @passwords > acl.conf",
    "orc auth acl worker client",
)

_USER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_HASH: Final = re.compile(r"#([0-9a-f]{64})")


@commands.command(
    "acl",
    "orc auth acl --prefix my:prod:pool --passwords @passwords > acl.conf",
    "orc auth acl worker client=shop-client",
    "orc auth acl viewer --commands --passwords @- < passwords | redis-cli",
    "orc auth acl worker=mail-worker client=mail-client --pool mail",
)
def acl(
    *users: Annotated[str, positional("ROLE[=USER]")],
    as_commands: Annotated[bool, option("--commands")] = False,
    passwords: Annotated[str | None, option("--passwords", metavar="@FILE")] = None,
    vector_sets: Annotated[bool, option("--vector-sets")] = False,
    loader_only: Annotated[bool, option("--loader-only")] = False,
    common: Globals = DEFAULTS,
) -> None:
    """Print the users of Redis for the prefix of the settings: what each role may run, and which keys it may use.

    Does not connect. A user without a password cannot log in. With --pool the users reach that pool alone; sessions,
    memories and limits are shared by all pools of a prefix.

    Args:
        users: loader, supervisor, worker, pauser, client, operator or viewer, with the name of its user if that
            differs. Without roles: a part of redis.conf with all of them.
        as_commands: Print ACL SETUSER commands for redis-cli, in place of lines for redis.conf.
        passwords: File with a user and its password in each line, or # and the SHA-256 of the password; @- reads
            standard input. Only hashes are printed.
        vector_sets: Allow the commands of vector sets, which Redis 8.0 and newer knows.
        loader_only: Let only the role loader load scripts; `orc upgrade load` must run after each start of Redis.
    """
    from orchestrator.doctor.acl import ROLES, SERVER_USERS, AclScope, acl_file

    settings = common.settings()
    scope = AclScope(settings.prefix, common.pool, vector_sets=vector_sets, loader_only=loader_only)
    chosen = _chosen(users)
    hashes = {} if passwords is None else _read_hashes(passwords)
    named = {*chosen.values()} if users else {*chosen.values(), *SERVER_USERS}
    if unknown := sorted(hashes.keys() - named):
        raise InvalidInput(f"--passwords has {unknown[0]!r}, which is none of the users {', '.join(sorted(named))}")
    if not users and not as_commands and common.output == "table":
        output.write(acl_file(scope, hashes))
        return
    roles = {role.name: role for role in ROLES}
    _show([(roles[name], user) for name, user in chosen.items()], scope, hashes, as_commands, common)


def _show(
    users: Sequence[tuple[AclRole, str]],
    scope: AclScope,
    hashes: Mapping[str, str],
    as_commands: bool,  # noqa: FBT001
    common: Globals,
) -> None:
    from orchestrator.doctor.acl import acl_user

    lines = []
    for role, user in users:
        name, *rules = acl_user(role, scope, name=user, password=hashes.get(user, ""))
        words = ["ACL", "SETUSER", name, "reset", *rules] if as_commands else ["user", name, *rules]
        lines.append({"user": name, "role": role.name, "line": " ".join(words)})
    if common.output == "table":
        output.write("".join(f"{line['line']}\n" for line in lines))
    else:
        output.show_list(common.output, lines, (), key="user")


def _chosen(users: Sequence[str]) -> dict[str, str]:
    """Return the names of users by role."""
    from orchestrator.doctor.acl import ROLES

    known = [role.name for role in ROLES]
    chosen: dict[str, str] = {}
    for given in users or known:
        role, equals, user = given.partition("=")
        if role not in known:
            raise InvalidInput(f"{role!r} is no role; there are {', '.join(known)}")
        if equals and not _USER.fullmatch(user):
            raise InvalidInput(f"{user!r} is no name of a user; write letters, digits, '.', '_' and '-'")
        chosen[role] = user or role
    if len({*chosen.values()}) < len(chosen):
        raise InvalidInput("two roles have the same user; name a user for each")
    return chosen


def _read_hashes(given: str) -> dict[str, str]:
    """Read the hashes of passwords by user."""
    if not given.startswith("@"):
        raise InvalidInput("--passwords takes @FILE or @-; all users of the machine can read the options of a command")
    hashes: dict[str, str] = {}
    for number, line in enumerate(inputs.body(given).splitlines(), 1):
        user, _, password = line.partition(" ")
        if not line.strip() or line.startswith("#"):
            continue
        if not _USER.fullmatch(user) or not password.strip():
            raise InvalidInput(f"line {number} of {given} has no user and password; write both, with a blank between")
        stored = _HASH.fullmatch(password.strip())
        hashes[user] = stored[1] if stored else hashlib.sha256(password.encode()).hexdigest()
    return hashes
