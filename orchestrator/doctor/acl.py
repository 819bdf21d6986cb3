"""Generates the users of Redis: one per role, with the commands and keys that it needs.

Commands come from the table of the doctor, keys from the declarations of the store (`KeyKind.writers`). A rule contains
the hash of a password at most.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from orchestrator.doctor.commands import (
    CALLED,
    DURABILITY,
    HINTS,
    INSPECTION,
    LOCATING,
    LOGIN,
    READING,
    SENT,
    TRANSACTION,
    VECTORS,
    acl_name,
)
from orchestrator.store.key_kinds import POOL_KEYS, SCOPES, Writers
from orchestrator.store.keys import VECTOR_SET

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_TAKING: Final = frozenset({"XCLAIM", "XREADGROUP"})
"""Commands that take a task out of an inbox."""
_CONNECTION: Final = ("asking", "auth", "hello", "reset")
_LOADING: Final = (
    "client|id",
    "client|setname",
    "cluster|slots",
    "info",
    "ping",
    "role",
    "script|exists",
    "script|load",
)
"""Commands of `orc upgrade load`."""
_STREAM_DENIED: Final = (
    "xautoclaim", "xclaim", "xgroup|createconsumer", "xgroup|destroy", "xgroup|setid", "xreadgroup", "xsetid",
)  # fmt: skip
"""Commands of the category of streams that not every role may run."""
_ADDING: Final = ("xadd", "xgroup", "xread", "xtrim")
"""Commands of the category of streams, beside the denied ones, that removing an entry needs not."""


@dataclass(frozen=True, slots=True)
class AclRole:
    """A user of the access control list.

    Attributes:
        name: also the usual name of the user.
        meaning: which programs log in with it.
        writes: the keys that it may change; None: no key.
        takes_tasks: it may read inboxes as a worker.
        inspects: it runs `orc doctor`, `orc keys` and `orc upgrade`.
        loads_only: it loads scripts, and uses no key.
    """

    name: str
    meaning: str
    writes: Writers | None = None
    takes_tasks: bool = False
    inspects: bool = False
    loads_only: bool = False

    @property
    def reads_only(self) -> bool:
        """True if it reads keys, changes none, and cannot load scripts."""
        return self.writes is None and not self.loads_only


ROLES: Final = (
    AclRole("loader", "`orc upgrade load`, which loads the scripts of a version; it uses no key", loads_only=True),
    AclRole("supervisor", "`orc supervisor run`", Writers.SUPERVISORS, takes_tasks=True),
    AclRole(
        "worker", "`orc worker run` and `orchestrator.run`; it cannot give commands", Writers.WORKERS, takes_tasks=True
    ),
    AclRole(
        "pauser",
        "workers whose handlers pause agents or limits, which are commands",
        Writers.COMMANDERS,
        takes_tasks=True,
    ),
    AclRole(
        "client",
        "programs that submit tasks; they cannot give commands, take no task from a worker, and change nothing that "
        "workers and supervisors say of themselves",
        Writers.CLIENTS,
    ),
    AclRole("operator", "the `orc` command of people who stop, start and repair", Writers.SUPERVISORS, inspects=True),
    AclRole("viewer", "the `orc` command and dashboards that only read", inspects=True),
)


@dataclass(frozen=True, slots=True)
class AclScope:
    """The keys and commands that the users of one list may reach.

    Attributes:
        prefix: of the keys, as the setting `prefix`; it may be a pattern.
        pool: the one pool whose tasks they use; None: all pools of the prefix. Shared state of the prefix has no pool.
        vector_sets: add the commands of vector sets, which Redis knows since 8.0.
        loader_only: only the role `loader` may load scripts.
    """

    prefix: str
    pool: str | None = None
    vector_sets: bool = False
    loader_only: bool = False


def acl_rules(role: AclRole, scope: AclScope) -> list[str]:
    """Return the rules of a role, as `ACL SETUSER` takes them behind the name."""
    if role.loads_only:
        return ["resetkeys", "resetchannels", "-@all", *(f"+{name}" for name in allowed_commands(role))]
    rules = ["resetchannels", "-@all", *_key_rules(role, scope), *_channel_rules(scope), *_command_rules(role, scope)]
    if scope.vector_sets:
        rules += vector_rules(scope.prefix, reads_only=role.reads_only)
    return [*rules, *_selectors(role, scope)]


def acl_user(role: AclRole, scope: AclScope, *, name: str = "", password: str = "") -> list[str]:
    """Return the words behind `user` in redis.conf; the user cannot log in until the words contain a password.

    Args:
        role: the role.
        scope: what it may reach.
        name: of the user; default: that of the role.
        password: SHA-256 of the password, in hexadecimal.
    """
    return [name or role.name, "on", *([f"#{password}"] if password else []), *acl_rules(role, scope)]


def allowed_commands(role: AclRole, *, loads: bool = True) -> list[str]:
    """Return the names of the commands that a role needs, as ACL rules name them, in order.

    Args:
        role: the role.
        loads: it may load scripts, if it changes anything.
    """
    if role.loads_only:
        return sorted({*_LOADING, *_CONNECTION})
    templates = [
        *SENT,
        *CALLED,
        *TRANSACTION,
        *LOGIN,
        *DURABILITY,
        *LOCATING,
        *(INSPECTION if role.inspects else ()),
        *HINTS,
    ]
    words = [template.split(" ") for template in templates]
    names = {acl_name(command) for command in words if _may_run(role, command[0])}
    if role.reads_only:
        names -= {"script|load", "spublish", "wait", "waitaof"}
    if not role.takes_tasks:
        # It ends the blocking reads of any connection, those of workers too.
        names -= {"client|unblock"}
    if not loads:
        names -= {"script|load"}
    return sorted({*names, *_CONNECTION})


def vector_rules(prefix: str, *, reads_only: bool = False) -> list[str]:
    """Return the rules for vector sets. Redis 7 refuses a file that names their commands.

    A user who only reads needs all access to their keys: Redis takes each command of a vector set for a change.
    """
    names = [template.partition(" ")[0] for template in VECTORS]
    rules = sorted(f"+{name.lower()}" for name in names if not reads_only or name in READING)
    return [*rules, f"~{prefix}:*:{VECTOR_SET}"] if reads_only else rules


def role_of(user: str) -> AclRole | None:
    """Return the role of a user: its name is that of the role, or has it as a word (`acme-worker`)."""
    words = re.split(r"[^a-z]+", user.lower())
    return next((role for role in ROLES if role.name in words), None)


def lacks_only(role: AclRole, lacking: Collection[str]) -> bool:
    """Return whether a user of this role need not run these commands."""
    return not {*lacking} - {"script|load"} & {*allowed_commands(role)}


def _may_run(role: AclRole, command: str) -> bool:
    if command in _TAKING:
        return role.takes_tasks
    return not role.reads_only or command in READING or not _changes_keys(command)


def _changes_keys(command: str) -> bool:
    """Return whether a command of the table has a key that it may change."""
    named = {template.split(" ")[0] for template in (*SENT, *CALLED) if "KEY" in template.split(" ")}
    return command in named - READING


def _command_rules(role: AclRole, scope: AclScope) -> list[str]:
    names = allowed_commands(role, loads=not scope.loader_only)
    if role.reads_only:
        return [f"+{name}" for name in names]
    # Redis 7.0 refuses a whole file for the names of newer commands (XACKDEL, WAITAOF), but knows their categories.
    newer = ["+@connection", "-client", "-echo", "-select", "-@dangerous", "+@stream"]
    newer += [f"-{name}" for name in _STREAM_DENIED if name not in names]
    return [*newer, *(f"+{name}" for name in names if not name.startswith(("x", "wait")))]


# Scripts declare the root of a slot as their key, which ends with a brace. Each command in them is checked, too.


def _key_rules(role: AclRole, scope: AclScope) -> list[str]:
    pools = f"{scope.prefix}:{{pool:{scope.pool or '*'}}}"
    if role.reads_only:
        return [*(f"%R~{pattern}" for pattern in _everything(scope)), *(f"~{root}" for root in _roots(scope))]
    closed = {kind.suffix for kind in POOL_KEYS if role.writes is not None and kind.writers > role.writes}
    if not closed:
        return [f"~{pattern}" for pattern in _everything(scope)]
    # Redis tries one pattern after another for each command of a script: reads need the first one.
    return [
        *(f"%R~{pattern}" for pattern in _everything(scope)),
        *(f"~{pools}:{pattern}" for pattern in _open_patterns([kind.suffix for kind in POOL_KEYS], closed)),
        f"~{pools}",
        *(f"~{pattern}" for pattern in _shared(scope)),
    ]


def _selectors(role: AclRole, scope: AclScope) -> list[str]:
    """Return what a client may do with inboxes: remove a task that it cancels, and add none."""
    if role.writes != Writers.CLIENTS:
        return []
    denied = [f"-{name}" for name in (*_STREAM_DENIED, *_ADDING) if "|" not in name]
    return ["(" + " ".join(["+@stream", *denied, f"~{scope.prefix}:{{pool:{scope.pool or '*'}}}:inbox:*"]) + ")"]


def _channel_rules(scope: AclScope) -> list[str]:
    return [f"&{pattern}" for pattern in _everything(scope)]


def _everything(scope: AclScope) -> list[str]:
    """Return patterns of all keys that the users of the scope may read."""
    if scope.pool is None:
        return [f"{scope.prefix}:*"]
    return [f"{scope.prefix}:{{pool:{scope.pool}}}*", *_shared(scope)]


def _roots(scope: AclScope) -> list[str]:
    if scope.pool is None:
        return [f"{scope.prefix}:{{*}}"]
    return [f"{scope.prefix}:{{pool:{scope.pool}}}", *_shared(scope)]


def _shared(scope: AclScope) -> list[str]:
    """Return patterns of shared state and locks: sessions, agents, limits, boards, simulations, tenants, people."""
    if scope.pool is None:
        return [f"{scope.prefix}:{{[^p]*"]
    open_ = _open_patterns([f"{kind}:ID" for kind in SCOPES], {"locks:ID", "pool:ID"})
    return [f"{scope.prefix}:{{locks:{scope.pool}}}*", *(f"{scope.prefix}:{{{pattern}" for pattern in open_)]


def _open_patterns(suffixes: Iterable[str], closed: Collection[str]) -> list[str]:
    """Return few patterns that match the suffixes except the closed ones, in the order of the suffixes.

    Each is the shortest beginning that no closed suffix has. Beginnings that differ in the last letter share one.
    """
    beginnings = dict.fromkeys(_beginning(suffix, closed) for suffix in suffixes if suffix not in closed)
    plain = [one for one in beginnings if one.endswith("*") and "*" not in one[:-1]]
    classes = {stem: sorted({one[-2] for one in plain if one[:-2] == stem}) for stem in {one[:-2] for one in plain}}
    patterns = {
        one: f"{one[:-2]}[{''.join(letters)}]*" if one in plain and len(letters := classes[one[:-2]]) > 1 else one
        for one in beginnings
    }
    return list(dict.fromkeys(patterns.values()))


def _beginning(suffix: str, closed: Collection[str]) -> str:
    stem, is_named = _stem(suffix)
    for length in range(1, len(stem) + 1):
        beginning = stem[:length]
        if not any(_overlaps(beginning, other) for other in closed):
            return f"{beginning}*" if is_named or length < len(stem) else stem
    globs = {"MINUTE": "[0-9]*"}
    return ":".join(globs.get(part, "*") if part.isupper() else part for part in suffix.split(":"))


def _overlaps(beginning: str, closed: str) -> bool:
    """Return whether a key of a closed kind may start with the beginning."""
    stem, is_named = _stem(closed)
    return stem.startswith(beginning) or (is_named and beginning.startswith(stem))


def _stem(suffix: str) -> tuple[str, bool]:
    """Return the part of a suffix before the first name, and whether it has a name: `children:ID` has `children:`."""
    parts = suffix.split(":")
    fixed = list(takewhile(lambda part: not part.isupper(), parts))
    is_named = len(fixed) < len(parts)
    return ":".join(fixed) + (":" if is_named else ""), is_named


HEADING: Final = """\
# Users of Redis for redis-orchestrator, one per role, as `orc auth acl` prints them. See docs/guides/redis.md.
#
# 1. `orc auth acl --prefix my:prod:pool --passwords @passwords > acl.conf` writes this file for your prefix, with the
#    hash of each password; `passwords` has a line with user and password for each. A user without a password cannot
#    log in. On Redis 8.0 and newer add --vector-sets: Redis 7 does not know these commands, and without them memories
#    compare all their vectors.
# 2. Include the file in redis.conf (include /etc/redis/acl.conf) and restart Redis. It cannot be the `aclfile`, which
#    has no comments. While Redis runs, `orc auth acl --commands` prints what changes it; change the file, too.
# 3. Write the URL of each program with its user: redis://worker:PASSWORD@host:6379/0

