"""Reads HTML as a browser would, and insists on balanced elements."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Final

VOID: Final = frozenset({"meta", "br", "hr", "wbr", "img", "input", "link"})


class Page(HTMLParser):
    """What a browser sees.

    Attributes:
        tags: every element with its attributes, in order.
        text: all text.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == [], f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost element, and no other."""
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note text."""
        self.text += data
