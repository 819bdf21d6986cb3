"""What is printed and logged holds no character that controls, hides or reorders; other text stays as it is."""

from __future__ import annotations

import json
import sys
import unicodedata

from orchestrator.core.escaping import UNSAFE_IN_LINES, escape, escape_json
from tests.helpers.cases import each_case

_VISIBLE = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
"""Signs of Arabic, Syriac and Kaithi that are format characters and are shown."""


def test_every_hidden_character_is_escaped() -> None:
    """Controls, format characters such as marks of direction and tags, ends of lines and halves of characters."""
    hidden = {"Cc", "Cf", "Zl", "Zp", "Cs"}
    left = [
        f"{code:x}"
        for code in range(sys.maxunicode + 1)
        if unicodedata.category(char := chr(code)) in hidden
        and char not in _VISIBLE
        and not 0x13430 <= code < 0x13460  # joins Egyptian hieroglyphs
        and escape(char) == char
    ]
    assert left == []


@each_case(
    ("text", "escaped"),
    [
        ("\x1b]52;c;aGk=\x07", r"\x1b]52;c;aGk=\x07"),
        ("\u200eab\u202ecd\u2066", r"\u200eab\u202ecd\u2066"),
        ("a\u200bb\ufeff\U000e0041", r"a\u200bb\ufeff\U000e0041"),
        ("\x9b31m\x7f\r\n", r"\x9b31m\x7f\r\n"),
        ("grüße 日本\u3000語 ❤\ufe0f 🚀", "grüße 日本\u3000語 ❤\ufe0f 🚀"),
    ],
)
def test_texts(text: str, escaped: str) -> None:
    """A text of people stays; everything else is written as its code."""
    assert escape(text) == escaped


def test_lines_stay_on_request() -> None:
    """The end of a line and a tab stay; a carriage return does not, because it overwrites a line."""
    assert escape("a\n\tb\rc", UNSAFE_IN_LINES) == "a\n\tb\\rc"


def test_json_keeps_its_value() -> None:
    """An escaped JSON text has the same value, also beyond 16 bits."""
    value = "\x7f\x9b\u202e\u200b\U000e0041é日🚀"
    text = escape_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == value
    assert escape(text) == text
    assert "é日🚀" in text
