"""docs/data-model.md and lua/README.md list what the code has. Fields of records: tests/lua/test_records.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.store.keys import POOL_KEYS, KeyKind, PoolKeys, is_permanent
from orchestrator.store.script_files import all_scripts

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/data-model.md").read_text(encoding="utf-8")


def key_table() -> str:
    """The table of keys as the page must show it."""
    rows = ["| key | type | holds | lifetime | permanent |", "|---|---|---|---|---|"]
    for kind in POOL_KEYS:
        permanent = "yes" if kind.permanent else ""
        rows.append(
            f"| `{kind.suffix}` | {kind.type} | {kind.holds} | {kind.lifetime} | {permanent} |".replace("|  |", "| |")
        )
    return "\n".join(rows)


def test_keys() -> None:
    """The page shows the table of keys of the code; if not, the message holds the right one."""
    assert key_table() in PAGE, f"put this into docs/data-model.md:\n\n{key_table()}\n"


def test_script_table() -> None:
    """lua/README.md lists every script."""
    readme = (ROOT / "lua/README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(\w+/\w+)` \|", readme, re.MULTILINE)) == sorted(all_scripts())


@pytest.mark.parametrize("kind", POOL_KEYS, ids=[kind.suffix for kind in POOL_KEYS])
def test_permanent(kind: KeyKind) -> None:
    """`is_permanent` says of a key with a real name what the table says of its kind."""
    parts = [part if not part.isupper() or part == "TOTAL" else "some:name" for part in kind.suffix.split(":")]
    assert is_permanent(f"{PoolKeys('a:b:c', 'p').root}:{':'.join(parts)}") == kind.permanent
