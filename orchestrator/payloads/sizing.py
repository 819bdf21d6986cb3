"""Estimates the size of a value before it is encoded, so that a large one is encoded in a thread."""

from __future__ import annotations

from typing import Any, Final

SMALL_BYTES: Final = 262_144
"""Encoding less takes about a millisecond."""
_ITEM_BYTES: Final = 8
"""Least weight of a value: a number, or the marks around a text."""


def is_small(value: Any) -> bool:
    """Return whether the JSON of a value is surely quick to encode; looks at no more of it than that takes."""
    left = SMALL_BYTES
    stack = [value]
    while stack:
        item = stack.pop()
        left -= _ITEM_BYTES
        if isinstance(item, str | bytes | bytearray):
            left -= len(item)
        elif isinstance(item, dict):
            left -= _ITEM_BYTES * len(item)
            if left >= 0:
                stack.extend(item)
                stack.extend(item.values())
        elif isinstance(item, list | tuple | set | frozenset):
            left -= _ITEM_BYTES * len(item)
            if left >= 0:
                stack.extend(item)
        elif hasattr(item, "__dict__") and not isinstance(item, type):
            # A model or a dataclass.
            stack.extend(vars(item).values())
        if left < 0:
            return False
    return True
