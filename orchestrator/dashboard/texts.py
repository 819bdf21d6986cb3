r"""Shortens what agents wrote, so that no page grows with it.

A page has one `Texts`: each text is cut to its own length and all of them to a sum of bytes as HTML, because markup and
marks of direction take up to six bytes each when they are written as `&lt;` and `\\u202e`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from markupsafe import Markup, escape

from orchestrator.core.reading import MISREAD, read_json
from orchestrator.core.scrubbing import MASK
from orchestrator.dashboard.rendering import visible
from orchestrator.views.hidden_keys import mask_keys, names_secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MOST_BYTES: Final = 100_000
PART_BYTES: Final = 50_000
CUT: Final = "…"
UNREADABLE: Final = "(nested too deeply to show)"
_PLAIN: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789%+,-./:=@_")


class Texts:
    """Cuts the texts of one page."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.left = most_bytes

    def cut(self, text: object, most: int) -> str:
        """Return the beginning of a text, with an ellipsis if it is longer; nothing but that when the page is full."""
        said = str(text)
        shown = visible(said[:most]) + CUT * (len(said) > most)
        size = len(escape(shown).encode())
        if size > self.left:
            return CUT
        self.left -= size
        return shown

    @classmethod
    def of_part(cls) -> Texts:
        """Return the bound of one part of a page. Templates ask for it, because a page is rendered more than once."""
        return cls(PART_BYTES)

    def link(self, path: str, query: Mapping[str, str], text: object, most: int, *, current: bool = False) -> Markup:
        """Return a link with the beginning of a text; without its address when the page is full."""
        address = f"{path}?{urlencode(query, errors='replace')}"
        shown = self.cut(text, most)
        if len(address) > self.left:
            return escape(shown)
        self.left -= len(address)
        marked = Markup(' aria-current="true"') if current else ""
        return Markup('<a href="{}"{}>{}</a>').format(address, marked, shown)

    def value(self, value: Any, most: int, *, name: str = "") -> str:
        """Return the beginning of a JSON value of this name."""
        return self.cut(json_text(value, most=most, name=name), most)


def json_text(value: Any, *, most: int | None = None, name: str = "") -> str:
    """Return a value as JSON on one line, with masked secrets; a text as it is.

    Args:
        value: JSON value.
        most: characters that are needed; the form is not made further than that.
        name: of the value; that of a secret masks it.
    """
    if is_masked(name, value):
        return MASK
    if isinstance(value, str):
        return value
    try:
        if most is None:
            return mask_keys(json.dumps(value, ensure_ascii=False))
        parts: list[str] = []
        size = 0
        for part in json.JSONEncoder(ensure_ascii=False).iterencode(value):
            parts.append(part)
            size += len(part)
            if size > most:
                break
        return mask_keys("".join(parts))
    except MISREAD:
        return UNREADABLE


def without_secrets(value: Any, name: str = "") -> Any:
    """Return a JSON value with masked secrets, to compare it with another one."""
    if is_masked(name, value):
        return MASK
    if not isinstance(value, dict | list):
        return value
    try:
        text = json.dumps(value, ensure_ascii=False)
        masked = mask_keys(text)
        return value if masked == text else read_json(masked.encode())
    except MISREAD:
        return UNREADABLE


def is_masked(name: str, value: Any) -> bool:
    """Return whether a value is masked because its name is that of a secret."""
    return not (value is None or isinstance(value, bool)) and names_secret(name)


def as_command(*words: str, **options: str | None) -> str:
    """Return a command that a person can paste into a shell, with every word quoted as it must be.

    Args:
        words: the command and its arguments.
        options: long options with their values, `_` for the hyphen; those without a value are left out.
    """
    given: Mapping[str, str] = {name: value for name, value in options.items() if value}
    parts: Iterable[str] = (*words, *(part for name, value in given.items() for part in (_option(name), value)))
    return " ".join(map(_quoted, parts))


def _option(name: str) -> str:
    return "--" + name.strip("_").replace("_", "-")


def _quoted(word: str) -> str:
    if word and _PLAIN.issuperset(word):
        return word
    if visible(word) == word and "\n" not in word and "\t" not in word:
        return "'" + word.replace("'", "'\\''") + "'"
    # A shell reads $'…' with escapes, so that no control character is pasted.
    return "$'" + "".join(map(_escaped, word)) + "'"


def _escaped(char: str) -> str:
    if char in "'\\":
        return "\\" + char
    if char == "\n":
        return "\\n"
    if char == "\t" or visible(char) != char:
        return "".join(f"\\x{byte:02x}" for byte in char.encode(errors="replace"))
    return char
