"""The shipped `config/acl.conf` has the users that the generator makes. Run this file as a script to write it anew."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from orchestrator.doctor.acl import ROLES, acl_file, acl_rules
from orchestrator.store.key_kinds import POOL_KEYS, SCOPES
from orchestrator.store.keys import PoolKeys, ScopeKeys

ACL_FILE = Path(__file__).parents[2] / "config" / "acl.conf"
PREFIX = "shop:prod:acme"


def test_file_is_generated() -> None:
    """The file is what the generator writes."""
    assert ACL_FILE.read_text(encoding="utf-8") == acl_file(PREFIX), f"run: python {__file__}"


def test_clients_may_write_all_keys_but_those_of_commands() -> None:
    """A new kind of key is open to clients, unless operators alone change it; the patterns stay few."""
    (client,) = [role for role in ROLES if role.name == "client"]
    rules = [rule[1:] for rule in acl_rules(client, PREFIX) if rule.startswith("~")]
    root = PoolKeys(PREFIX, "mail").root
    closed = {kind.suffix for kind in POOL_KEYS if not any(_matches(f"{root}:{kind.suffix}", rule) for rule in rules)}
    assert closed == {"control", "desired", "desired:revisions"}
    assert any(_matches(root, rule) for rule in rules)
    shared = [ScopeKeys(PREFIX, scope, "a").key("x") for scope in SCOPES]
    assert [key for key in shared if not any(_matches(key, rule) for rule in rules)] == []
    assert len(rules) <= 12


def _matches(key: str, pattern: str) -> bool:
    return fnmatchcase(key, pattern.replace("[^", "[!"))


if __name__ == "__main__":
    ACL_FILE.write_text(acl_file(PREFIX), encoding="utf-8")
