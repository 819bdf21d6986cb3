"""Texts of agents on pages: markup is text, and no character is invisible."""

from __future__ import annotations

from jinja2 import DictLoader

from orchestrator.dashboard.rendering import STATES, make_environment, render_regions, size, visible


def test_invisible_characters_are_spelled_out() -> None:
    """Marks of direction, control characters, zero widths, tags and lone surrogates."""
    assert visible("a\u202eb\x1b[0m\u200b\U000e0041\ud800\x00") == "a\\u202eb\\x1b[0m\\u200b\\U000e0041\\ud800\\x00"
    assert visible("two\nlines\tand ümläut 漢字") == "two\nlines\tand ümläut 漢字"


def test_markup_is_text() -> None:
    """Every value is escaped, also behind a filter."""
    rendered = make_environment().from_string("<b>{{ x|visible }}{{ x }}</b>").render(x="<script>&\"'")
    assert "<script>" not in rendered
    assert rendered.count("&lt;script&gt;") == 2


def test_each_state_has_its_icon() -> None:
    """No two states look the same but for their words."""
    icons = [icon for icon, _ in STATES.values()]
    assert len(set(icons)) == len(icons)


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


def test_regions_share_what_the_page_defines() -> None:
    """A region rendered alone, for a patch, has the macros and variables of its template."""
    environment = make_environment()
    environment.loader = DictLoader({
        "base": "<main>{% block main %}{% endblock %}</main>",
        "page": "{% extends 'base' %}{% macro twice(text) %}{{ text }}{{ text }}{% endmacro %}{% set end = '.' %}"
        "{% block main %}<p>{% block region_a %}{{ twice(said) }}{{ end }}{% endblock %}</p>{% endblock %}",
    })  # fmt: skip
    template = environment.get_template("page")
    assert template.render(said="<x>") == "<main><p>&lt;x&gt;&lt;x&gt;.</p></main>"
    assert render_regions(template, {"said": "<x>"}) == {"a": "&lt;x&gt;&lt;x&gt;."}
