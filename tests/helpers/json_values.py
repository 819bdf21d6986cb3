"""JSON values for property tests, and the equality that fidelity means: `1` is not `1.0`, `0.0` is not `-0.0`."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st


def json_values(*, max_leaves: int = 20) -> st.SearchStrategy[Any]:
    """Any value that JSON holds exactly: awkward numbers, empty containers, texts of all planes."""
    texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    leaves = (
        st.none()
        | st.booleans()
        | st.integers(min_value=-(2**70), max_value=2**70)
        | st.sampled_from([0, -0.0, 1.0, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 1e308, 5e-324, "", [], {}])
        | st.floats(allow_nan=False, allow_infinity=False)
        | texts
    )
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
        max_leaves=max_leaves,
    )


def alike(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal and of the same types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(alike(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, float):
        return math.copysign(1, one) == math.copysign(1, other) and one == other
    return bool(one == other)
