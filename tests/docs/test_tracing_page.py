"""docs/reference/tracing.md lists the spans and attributes that the code makes, no more and no fewer."""

from __future__ import annotations

import re

from orchestrator.tasks.model import VerdictKind
from orchestrator.tracing import names
from tests.docs.pages import read

PAGE = "docs/reference/tracing.md"
VALUES = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
SPANS = {names.SUBMIT, names.RUN, names.WAIT, names.LOCK, names.SCRIPT, names.ASK}


def quoted() -> set[str]:
    """What stands between backticks."""
    return set(re.findall(r"`([^`]+)`", "\n".join(read(PAGE))))


def test_attributes() -> None:
    """The page has every attribute of `orchestrator/tracing/names.py`."""
    attributes = {value for value in VALUES if "." in value}
    on_page = {word for word in quoted() if re.fullmatch(r"(messaging|gen_ai|db|orc|error)\.[a-z_.]+", word)}
    assert on_page == attributes


def test_spans() -> None:
    """The table of spans has every name."""
    rows = [line for line in read(PAGE) if line.startswith("| `")]
    first = {row.split("`")[1].split()[0] for row in rows if row.count("|") == 6}
    assert first == SPANS


def test_outcomes() -> None:
    """The page names every outcome of an attempt."""
    assert {kind.value for kind in VerdictKind} | {names.LOST} <= quoted()
