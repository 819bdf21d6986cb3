"""docs/internals/data-model.md lists the keys of the code. Fields of records: tests/lua/test_records.py."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.store.keys import POOL_KEYS, SCOPE_KEYS, KeyKind, PoolKeys, is_permanent

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/internals/data-model.md").read_text(encoding="utf-8")


def key_table(kinds: Sequence[KeyKind]) -> str:
    """The table of keys as the page must show it."""
    rows = ["| key | type | holds | lifetime | permanent |", "|---|---|---|---|---|"]
    for kind in kinds:
        permanent = "yes" if kind.permanent else ""
        rows.append(
            f"| `{kind.suffix}` | {kind.type} | {kind.holds} | {kind.lifetime} | {permanent} |".replace("|  |", "| |")
        )
    return "\n".join(rows)


def test_keys() -> None:
    """The page shows the tables of keys of the code; if not, the message holds the right one."""
    for kinds in (POOL_KEYS, SCOPE_KEYS):
        table = key_table(kinds)
        assert table in PAGE, f"put this into docs/internals/data-model.md:\n\n{table}\n"


@pytest.mark.parametrize("kind", POOL_KEYS, ids=[kind.suffix for kind in POOL_KEYS])
def test_permanent(kind: KeyKind) -> None:
    """`is_permanent` says of a key with a real name what the table says of its kind."""
    parts = [part if not part.isupper() or part == "TOTAL" else "some:name" for part in kind.suffix.split(":")]
    assert is_permanent(f"{PoolKeys('a:b:c', 'p').root}:{':'.join(parts)}") == kind.permanent
