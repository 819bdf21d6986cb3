"""The table of keys says which keys are permanent. Fields of records: tests/lua/test_records.py."""

from __future__ import annotations

import pytest

from orchestrator.store.keys import POOL_KEYS, KeyKind, PoolKeys, is_permanent


@pytest.mark.parametrize("kind", POOL_KEYS, ids=[kind.suffix for kind in POOL_KEYS])
def test_permanent(kind: KeyKind) -> None:
    """`is_permanent` says of a key with a real name what the table says of its kind."""
    parts = [part if not part.isupper() or part == "TOTAL" else "some:name" for part in kind.suffix.split(":")]
    assert is_permanent(f"{PoolKeys('a:b:c', 'p').root}:{':'.join(parts)}") == kind.permanent
