"""Builds HTML and SVG from values. Every text is escaped unless it was built here, so that nothing foreign slips in."""

from __future__ import annotations

from html import escape
from typing import TypeAlias

from workers.demo.text_format import printable

VOID = frozenset({"meta", "br", "hr", "wbr", "input"})


class Markup(str):
    """Text that is markup already. Made by `el` and `join`; anything else is escaped when it is put inside."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | None"


def el(tag: str, *children: Child, **attributes: str | float | None) -> Markup:
    """One element.

    Args:
        tag: its name.
        *children: texts (escaped), numbers, markup (kept); None is left out.
        **attributes: values (escaped); None leaves the attribute out. A trailing underscore is dropped and others
            become hyphens: `class_`, `stroke_width`, `aria_label`.
    """
    head = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_text(value), quote=True)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in VOID:
        return Markup(f"<{tag}{head}>")
    return Markup(f"<{tag}{head}>{join(*children)}</{tag}>")


def join(*children: Child, separator: str = "") -> Markup:
    """Several children one after another."""
    return Markup(
        separator.join(
            child if isinstance(child, Markup) else escape(_text(child)) for child in children if child is not None
        )
    )


def raw(trusted: str) -> Markup:
    """Markup written in this program: style sheets, nothing that was read."""
    return Markup(trusted)


def _text(value: str | float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else printable(str(value))
