"""Values of locks: who holds one, and what is shown of it."""

from __future__ import annotations

import pytest

from orchestrator.core.errors import InvalidInput
from orchestrator.locks.model import NEXT, LockProof, describe, execution_of, info, parse_scope, scope_name
from orchestrator.store.keys import ScopeKeys
from tests.helpers.cases import each_case

NAMED, EXECUTION = "17:ab12:me: at home", "18:task-1:1700000000005:cd34"


@each_case(
    ("value", "described", "execution"),
    [
        ("", "", None),
        (NEXT, "", None),
        (NAMED, "me: at home", None),
        ("17:ab12:", "", None),
        (EXECUTION, "task task-1, generation 1700000000005", ("task-1", "1700000000005")),
    ],
)
def test_owners(value: str, described: str, execution: tuple[str, str] | None) -> None:
    """A named lock shows the owner's text, colons too; an execution lock shows task and generation."""
    assert describe(value) == described
    assert execution_of(value) == execution


def test_shown() -> None:
    """What a list of locks shows: name, owner, number and nonce; less while a lock is kept for a waiter."""
    named = info("lock:a%20b", NAMED, 1500, 2)
    assert (named.name, named.holder, named.task, named.fence, named.nonce) == ("a b", "me: at home", None, 17, "ab12")
    assert (named.left_ms, named.waiting, named.at) == (1500, 2, "lock:a%20b")
    held = info("exec:task-1", EXECUTION, 1, 0)
    assert (held.name, held.task, held.fence, held.nonce) == ("exec:task-1", "task-1", 18, "cd34")
    kept = info("lock:n", NEXT, 1, 1)
    assert (kept.name, kept.holder, kept.task, kept.fence, kept.nonce) == ("n", "", None, None, "")
    assert LockProof(ScopeKeys("a:b:c", "session", "s"), "exec", EXECUTION).fence == 18


@each_case(
    ("scope", "kind", "id_"),
    [
        ("session:a:b", "session", "a:b"),
        ("agent:ed", "agent", "ed"),
        ("pool", "locks", "p"),
        ("user:a:b", "user", "a:b"),
        ("domain:d", "domain", "d"),
        ("global", "global", "all"),
    ],
)
def test_scopes(scope: str, kind: str, id_: str) -> None:
    """Scopes are read as users write them, and written the same way."""
    keys = parse_scope(scope, prefix="x:y:z", pool="p")
    assert (keys.prefix, keys.kind, keys.id, scope_name(keys)) == ("x:y:z", kind, id_, scope)


@each_case("scope", ["", "session", "session:", "locks:p", "limit:x", "pool:p", "user", "user:", "domain:", "global:x"])
def test_no_scopes(scope: str) -> None:
    """Anything else is refused."""
    with pytest.raises(InvalidInput):
        parse_scope(scope, prefix="x:y:z", pool="p")
