"""Compares the contents of two records field by field."""

from __future__ import annotations

from typing import Any

from orchestrator.memory.model import Json, ValueChange


def compare(previous: Json, current: Json) -> dict[str, ValueChange]:
    """Return how each field of two JSON objects differs; other contents count as one field, `content`."""
    before, after = _fields(previous), _fields(current)
    changes = {name: _compare(before[name], value) for name, value in after.items() if name in before}
    changes |= {
        name: ValueChange("added", None, value, changed=True) for name, value in after.items() if name not in before
    }
    return changes | {
        name: ValueChange("removed", value, None, changed=True) for name, value in before.items() if name not in after
    }


def _compare(previous: Json, current: Json) -> ValueChange:
    if not _is_number(previous) or not _is_number(current):
        changed = previous != current or type(previous) is not type(current)
        return ValueChange("other", previous, current, changed=changed)
    change = current - previous
    percent = None if previous == 0 else change / abs(previous) * 100
    return ValueChange("number", previous, current, changed=change != 0, change=change, percent=percent)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _fields(content: Json) -> dict[str, Json]:
    return content if isinstance(content, dict) else {"content": content}
