"""docs/internals/reliability.md names tests that exist, and a test for each promise."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

PAGE = (ROOT / "docs/internals/reliability.md").read_text(encoding="utf-8")


def test_named_tests_exist() -> None:
    """Each named test is in its file."""
    missing = []
    for named in sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::\w+)*)`", PAGE))):
        file, *names = named.split("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        defined = set(re.findall(r"^\s*(?:async def|def|class) (\w+)", text, re.MULTILINE))
        missing += [named for name in names if name not in defined]
    assert missing == []


def test_every_promise_names_a_test() -> None:
    """Each item below the last heading of the second level names a test."""
    items = re.split(r"^- ", PAGE.partition("## Tests beyond the protocol")[2], flags=re.MULTILINE)[1:]
    assert len(items) > 40
    assert [item for item in items if not re.search("tests?[/_]", item)] == []
