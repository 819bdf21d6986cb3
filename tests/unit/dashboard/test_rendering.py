"""Texts of agents on pages: markup is text, and no character is invisible."""

from __future__ import annotations

from orchestrator.dashboard.rendering import make_environment, size, visible


def test_invisible_characters_are_spelled_out() -> None:
    """Marks of direction, control characters, zero widths, tags and lone surrogates."""
    assert visible("a\u202eb\x1b[0m\u200b\U000e0041\ud800\x00") == "a\\u202eb\\x1b[0m\\u200b\\U000e0041\\ud800\\x00"
    assert visible("two\nlines\tand ümläut 漢字") == "two\nlines\tand ümläut 漢字"


def test_markup_is_text() -> None:
    """Every value is escaped, also behind a filter."""
    rendered = make_environment().from_string("<b>{{ x|visible }}{{ x }}</b>").render(x="<script>&\"'")
    assert "<script>" not in rendered
    assert rendered.count("&lt;script&gt;") == 2


def test_sizes() -> None:
    """Bytes in the largest unit that leaves a number below 1000."""
    assert [size(number) for number in (0, 999, 1000, 4096, 20_000_000, 5 * 10**12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "4.1 kB",
        "20.0 MB",
        "5000.0 GB",
    ]
