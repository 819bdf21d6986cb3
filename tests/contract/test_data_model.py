"""The table of keys says which keys are permanent. Fields of records: tests/lua/test_records.py."""

from __future__ import annotations

from orchestrator.store.keys import POOL_KEYS, PoolKeys, is_permanent


def test_permanent() -> None:
    """`is_permanent` answers for a key with a real name as the table does for its kind."""
    for kind in POOL_KEYS:
        parts = [part if not part.isupper() or part == "TOTAL" else "some:name" for part in kind.suffix.split(":")]
        assert is_permanent(f"{PoolKeys('a:b:c', 'p').root}:{':'.join(parts)}") == kind.permanent, kind.suffix
