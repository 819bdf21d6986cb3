"""Reads the Markdown of this project: fenced blocks, headings, links. Nothing here runs them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.reference.api import api
from tools.reference.pages import SINGLE

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("lua/*.md"), *ROOT.glob("benchmarks/*.md"))
)

_FENCE: Final = re.compile(r'^(`{3,})(\w*)(?: title="([^"]+)")?.*$')
_NOT_RUN: Final = re.compile(r"<!-- not run: .+ -->")
_LINK: Final = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_CODE: Final = re.compile(r"`[^`]*`")
_HEADING: Final = re.compile(r"^(#+) (.+)$")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block.

    Attributes:
        line: of its first line of text, from 1.
        follows: the block that stands directly above it, only blank lines between.
        runs: False under a comment `<!-- not run: reason -->`.
        file: the file that it begins or continues, as `title="team.py"` names it; "" for none.
    """

    page: str
    line: int
    language: str
    text: str
    follows: Block | None
    runs: bool
    file: str = ""


def read(page: str) -> list[str]:
    """The lines of a page."""
    return (ROOT / page).read_text(encoding="utf-8").splitlines()


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a page, from top to bottom."""
    found: list[Block] = []
    lines = read(page)
    above: Block | None = None
    runs = True
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        fence = _FENCE.match(line)
        if fence is None:
            if line.strip():
                above, runs = None, not _NOT_RUN.fullmatch(line.strip())
            continue
        start = at
        while lines[at] != fence[1]:
            at += 1
        text = "\n".join(lines[start:at]) + "\n"
        above = Block(page, start + 1, fence[2], text, above, runs, fence[3] or "")
        found.append(above)
        runs = True
        at += 1
    return found


def files(page: str) -> dict[str, str]:
    """The files that a page tells its reader to save, by name; the blocks of one are two empty lines apart."""
    parts: dict[str, list[str]] = {}
    for block in blocks(page):
        if block.file:
            parts.setdefault(block.file, []).append(block.text)
    return {name: "\n\n".join(texts) for name, texts in parts.items()}


def prose(page: str) -> list[str]:
    """The lines of a page outside of fenced blocks."""
    kept, fence = [], ""
    for line in read(page):
        found = _FENCE.match(line)
        if fence:
            fence = "" if line == fence else fence
        elif found:
            fence = found[1]
        else:
            kept.append(line)
    return kept


def links(page: str) -> list[str]:
    """Targets of all links of a page that stay within this project."""
    targets = [target for line in prose(page) for target in _LINK.findall(_CODE.sub("``", line))]
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(page: str) -> set[str]:
    """The anchors that the headings of a page get where it is shown."""
    titles = [found[2] for line in prose(page) if (found := _HEADING.match(line))]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def is_generated(path: str) -> bool:
    """Return True for a page below docs/ that `make docs` makes from the code."""
    page = path.removeprefix("docs/")
    return page in SINGLE or (page.startswith("reference/api/") and page in api())


def section(page: str, title: str) -> list[str]:
    """The lines under one heading, up to the next of its level or above."""
    kept: list[str] = []
    level = 0
    for line in read(page):
        found = _HEADING.match(line)
        if found and level and len(found[1]) <= level:
            break
        if level:
            kept.append(line)
        elif found and found[2] == title:
            level = len(found[1])
    assert level, f"{page} has no section {title!r}"
    return kept
