"""Numbers and foreign text in reports: one line, nothing invisible, nothing that is taken for markup."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from orchestrator.workers.demo.markup import Markup, el, join
from orchestrator.workers.demo.text_format import code, count, percent, printable, seconds, shortened
from tests.unit.demo.html_page import Page


def test_invisible_characters_are_spelled_out() -> None:
    """Line breaks, escapes of terminals, direction changes and lone surrogates become visible."""
    assert printable("a\nb\x1b[31m\u202egpj.py\ud800é") == "a\\nb\\x1b[31m\\u202egpj.py\\ud800é"


@given(st.text())
def test_any_text_becomes_one_printable_line(text: str) -> None:
    """Whatever a file is called, its name can be printed and encoded."""
    shown = printable(text)
    assert shown.isprintable()
    shown.encode()


@given(st.text(min_size=1) | st.text(alphabet="`a |\n\\<", min_size=1, max_size=12))
def test_code_spans_hold_any_text(text: str) -> None:
    """A Markdown reader finds one code span with the whole text in it."""
    shown = printable(text)
    # CommonMark drops one blank at each end, unless all is blank.
    inside = shown[1:-1] if shown.startswith(" ") and shown.endswith(" ") and shown.strip(" ") else shown
    page = Page(MarkdownIt("commonmark").renderInline(code(text)))
    assert (page.tags, page.text) == ([("code", {})], inside)


@pytest.mark.parametrize(
    ("part", "whole", "said"),
    [
        (0, 0, "none"),
        (0, 5, "0 %"),
        (5, 5, "100 %"),
        (1, 3, "33 %"),
        (1, 1000, "0.1 %"),
        (1, 100_000, "< 0.1 %"),
        (999, 1000, "99.9 %"),
        (99_999, 100_000, "> 99.9 %"),
    ],
)
def test_shares_are_never_rounded_to_all_or_nothing(part: int, whole: int, said: str) -> None:
    """What is not all is not called 100 %, what is not nothing is not called 0 %."""
    assert percent(part, whole) == said


def test_numbers_agree_with_their_nouns() -> None:
    """One file, two files; milliseconds below a second."""
    assert [count(1, "file"), count(1200, "file"), count(2, "process", "processes")] == [
        "1 file",
        "1,200 files",
        "2 processes",
    ]
    assert [seconds(0.0123), seconds(4.25)] == ["12 ms", "4.2 s"]


def test_long_names_keep_both_ends() -> None:
    """The middle of a long name gives way."""
    assert shortened("short", 10) == "short"
    assert shortened("asyncio.multidb.command_executor", 16) == "async…d_executor"


@given(st.text(), st.text())
def test_texts_never_become_markup(text: str, value: str) -> None:
    """A browser sees one element with one attribute, whatever stands inside."""
    page = Page(el("p", text, title=value))
    assert page.tags == [("p", {"title": printable(value)})]
    assert page.text == printable(text)


def test_elements_nest_and_numbers_are_short() -> None:
    """Markup inside markup is kept; absent attributes and children are left out."""
    inner = el("b", 3, class_="x", data_n=1.50, hidden=None)
    assert inner == '<b class="x" data-n="1.5">3</b>'
    assert el("p", inner, None, "<") == f"<p>{inner}&lt;</p>"
    assert el("br") == "<br>"
    assert isinstance(join("a", inner, separator=", "), Markup)
