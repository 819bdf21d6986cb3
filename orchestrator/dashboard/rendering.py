r"""Renders pages: autoescaped templates, and the filters that write times, sizes and states.

Texts that agents wrote pass `visible`, which shows marks of direction, control characters and lone surrogates as
`\uXXXX`, so that none of them changes how the page around it reads.
"""

from __future__ import annotations

import json
import shlex
import unicodedata
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from orchestrator.control.commands import KINDS
from orchestrator.core.amounts import MICRO, show_amount
from orchestrator.core.durations import in_words
from orchestrator.core.plural import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jinja2 import Template

FOLDER: Final = Path(__file__).parent
STATES: Final[Mapping[str, tuple[str, str]]] = {
    "ready": ("○", "wait"),
    "scheduled": ("◷", "wait"),
    "awaiting_input": ("?", "ask"),
    "joining": ("⋈", "wait"),
    "awaiting_tasks": ("⇥", "wait"),
    "assigned": ("→", "run"),
    "running": ("▶", "run"),
    "succeeded": ("✓", "good"),
    "dead": ("✕", "bad"),
    "cancelled": ("⊘", "off"),
    "expired": ("⌛", "off"),
}
"""Icon and class of each state. The word is always beside them: neither shape nor colour alone says it."""
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def make_environment() -> Environment:
    """Return the environment of all templates."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "ago": ago,
        "state": state,
        "visible": visible,
        "exact": exact,
        "size": size,
        "count": count,
        "amount": amount,
        "counted": counted,
        "clock": clock,
        "tojson_text": lambda value: plain_json(json.dumps(value, ensure_ascii=False)),
        "milliseconds": milliseconds,
        "segment": lambda text: quote(str(text), safe=""),
        "query": lambda values: urlencode({name: value for name, value in values.items() if value not in (None, "")}),
    }
    environment.globals["command_kinds"] = KINDS
    return environment


def render_regions(template: Template, values: Mapping[str, object]) -> dict[str, str]:
    """Render the parts of a page that change while it is open: its blocks `region_NAME`, by their names."""
    context = template.new_context(dict(values))
    # The first step of a rendering makes the macros and variables that blocks share.
    next(template.root_render_func(context))
    return {
        name.removeprefix("region_"): "".join(block(context))
        for name, block in template.blocks.items()
        if name.startswith("region_")
    }


def command_line(*words: str) -> str:
    """Return the command of `orc` that does or shows the same as a page, for a shell."""
    return shlex.join(["orc", *words])


def visible(text: object) -> str:
    """Return a text without invisible characters, which it spells out; newlines and tabs stay."""
    said = str(text)
    if said.isascii() and said.isprintable():
        return said
    return "".join(
        char
        if char in "\n\t" or unicodedata.category(char) not in _UNSEEN
        else char.encode("unicode_escape").decode()
        if not "\ud800" <= char <= "\udfff"
        else f"\\u{ord(char):04x}"
        for char in said
    )


def plain_json(text: str) -> str:
    """Return JSON that has the same value and spells invisible characters out."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char
        if char in "\n\t" or unicodedata.category(char) not in _UNSEEN
        else json.dumps(char)[1:-1]
        if char != "\x7f"
        else "\\u007f"
        for char in text
    )


def clock(at: datetime) -> Markup:
    """Return a time of day, with the exact time as its title."""
    exact = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time title="{0}">{1}</time>').format(exact, exact[11:19])


def exact(text: object) -> Markup:
    """Return a text for the value of a field that is sent back as it is: invisible characters as references."""
    return Markup("").join(
        Markup("&#{};").format(ord(char)) if unicodedata.category(char) in _UNSEEN else escape(char)
        for char in str(text)
    )


def ago(at: datetime | None) -> Markup:
    """Return a time as `6 min ago`, with the exact one as its title; the browser keeps it current."""
    if at is None:
        return Markup('<span class="none">-</span>')
    at = at.astimezone(UTC)
    seconds = (datetime.now(UTC) - at).total_seconds()
    said = f"{in_words(seconds)} ago" if seconds >= 0 else f"in {in_words(-seconds)}"
    exact = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(exact, said)


def state(name: object) -> Markup:
    """Return a state as icon and word."""
    word = str(getattr(name, "value", name))
    icon, kind = STATES.get(word, ("·", "off"))
    return Markup('<span class="state {}"><span aria-hidden="true">{}</span> {}</span>').format(
        kind, icon, word.replace("_", " ")
    )


def size(number: int) -> str:
    """Return a number of bytes as `4.1 kB`."""
    value: float = number
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError


def milliseconds(number: float | None) -> str:
    """Return a time as `12 ms` or `3 s`; `-` without one."""
    if number is None:
        return "-"
    return f"{number:.0f} ms" if number < 1000 else in_words(number / 1000)


def amount(number: float) -> str:
    """Return an amount of a budget without needless digits, with separators: `2,000,000` or `0.05`."""
    return show_amount(round(number * MICRO), grouped=True)


def count(number: int) -> str:
    """Return a number with separators."""
    return f"{number:,}"
