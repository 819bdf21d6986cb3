"""Masks in JSON schemas: names and types are shown, values of secrets are not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.dashboard.api.masked_schemas import mask_schema

MASK = "********"


def test_names_and_types_stay() -> None:
    """A schema without values stays as it is, whatever its arguments are named."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "token": {"type": "string", "minLength": 1, "description": "Of the mailbox."},
            "apiKey": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "account": {"$ref": "#/$defs/Credentials"},
            "flags": {"type": "array", "items": {"enum": ["a", "b"]}, "default": ["a"]},
            "free": True,
        },
        "$defs": {"Credentials": {"properties": {"password": {"type": "string"}}, "required": ["password"]}},
        "required": ["token", "account"],
        "additionalProperties": False,
    }
    assert mask_schema(schema) == schema


@pytest.mark.parametrize("name", ["token", "db_password", "apiKey"])
def test_values_of_secrets_do_not_leave(name: str) -> None:
    """Defaults, constants, choices and examples of a secret are masked, wherever the schema has them."""
    secret = {"default": "hunter2", "const": "hunter2", "enum": ["hunter2", None], "examples": ["hunter2"]}
    shown = mask_schema(
        {
            "properties": {name: {"anyOf": [secret], "type": "string", **secret}},
            "default": {name: "hunter2", "n": 1},
            "examples": [{"deep": [{name: "hunter2"}]}],
            f"x-{name}": {"default": "hunter2"},
            "$defs": {"C": {"properties": {name: {"items": secret}}}},
        }
    )
    assert "hunter2" not in json.dumps(shown)
    assert shown["properties"][name]["type"] == "string"
    assert shown["default"] == {name: MASK, "n": 1}
    assert shown["properties"][name]["enum"] == [MASK, None]


def test_what_is_no_schema() -> None:
    """Values in the place of schemas are masked by their names."""
    assert mask_schema({"properties": ["token"], "items": {"token": "hunter2"}}) == {
        "properties": ["token"],
        "items": {"token": MASK},
    }
