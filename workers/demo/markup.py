"""Builds HTML and SVG. Escapes every text that was not built here."""

from __future__ import annotations

from html import escape
from typing import TypeAlias

from orchestrator.workers.demo.text_format import printable

VOID = frozenset({"meta", "br", "hr", "wbr", "input"})


class Markup(str):
    """Text that is markup already, made by `el`, `join` or `raw`."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | None"


def el(tag: str, *children: Child, **attributes: str | float | None) -> Markup:
    """Build one element.

    Args:
        tag: name of the element.
        *children: texts (escaped), numbers, markup; None is left out.
        **attributes: values (escaped); None leaves the attribute out. A trailing underscore is dropped, other
            underscores become hyphens: `class_`, `stroke_width`.
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
    """Concatenate children."""
    return Markup(
        separator.join(
            child if isinstance(child, Markup) else escape(_text(child)) for child in children if child is not None
        )
    )


def raw(trusted: str) -> Markup:
    """Mark text of this program, such as a style sheet, as markup."""
    return Markup(trusted)


def _text(value: str | float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else printable(str(value))
