"""Texts of a page are cut, and commands are safe to paste."""

from __future__ import annotations

import subprocess

import pytest

from orchestrator.dashboard.rendering import exact
from orchestrator.dashboard.texts import CUT, UNREADABLE, Texts, as_command, json_text


def test_a_page_has_a_bound() -> None:
    """Each text has its own bound, and all together as HTML one more; markup counts as what it is written as."""
    texts = Texts(100)
    assert texts.cut("abc", 10) == "abc"
    assert texts.cut("abcdef", 3) == "abc" + CUT
    assert texts.cut("\u202e", 9) == "\\u202e"
    assert texts.cut("<" * 30, 100) == CUT
    assert texts.cut("<" * 10, 100) == "<" * 10
    assert texts.left > 0


def test_links() -> None:
    """A link counts with its address; when the page is full, only its text is left."""
    texts = Texts(100)
    assert texts.link("/a", {"x": "1 <"}, "<b>", 9, current=True) == (
        '<a href="/a?x=1+%3C" aria-current="true">&lt;b&gt;</a>'
    )
    assert texts.link("/a", {"x": "\u202e" * 10}, "\u202e", 9) == "\\u202e"
    assert texts.link("/a", {"x": "\ud800"}, "y", 9) == '<a href="/a?x=%3F">y</a>'


def test_json() -> None:
    """Text is shown as it is, other values as JSON, as far as it is needed; deep ones do not fail."""
    assert json_text("a\nb") == "a\nb"
    assert json_text({"é": [1, None]}) == '{"é": [1, null]}'
    assert len(json_text(list(range(1_000_000)), most=100)) < 200
    deep: object = 1
    for _ in range(100_000):
        deep = [deep]
    assert json_text(deep) == UNREADABLE
    assert json_text(deep, most=10**9) == UNREADABLE


@pytest.mark.parametrize(
    "word", ["plain", "a b", "it's", "$(id)", "`id`", "a\\b'", "\n\t\x1b[2J", "\u202eabc", "é", "--help", "~", "!x", ""]
)
def test_commands(word: str) -> None:
    """A shell reads each word as it was, whatever it holds."""
    command = as_command("printf", "%s.", word)
    assert not set("\x1b\n\u202e") & set(command)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == word + "."
    assert as_command("orc", "stop", session="a b", agent=None) == "orc stop --session 'a b'"


def test_exact() -> None:
    """A field keeps invisible characters, which are not on the page as they are."""
    assert exact("a\u202e<\x1b") == "a&#8238;&lt;&#27;"
