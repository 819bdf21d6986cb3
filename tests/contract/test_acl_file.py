"""The shipped `config/acl.conf` has the users that the generator makes. Run this file as a script to write it anew."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import pytest

from orchestrator.doctor.acl import ROLES, AclRole, AclScope, acl_file, acl_rules, allowed_commands, role_of
from orchestrator.store.key_kinds import POOL_KEYS, SCOPES, KeyKind, Writers
from orchestrator.store.keys import PoolKeys, ScopeKeys

ACL_FILE: Final = Path(__file__).parents[2] / "config" / "acl.conf"
PREFIX: Final = "shop:prod:acme"
MOST_PATTERNS: Final = 23


def test_file_is_generated() -> None:
    """The file is what the generator writes."""
    assert ACL_FILE.read_text(encoding="utf-8") == acl_file(AclScope(PREFIX)), f"run: python {__file__}"


@pytest.mark.parametrize("pool", [None, "mail"])
@pytest.mark.parametrize("role", ROLES, ids=[role.name for role in ROLES])
def test_each_role_writes_the_keys_of_its_level(role: AclRole, pool: str | None) -> None:
    """A role may change the kinds of keys that the table gives to it and no others; the patterns stay few."""
    rules = acl_rules(role, AclScope(PREFIX, pool))
    written = [rule[1:] for rule in rules if rule.startswith("~")]
    for kind in POOL_KEYS:
        key = f"{PREFIX}:{{pool:mail}}:{_example(kind)}"
        may = role.writes is not None and kind.writers <= role.writes
        # A viewer has patterns of roots, which are no keys.
        if not role.reads_only or pool is None:
            matched = any(_matches(key, pattern) for pattern in written if not pattern.endswith("{*}"))
            assert matched == may, kind.suffix
        if pool is not None:
            assert not any(_matches(key.replace("mail", "mailbox"), pattern) for pattern in written), kind.suffix
    shared = [ScopeKeys(PREFIX, scope, "mail" if scope == "locks" else "a").key("x") for scope in SCOPES]
    if role.writes is not None:
        assert [key for key in shared if not any(_matches(key, rule) for rule in written)] == []
        assert any(_matches(PoolKeys(PREFIX, "mail").root, rule) for rule in written)
    assert len(written) <= MOST_PATTERNS


def test_keys_that_decide_over_stops_and_programs() -> None:
    """Clients and workers write nothing that hides a command, makes it look like a repeat, or shuts programs out."""
    deciding = {"control", "control:refused", "desired", "desired:revisions", "nonce:CMD", "leader", "format"}
    found = {kind.suffix: kind.writers for kind in POOL_KEYS if kind.suffix in deciding}
    assert set(found) == deciding
    assert [suffix for suffix, writers in found.items() if writers < Writers.COMMANDERS] == []
    assert found["format"] == found["leader"] == Writers.SUPERVISORS


def test_only_who_takes_tasks_ends_blocking_reads() -> None:
    """CLIENT UNBLOCK ends the read of any connection, so that others could keep workers from waiting."""
    found = {role.name for role in ROLES if "client|unblock" in allowed_commands(role)}
    assert found == {role.name for role in ROLES if role.takes_tasks}


def test_roles_of_users() -> None:
    """The doctor knows a user by the name of its role, or by a word of its name."""
    users = ("worker", "shop-client", "eve_viewer", "eve", "workers")
    found = [role_of(user) for user in users]
    assert [role and role.name for role in found] == ["worker", "client", "viewer", None, None]


def _example(kind: KeyKind) -> str:
    """Return the suffix of a key of a kind."""
    return re.sub(r"\b[A-Z]+\b", "x1", kind.suffix.replace("MINUTE", "29924730"))


def _matches(key: str, pattern: str) -> bool:
    return fnmatchcase(key, pattern.replace("[^", "[!"))


if __name__ == "__main__":
    ACL_FILE.write_text(acl_file(AclScope(PREFIX)), encoding="utf-8")
