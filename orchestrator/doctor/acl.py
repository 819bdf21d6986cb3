"""Generates the users of Redis: one per role, with the commands and keys that it needs.

Commands come from the table of the doctor, keys from the declarations of the store. No rule contains a password.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from orchestrator.store.key_kinds import POOL_KEYS
from orchestrator.store.keys import VECTOR_SET

if TYPE_CHECKING:
    from collections.abc import Collection

_TAKING: Final = frozenset({"XCLAIM", "XREADGROUP"})
"""Commands that take a task out of an inbox."""
_COMMANDS: Final = frozenset({"control", "desired", "desired:revisions"})
"""Keys that only commands of operators change. Clients read them; workers and supervisors restore what Redis lost."""
_CONNECTION: Final = ("asking", "auth", "hello", "reset")
_STREAM_DENIED: Final = (
    "xautoclaim", "xclaim", "xgroup|createconsumer", "xgroup|destroy", "xgroup|setid", "xreadgroup", "xsetid",
)  # fmt: skip
"""Commands of the category of streams that not every role may run."""


@dataclass(frozen=True, slots=True)
class AclRole:
    """A user of the access control list.

    Attributes:
        name: also the name of the user.
        meaning: which programs log in with it.
        takes_tasks: it may read inboxes as a worker.
        commands_agents: it may change what only operators change.
        reads_only: it changes nothing, and cannot load scripts.
        inspects: it runs `orc doctor`, `orc keys` and `orc upgrade`.
    """

    name: str
    meaning: str
    takes_tasks: bool = False
    commands_agents: bool = False
    reads_only: bool = False
    inspects: bool = False


ROLES: Final = (
    AclRole("supervisor", "`orc supervisor run`", takes_tasks=True, commands_agents=True),
    AclRole("worker", "`orc worker run` and `orchestrator.run`", takes_tasks=True, commands_agents=True),
    AclRole("client", "programs that submit tasks; they cannot give commands, and take no task from a worker"),
    AclRole("operator", "the `orc` command of people who stop, start and repair", commands_agents=True, inspects=True),
    AclRole("viewer", "the `orc` command and dashboards that only read", reads_only=True, inspects=True),
)


def acl_rules(role: AclRole, prefix: str) -> list[str]:
    """Return the rules of a role, as `ACL SETUSER` takes them behind the name.

    Args:
        role: the role.
        prefix: of the keys, as the setting `prefix`; it may be a pattern.
    """
    return ["resetchannels", "-@all", *_key_rules(role, prefix), f"&{prefix}:*", *_command_rules(role)]


def acl_line(role: AclRole, prefix: str) -> str:
    """Return the line of a role in redis.conf; the user cannot log in until the line has a password."""
    return " ".join(["user", role.name, "on", *acl_rules(role, prefix)])


def allowed_commands(role: AclRole) -> list[str]:
    """Return the names of the commands that a role needs, as ACL rules name them, in order."""
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
    return sorted({*names, *_CONNECTION})


def vector_rules(prefix: str, *, reads_only: bool = False) -> list[str]:
    """Return the rules for vector sets. Redis 7 refuses a file that names their commands, so that no role has them.

    A user who only reads needs all access to their keys: Redis takes each command of a vector set for a change.
    """
    names = [template.partition(" ")[0] for template in VECTORS]
    rules = sorted(f"+{name.lower()}" for name in names if not reads_only or name in READING)
    return [*rules, f"~{prefix}:*:{VECTOR_SET}"] if reads_only else rules


def lacks_only(role: AclRole, lacking: Collection[str]) -> bool:
    """Return whether a user of this role need not run these commands."""
    return not {*lacking} & {*allowed_commands(role)}


def _may_run(role: AclRole, command: str) -> bool:
    if command in _TAKING:
        return role.takes_tasks
    return not role.reads_only or command in READING or not _changes_keys(command)


def _changes_keys(command: str) -> bool:
    """Return whether a command of the table has a key that it may change."""
    named = {template.split(" ")[0] for template in (*SENT, *CALLED) if "KEY" in template.split(" ")}
    return command in named - READING


def _command_rules(role: AclRole) -> list[str]:
    names = allowed_commands(role)
    if role.reads_only:
        return [f"+{name}" for name in names]
    # Redis 7.0 refuses a whole file for the names of newer commands (XACKDEL, WAITAOF), but knows their categories.
    newer = ["+@connection", "-client", "-echo", "-select", "-@dangerous", "+@stream"]
    newer += [f"-{name}" for name in _STREAM_DENIED if name not in names]
    return [*newer, *(f"+{name}" for name in names if not name.startswith(("x", "wait")))]


def _key_rules(role: AclRole, prefix: str) -> list[str]:
    # Scripts declare the root of a slot as their key, which ends with a brace. Each command in them is checked, too.
    root = f"{prefix}:{{*}}"
    if role.reads_only:
        return [f"%R~{prefix}:*", f"~{root}"]
    if role.commands_agents:
        return [f"~{prefix}:*"]
    pool = f"{prefix}:{{pool:*}}:"
    # One pattern for all scopes: sessions, agents, locks, limits, boards, simulations, tenants, people.
    scopes = f"~{prefix}:{{[^p]*"
    return [f"~{root}", *(f"~{pool}{pattern}" for pattern in _patterns_without(_COMMANDS)), scopes, f"%R~{prefix}:*"]


def _patterns_without(protected: frozenset[str]) -> list[str]:
    """Return few patterns that match all keys of a pool except the protected ones.

    Each command of a script is matched with the patterns one after another, so that many would cost time. Kinds whose
    first letter no protected kind has share one pattern.
    """
    letters = sorted({suffix[0] for suffix in protected})
    shared = f"[^{''.join(letters)}]*"
    rest = [kind.suffix for kind in POOL_KEYS if kind.suffix[0] in letters and kind.suffix not in protected]
    patterns = {_pattern_of(suffix) for suffix in rest}
    covered = {one for one in patterns for wide in patterns - {one} if wide[-1] == "*" and one.startswith(wide[:-1])}
    return [shared, *sorted(patterns - covered)]


def _pattern_of(suffix: str) -> str:
    """Replace the parts of a suffix that stand for names: `children:ID` becomes `children:*`."""
    parts = suffix.split(":")
    named = [part.isupper() for part in parts]
    if not any(named):
        return suffix
    return ":".join([*parts[: named.index(True)], "*"])


_SETS: Final = " ".join(vector_rules("shop:prod:acme"))
_SETS_READ: Final = " ".join(vector_rules("shop:prod:acme", reads_only=True))
HEADING: Final = f"""\
# Users of Redis for redis-orchestrator, one per role. docs/guides/redis.md explains them. Written by
# `python tests/contract/test_acl_file.py`.
#
# 1. Replace shop:prod:acme by your prefix.
# 2. Give each user a password: write its SHA-256 behind the word `on`, as #3f0a..., which this prints:
#        printf %s "$PASSWORD" | sha256sum
#    A user without a password cannot log in.
# 3. Include this file in redis.conf (include /etc/redis/acl.conf) and restart Redis. It cannot be the `aclfile`, which
#    has no comments. While Redis runs, ACL SETUSER makes a change; make it in this file, too.
# 4. On Redis 8.0 and newer, allow the commands of vector sets, which Redis 7 does not know. Without them memories
#    compare all their vectors:
#        sed -i -E '/^user (supervisor|worker|client|operator) /s/$/ {_SETS}/' acl.conf
#        sed -i '/^user viewer /s/$/ {_SETS_READ}/' acl.conf
# 5. Write the URL of each program with its user: redis://worker:PASSWORD@host:6379/0

# Programs that name no user get this one. It can do nothing.
user default off resetchannels -@all

# You, to administer the server. No program of the orchestrator needs it.
user admin on ~* &* +@all

# A replica of this server, which sends `masteruser replica` and `masterauth PASSWORD` (docs/guides/redis.md).
user replica on resetchannels -@all +psync +replconf +ping
"""


def acl_file(prefix: str) -> str:
    """Return a part of redis.conf with all roles. It has no passwords, and no user can log in before one is set."""
    parts = [HEADING.replace("shop:prod:acme", prefix)]
    parts += [f"# {role.name}: {role.meaning}.\n{acl_line(role, prefix)}\n" for role in ROLES]
    return "\n".join(parts)