# Programs that name no user get this one. It can do nothing.
user default off resetchannels -@all

# You, to administer the server. No program of the orchestrator needs it.
user admin on{admin} ~* &* +@all

# A replica of this server, which sends `masteruser replica` and `masterauth PASSWORD` (docs/guides/redis.md).
user replica on{replica} resetchannels -@all +psync +replconf +ping

# Sentinels of this server, which send `sentinel auth-user` and `sentinel auth-pass`.
user sentinel on{sentinel} &* -@all {commands}
"""
_SENTINEL: Final = (
    "client|kill", "client|setname", "config|rewrite", "exec", "info", "multi", "ping", "publish", "role",
    "script|kill", "slaveof", "subscribe",
)  # fmt: skip
"""Commands that sentinels send, as the documentation of Redis lists them."""
SERVER_USERS: Final = ("admin", "replica", "sentinel")
"""Users of the heading that may have a password."""


def acl_file(scope: AclScope, passwords: Mapping[str, str] | None = None) -> str:
    """Return a part of redis.conf with all roles; no user without a password can log in.

    Args:
        scope: what the users may reach.
        passwords: SHA-256 of passwords by user.
    """
    hashes = passwords or {}
    server = {user: f" #{hashes[user]}" if user in hashes else "" for user in SERVER_USERS}
    parts = [HEADING.format(**server, commands=" ".join(f"+{name}" for name in _SENTINEL))]
    for role in ROLES:
        words = acl_user(role, scope, password=hashes.get(role.name, ""))
        parts.append(f"# {role.name}: {role.meaning}.\nuser {' '.join(words)}\n")
    return "\n".join(parts)
