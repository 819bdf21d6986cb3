"""The table of keys, and the page that maps names of other grammars to it. Fields: tests/lua/test_records.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.core.errors import InvalidInput
from orchestrator.store.key_kinds import POOL_KEYS, SCOPE_KEYS, SCOPES, Backup, Loss, is_permanent
from orchestrator.store.keys import PoolKeys, ScopeKeys

PAGE = (Path(__file__).parents[2] / "docs/internals/data-model.md").read_text(encoding="utf-8")


def test_permanent() -> None:
    """`is_permanent` answers for a key with a real name as the table does for its kind."""
    for kind in POOL_KEYS:
        parts = [part if not part.isupper() or part == "TOTAL" else "some:name" for part in kind.suffix.split(":")]
        assert is_permanent(f"{PoolKeys('a:b:c', 'p').root}:{':'.join(parts)}") == kind.permanent, kind.suffix


def test_names_of_the_sources() -> None:
    """Each name that a source document gives to a key stands beside a key of the tables, or says that there is none."""
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
        "{session-S}:lock",
        "agent:status-changed",
        "app:env:tenant:session:S:mem",
        "agent:A:stm",
        "agent:A:im",
        "agent:A:im:M",
        "agent:A:stm:timeline",
        "agent:A:im:timeline",
        "agent:A:stm:type:T",
        "agent:A:stm:action_type:T",
        "agent:A:stm:importance",
        "agent:A:stm:embedding:M",
        "agent:A:stm:vector_buckets:B",
        "agent:A:state:ID",
        "agent:A:state:timeline",
        "agent:A:state:relative_index",
        "agent:A:state:spatial_keys",
        "spatial:C:states",
        "type:T:agents",
        "type:T:states",
        "simulation:X:agents",
        "simulation:X:states",
        "simulation:X:timeline",
        "X:E",
        "temp:time_range",
        "temp:result",
        "temp:importance",
        "temp:final_result",
    }
    pool, scopes = ({kind.suffix for kind in kinds} for kinds in (POOL_KEYS, SCOPE_KEYS))
    for name, ours in rows.items():
        keys = re.findall(r"`\{(\w+):[\w:]+\}:([\w:]+)`", ours)
        assert keys or ours == NO_KEY[name], name
        for scope, suffix in keys:
            assert scope in {"pool", *SCOPES}, name
            windows = re.sub(r"^usage:\d+$", "usage:MS", suffix)
            assert windows in (pool if scope == "pool" else scopes), name


NO_KEY = {
    **dict.fromkeys(("agent:A:stm:embedding:M", "agent:A:stm:vector_buckets:B"), "not built"),
    **dict.fromkeys(("temp:time_range", "temp:result", "temp:importance", "temp:final_result"), "not needed"),
}
"""Names of the sources that no key serves."""


def section(title: str) -> str:
    """Return a section of the page."""
    found = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    assert found, title
    return found


def test_fields_of_chats() -> None:
    """The page names each field that scripts of chats write, each key of a chat, and each column of an entry."""
    page = section("Fields of a chat")
    kinds = {kind.suffix: kind for kind in SCOPE_KEYS}
    for suffix in ("chat:SRC:meta", "chat:SRC:q", "chat:SRC:id", "chat:SRC:sum", "chats"):
        assert f"`{suffix}`" in page, suffix
    for suffix in ("chat:SRC:meta", "chat:SRC:sum"):
        fields = re.sub(r".*?: ", "", kinds[suffix].holds.partition(";")[0]).split(", ")
        assert [field for field in fields if f"`{field}`" not in page] == [], suffix
    columns = kinds["chat:SRC:q"].holds.partition(": ")[2].split(", ")
    assert [column for column in columns if column not in page] == []


def test_fields_of_memories() -> None:
    """The page names each key of a tier and of the way to long-term storage."""
    page = section("Fields of a memory")
    suffixes = {
        re.sub("^(stm|im):", "TIER:", row.suffix) for row in SCOPE_KEYS if re.match("stm:|im:|ltm:|sim:", row.suffix)
    }
    assert len(suffixes) >= 14
    assert [suffix for suffix in sorted(suffixes) if f"`{suffix}`" not in page] == []


def test_one_grammar() -> None:
    """Every key is prefix, kind and id of its scope between braces, and a suffix; there is no other kind of scope."""
    grammar = re.compile(r"app:env:tenant:\{([a-z]+):[A-Za-z0-9._%-]+\}:[^{}]+")
    made = {ScopeKeys("app:env:tenant", kind, "a b}").key(row.suffix) for kind in SCOPES for row in SCOPE_KEYS}
    made |= {f"{PoolKeys('app:env:tenant', 'p').stem}{row.suffix}" for row in POOL_KEYS}
    assert {match[1] for key in made if (match := grammar.fullmatch(key))} == {"pool", *SCOPES}
    assert [key for key in made if not grammar.fullmatch(key)] == []
    for kind in ("users", "team", "all", "pool", ""):
        with pytest.raises(InvalidInput, match="no kind of scope"):
            ScopeKeys("app:env:tenant", kind, "x")


NOT_SAVED = {
    "web:tokens",
    "web:key",
    "web:request:HASH",
    "web:link:HASH",  # who logs in after a restore proves it anew
    *["queue:agent:A", "queue:skill:S", "queues", "scheduled", "asking", "expiring", "parked:A", "suspects"],
    *["joining", "joins:ID", "after", "after:ID", "ends"],
    *["suspects:QUEUE", "awaited:QUEUE", "lane:KEY", "tag:T", "dead", "schedules", "held", "held:SCOPE", "refused"],
    *["lent:A", "inbox:A", "agents", "agent:A", "leases:A", "agent:A:workers", "offers:A", "workers", "worker:W"],
    *["crew:W", "worker:W:notes", "silent:W", "skills:S", "room:S", "versions:S", "descriptions:S", "versions"],
    *["doorbell", "replies:C", "events", "stats:MINUTE", "timings", "timings:MINUTE", "timings:TOTAL"],
    *[
        "control:records:refused",
        "control:records:nonce:CMD",
        "control:refused",
        "control:MINUTE",
        "desired:revisions",
        "nonce:CMD",
        "receipts:CMD",
    ],
    *["selection:CMD", "failed_starts", "leader", "leader:format", "supervisors", "supervisors:requests", "format"],
    "mistyped:KEY",
    *["lock:N", "lock:N:waiters", "lock:N:order", "lock:N:wake", "exec", "exec:fence", "exec:awaited", "exec:line"],
    *["emb:log", "vec", "vec:new:B", "vec:pending", "lsh:B", "lshrev"],
    *[
        "exec:waiters",
        "exec:order",
        "exec:wake",
        "exec:ID",
        "locks",
        "ws:json",
        "dir",
        "dir:info",
        "usage:MS:ops",
        "usage:MS:ops:before",
    ],
    *[
        *(f"share:{part}" for part in ("wait:FLOW", "line:LINE", "taken:KEY", "rest:KEY", "flows", "keys", "queues")),
        *("providers", "provider:usage:NAME", "provider:leases:NAME", "provider:calls:NAME"),
        *("provider:usage:N", "provider:leases:N", "provider:calls:N"),
        "window:MS",
        "ops",
        "ops:before",
        "losses",
        "forget:F",
        "ltm:gone",
        "chat",
        "chat:seen",
        "chat:sizes",
        "erased",
        "gone",
    ],
    *["chats", "chat:SRC:id", "queues:bytes", "queues:full"],
    *[f"{tier}:{part}" for tier in ("stm", "im") for part in ("meta", "time", "imp", "exp")],
    *[f"{tier}:{part}" for tier in ("stm", "im") for part in ("kind:K", "act:X", "subj:U", "cell:C")],
}
"""Kinds of keys that no backup has: indexes, who works now, locks, op ids, messages, counters of minutes."""


def test_every_kind_decides_about_backups() -> None:
    """A new kind of key says in `KeyKind.backup` how it is saved, or is listed here because it is not."""
    kinds = {kind.suffix for kind in (*POOL_KEYS, *SCOPE_KEYS) if kind.backup is Backup.NOT_SAVED}
    assert kinds - NOT_SAVED == set(), "add `backup=` to these kinds in orchestrator/store/keys.py, or list them"
    assert NOT_SAVED - kinds == set()


def test_every_kind_says_what_its_loss_means() -> None:
    """What comes back from a backup is saved, and what other keys have is not; the guide explains each word."""
    kinds = (*POOL_KEYS, *SCOPE_KEYS)
    lost = [kind.suffix for kind in kinds if kind.loss is Loss.CHECKPOINTED and kind.backup is Backup.NOT_SAVED]
    assert lost == [], "no backup has these kinds"
    twice = [kind.suffix for kind in kinds if kind.loss is Loss.RECONSTRUCTIBLE and kind.backup is not Backup.NOT_SAVED]
    assert twice == [], "a restore makes these kinds again"
    guide = (Path(__file__).parents[2] / "docs/guides/repair.md").read_text(encoding="utf-8")
    section = guide.partition("## What the loss of a key means\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == {loss.value for loss in Loss}
