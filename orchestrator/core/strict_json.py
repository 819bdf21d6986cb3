"""Decodes JSON that a user typed: no name twice, no NaN. Imports nothing heavy."""

from __future__ import annotations

import json
from typing import Any


class TwinNames(ValueError):
    """An object has a name twice, and parsers disagree about which value counts."""


def load_strict(text: str) -> Any:
    """Decode JSON.

    Raises:
        TwinNames: an object has a name twice.
        ValueError: it is no JSON.
        RecursionError: it is nested too deep.
    """
    return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_twins)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise TwinNames(f"the name {name!r:.80} occurs twice in one object")
            seen.add(name)
    return found
