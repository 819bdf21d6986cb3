"""docs/internals/reliability.md names tests and files: all of them are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "internals" / "reliability.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::\w+)*)`", PAGE))))
def test_named_tests_exist(named: str) -> None:
    """Each test that is to show a rule exists."""
    file, *names = named.split("::")
    text = (ROOT / file).read_text(encoding="utf-8")
    assert all(re.search(rf"^\s*(async def|def|class) {name}\b", text, re.MULTILINE) for name in names)


def test_every_rule_names_a_test() -> None:
    """No rule stands in a table without something that shows it."""
    rows = PAGE.partition("## The rules")[2].partition("## What is not kept yet")[0].splitlines()
    rules = [line for line in rows if line.startswith("| ") and not line.startswith("| rule ")]
    assert len(rules) > 40
    assert [line for line in rules if "test" not in line.rsplit("|", 2)[1]] == []
