"""Commands of vector sets, which Redis has from 8.0 on. An element is `NUMBER:ID` of a record's vector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.store.calls import Argument


VISIBLE: Final = '.k != ""'
"""Filter that each vector with attributes meets."""
_DIGITS: Final = 16
"""Digits of the largest number, which is a double."""


def element_of(number: int, id_: str) -> str:
    """Return the element of a record's vector."""
    return f"{number}:{id_}"


def split_element(element: bytes) -> tuple[int, str]:
    """Return number and id of an element; number 0 for a foreign one."""
    number, _, id_ = element.decode(errors="backslashreplace").partition(":")
    return (int(number), id_) if number.isascii() and number.isdigit() and len(number) <= _DIGITS else (0, id_)


def add_command(key: str, floats: bytes, element: str, *, kind: str, action: str, step: int) -> Sequence[Argument]:
    """Return the command that adds a vector with what filters compare; kind and action are encoded as in keys.

    CAS looks for neighbours in a thread: other clients wait for 0.3 to 0.5 ms instead of 1 to 2.
    """
    attributes = msgspec.json.encode({"k": kind, "a": action, "s": step})
    return ("VADD", key, "FP32", floats, element, "CAS", "SETATTR", attributes)


def remove_command(key: str, element: str | bytes) -> Sequence[Argument]:
    """Return the command that removes a vector."""
    return ("VREM", key, element)


def hide_command(key: str, element: str | bytes) -> Sequence[Argument]:
    """Return the command that makes filtered searches pass over a vector: it loses its attributes."""
    return ("VSETATTR", key, element, "")


def filter_expression(
    *, kinds: Sequence[str] = (), actions: Sequence[str] = (), since: int | None = None, until: int | None = None
) -> str:
    """Return the expression that elements with one of these kinds and actions meet, in a range of steps.

    Names are encoded as in keys, so that none has a quote or a backslash. Empty without conditions.
    """
    parts = []
    for attribute, names in (("k", kinds), ("a", actions)):
        if names:
            parts.append(f".{attribute} in [" + ", ".join([f'"{name}"' for name in names]) + "]")
    parts += [] if since is None else [f".s >= {since}"]
    parts += [] if until is None else [f".s <= {until}"]
    return " and ".join(parts)


def search_command(key: str, floats: bytes, count: int, *, expression: str = "", effort: int = 0) -> Sequence[Argument]:
    """Return the command that finds the nearest vectors.

    Args:
        key: of the set.
        floats: the vector.
        count: number of vectors.
        expression: condition that they must meet.
        effort: number of vectors that the server looks at to find some that meet it.
    """
    filtered = ("FILTER", expression, "FILTER-EF", max(effort, 1)) if expression else ()
    return ("VSIM", key, "FP32", floats, "COUNT", count, *filtered)


def parse_elements(reply: Any) -> list[tuple[int, str]]:
    """Convert the reply of a search to numbers and ids."""
    return [split_element(element) for element in reply]
