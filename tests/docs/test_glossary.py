"""docs/reference/glossary.md defines each term once, in order, and only terms that code or manual use."""

from __future__ import annotations

import re
from typing import Final

from tests.docs.pages import ROOT, section

PAGE: Final = "docs/reference/glossary.md"
SECTIONS: Final = ("Terms that users meet", "Terms that only contributors meet")
PRODUCT: Final = ("orchestrator", "workers", "lua", "config", "docs")

_ITEM: Final = re.compile(r"^- \*\*([\w -]+)\*\*: ([A-Z].+\.)$")


def items(title: str) -> list[str]:
    """The items of one section, each on one line; wrapped lines continue the item above them."""
    return re.sub(r"\n  (?=\S)", " ", "\n".join(line for line in section(PAGE, title) if line)).split("\n")


def terms(title: str) -> list[str]:
    """The terms of one section, in its order."""
    return [found[1] for line in items(title) if (found := _ITEM.match(line))]


def test_every_line_defines_a_term() -> None:
    """A line of a section is a term and its definition, which ends with a full stop."""
    assert [line for title in SECTIONS for line in items(title) if not _ITEM.match(line)] == []


def test_terms_are_sorted() -> None:
    """Readers find a term by its first letter."""
    for title in SECTIONS:
        assert terms(title) == sorted(terms(title), key=str.casefold), title


def test_terms_are_defined_once() -> None:
    """A term stands in one of the sections, once."""
    found = [term for title in SECTIONS for term in terms(title)]
    assert len(found) > 60
    assert sorted(found) == sorted(set(found))


def test_terms_are_used() -> None:
    """Each term is a word of the product or of the manual outside the glossary, also in the plural or in a name."""
    texts = [
        path.read_text(encoding="utf-8")
        for folder in PRODUCT
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".py", ".lua", ".md", ".toml"} and path != ROOT / PAGE
    ]
    words = re.sub(r"[\W_]+", " ", "\n".join(texts)).casefold()
    used = set(re.findall(r"\w+", words))
    unused = []
    for title in SECTIONS:
        for term in terms(title):
            name = re.sub(r"[\W_]+", " ", term).casefold()
            forms = (name, f"{name}s", f"{name}es", f"{name[:-1]}ies")
            if not any(form in used if " " not in form else f" {form} " in words for form in forms):
                unused.append(term)
    assert unused == []
