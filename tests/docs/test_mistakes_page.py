"""The page about mistakes quotes what the programs write."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.docs.pages import ROOT, read

PAGE: Final = "docs/guides/when-something-is-wrong.md"
QUOTED: Final = [
    quoted
    for line in read(PAGE)
    if line.startswith("| `")
    for quoted in re.findall(r"`([^`]+)`", line.split(" | ", 1)[0])
]
VARIABLE: Final = re.compile(r"\.\.\.|'\w+'|\d+|orchestrator\.py|ctx\.submit")
"""What a quotation has in place of a value."""


@pytest.fixture(scope="module")
def source() -> str:
    """The source of the package."""
    files = [*ROOT.glob("orchestrator/**/*.py"), *ROOT.glob("workers/**/*.py")]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


@pytest.mark.parametrize("quoted", QUOTED)
def test_quotations(source: str, quoted: str) -> None:
    """Each part of a quotation stands in the source."""
    parts = [part for part in VARIABLE.split(quoted) if part.strip()]
    assert parts
    assert [part for part in parts if part.strip() not in source] == []


def test_the_table_is_found() -> None:
    """The rows of the table are read."""
    assert len(QUOTED) >= 16
