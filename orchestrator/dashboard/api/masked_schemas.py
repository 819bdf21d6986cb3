"""Masks secrets in a JSON schema: defaults, examples and constants, by the names of the properties that they are of.

A property that is named as a secret keeps its name, type and description, because these tell no value.
"""

from __future__ import annotations

from typing import Any, Final

from orchestrator.dashboard.texts import without_secrets

_NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose members are schemas, by a name."""
_ONE: Final = frozenset(
    {"items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems", "propertyNames", "contains", "not",
     "if", "then", "else"}
)  # fmt: skip
"""Keywords whose value is a schema."""
_SEVERAL: Final = frozenset({"anyOf", "allOf", "oneOf", "prefixItems"})
_VALUES: Final = frozenset({"default", "const"})
_LISTS: Final = frozenset({"enum", "examples"})
"""Keywords whose value is a list of values of the property."""


def mask_schema(schema: Any, name: str = "") -> Any:
    """Return a JSON schema with masked secrets.

    Args:
        schema: JSON value.
        name: of the property that it describes.
    """
    if not isinstance(schema, dict):
        return schema if isinstance(schema, bool) else without_secrets(schema, name)
    return {keyword: _mask(keyword, value, name) for keyword, value in schema.items()}


def _mask(keyword: str, value: Any, name: str) -> Any:
    if isinstance(value, dict) and keyword in _NAMED:
        return {each: mask_schema(inner, each) for each, inner in value.items()}
    if keyword in _ONE:
        return mask_schema(value, name)
    if isinstance(value, list) and keyword in _SEVERAL:
        return [mask_schema(inner, name) for inner in value]
    if keyword in _VALUES:
        return without_secrets(value, name)
    if isinstance(value, list) and keyword in _LISTS:
        return [without_secrets(one, name) for one in value]
    return without_secrets(value, keyword)
