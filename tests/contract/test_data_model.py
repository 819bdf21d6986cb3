"""The table of keys, and the page that maps names of other grammars to it. Fields: tests/lua/test_records.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.core.errors import InvalidInput
from orchestrator.store.keys import POOL_KEYS, SCOPE_KEYS, SCOPES, Backup, PoolKeys, ScopeKeys, is_permanent

PAGE = (Path(__file__).parents[2] / "docs/internals/data-model.md").read_text(encoding="utf-8")


def test_permanent() -> None:
    """`is_permanent` answers for a key with a real name as the table does for its kind."""
    for kind in POOL_KEYS:
        parts = [part if not part.isupper() or part == "TOTAL" else "some:name" for part in kind.suffix.split(":")]
        assert is_permanent(f"{PoolKeys('a:b:c', 'p').root}:{':'.join(parts)}") == kind.permanent, kind.suffix


def test_names_of_the_sources() -> None:
    """Each name that a source document gives to a key stands beside a key of the tables, or is not built."""
    section = PAGE.partition("## Names in the source documents\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.+?) \|", section, re.MULTILINE))
    assert set(rows) == {
        "{session:S}:workspace",
        "{session:S}:agent:A:memory",
        "{session:S}:directory:agents",
        "agent:A:state",
        "agent:A:status",
        "agent:completions:daily",
        "config:updated",
        "lock:K",
        "lock:agent-execution:A",
        "ratelimit:tasks:A:1min",
        "ratelimit:api:IP:1min",
        "memory:session-S",
        "app:env:tenant:session:S:mem",
        "agent:A:stm:E",
        "agent:A:im:E",
    }
    pool, scopes = ({kind.suffix for kind in kinds} for kinds in (POOL_KEYS, SCOPE_KEYS))
    for name, ours in rows.items():
        keys = re.findall(r"`\{(\w+):[\w:]+\}:([\w:]+)`", ours)
        assert keys or ours == "not built", name
        for scope, suffix in keys:
            assert scope in {"pool", *SCOPES}, name
            windows = re.sub(r"^usage:\d+$", "usage:MS", suffix)
            assert windows in (pool if scope == "pool" else scopes), name


def test_one_grammar() -> None:
    """Every key is prefix, kind and id of its scope between braces, and a suffix; there is no other kind of scope."""
    grammar = re.compile(r"app:env:tenant:\{([a-z]+):[A-Za-z0-9._%-]+\}:[^{}]+")
    made = {ScopeKeys("app:env:tenant", kind, "a b}").key(row.suffix) for kind in SCOPES for row in SCOPE_KEYS}
    made |= {f"{PoolKeys('app:env:tenant', 'p').stem}{row.suffix}" for row in POOL_KEYS}
    assert {match[1] for key in made if (match := grammar.fullmatch(key))} == {"pool", *SCOPES}
    assert [key for key in made if not grammar.fullmatch(key)] == []
    for kind in ("user", "domain", "global", "pool", ""):
        with pytest.raises(InvalidInput, match="no kind of scope"):
            ScopeKeys("app:env:tenant", kind, "x")


NOT_SAVED = {
    *["queue:agent:A", "queue:skill:S", "queues", "scheduled", "asking", "expiring", "parked:A", "suspects"],
    *["suspects:QUEUE", "awaited:QUEUE", "lane:KEY", "dead", "schedules", "held", "held:SCOPE", "refused"],
    *["lent:A", "inbox:A", "agents", "agent:A", "leases:A", "agent:A:workers", "offers:A", "workers", "worker:W"],
    *["crew:W", "worker:W:notes", "silent:W", "skills:S", "room:S", "versions:S", "descriptions:S", "versions"],
    *["doorbell", "replies:C", "events", "stats:MINUTE", "timings", "timings:MINUTE", "timings:TOTAL"],
    *["control:records:refused", "control:refused", "control:MINUTE", "desired:revisions", "nonce:CMD", "receipts:CMD"],
    *["selection:CMD", "leader", "leader:format", "supervisors", "supervisors:requests", "format"],
    *["lock:N", "lock:N:waiters", "lock:N:wake", "exec", "exec:fence", "exec:awaited", "exec:line", "exec:waiters"],
    *["exec:wake", "exec:ID", "locks", "ws:json", "dir", "dir:info", "usage:MS:ops", "usage:MS:ops:before"],
    *["window:MS", "ops", "ops:before", "losses"],
}
"""Kinds of keys that no backup has: indexes, who works now, locks, op ids, messages, counters of minutes."""


def test_every_kind_decides_about_backups() -> None:
    """A new kind of key says in `KeyKind.backup` how it is saved, or is listed here because it is not."""
    kinds = {kind.suffix for kind in (*POOL_KEYS, *SCOPE_KEYS) if kind.backup is Backup.NOT_SAVED}
    assert kinds - NOT_SAVED == set(), "add `backup=` to these kinds in orchestrator/store/keys.py, or list them"
    assert NOT_SAVED - kinds == set()
