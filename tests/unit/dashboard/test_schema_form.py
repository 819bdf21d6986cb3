"""Fields from the schemas of skills, and arguments from what was typed."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from orchestrator.dashboard.schema_form import Typed, fields_of, read_typed, texts_of


class Colour(enum.Enum):
    """An enumeration, which the schema has under `$defs`."""

    RED = "red"
    BLUE = "blue"


class Inner(BaseModel):
    """A type without a control of its own."""

    rows: list[int]


class Arguments(BaseModel):
    """Arguments of each kind."""

    name: Annotated[str, Field(min_length=1, max_length=5, description="Who it is for.")]
    times: Annotated[int, Field(ge=1, le=9)] = 3
    ratio: float
    loud: bool = False
    colour: Colour = Colour.RED
    kind: Literal["a", 2] = "a"
    note: str | None = None
    needed: int | None
    inner: Inner = Inner(rows=[])
    either: int | str = 1


def _fields() -> Any:
    fields = fields_of(Arguments.model_json_schema())
    assert fields is not None
    return fields


def test_kinds() -> None:
    """Texts, numbers, flags and enumerations have controls; other types are JSON."""
    assert {field.name: field.kind for field in _fields()} == {
        "name": "text", "times": "integer", "ratio": "number", "loud": "boolean", "colour": "choice", "kind": "choice",
        "note": "text", "needed": "integer", "inner": "json", "either": "json",
    }  # fmt: skip
    by_name = {field.name: field for field in _fields()}
    assert by_name["colour"].choices == ('"red"', '"blue"')
    assert by_name["kind"].choices == ('"a"', "2")
    assert [field.name for field in _fields() if field.required] == ["name", "ratio", "needed"]
    assert by_name["name"].hint == "text, characters, at least 1, characters, at most 5. Who it is for."
    assert by_name["times"].hint == "whole number, at least 1, at most 9, default 3"


def test_typed() -> None:
    """What was typed becomes JSON values; empty fields leave their defaults."""
    typed = {"name": "Ada", "ratio": "1e3", "needed": "", "times": " 4 ", "loud": "true", "kind": "2",
             "colour": '"blue"', "inner": '{"rows": [1]}', "note": "a\r\nb"}  # fmt: skip
    found = read_typed(_fields(), {f"arg.{name}": text for name, text in typed.items()})
    assert found == Typed(
        {"name": "Ada", "ratio": 1000.0, "needed": None, "times": 4, "loud": True, "kind": 2, "colour": "blue",
         "inner": {"rows": [1]}, "note": "a\nb"}, {},
    )  # fmt: skip
    Arguments.model_validate(found.args)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("times", "x", "must be a whole number, such as 7"),
        ("times", "1.5", "must be a whole number, such as 7"),
        ("times", "0", "must be at least 1"),
        ("times", "9" * 5000, "must be a whole number, such as 7"),
        ("ratio", "nan", "must be a number, such as 0.5"),
        ("ratio", "", "is required: number"),
        ("name", "Ada Lovelace", "must have at most 5 characters, and has 12"),
        ("name", "", "must have at least 1 characters"),
        ("loud", "yes", "must be true or false"),
        ("colour", '"green"', 'must be one of "red", "blue"'),
        ("inner", "{", 'is not JSON, such as {"name": "Ada"} or [1, 2] or "text"'),
        ("inner", "[" * 5000, 'is not JSON, such as {"name": "Ada"} or [1, 2] or "text"'),
    ],
)
def test_wrong(name: str, text: str, said: str) -> None:
    """Each has a sentence; the others stay right."""
    form = {"arg.name": "Ada", "arg.ratio": "1", f"arg.{name}": text}
    assert read_typed(_fields(), form).errors == {name: said}


def test_again() -> None:
    """Arguments go into the controls and come back as they were."""
    args = {"name": "A\nb", "times": 2, "ratio": 0.5, "loud": False, "colour": "red", "kind": 2, "needed": None,
            "note": None, "inner": {"rows": [1, 2]}, "either": "7"}  # fmt: skip
    texts = texts_of(_fields(), args)
    assert texts["arg.inner"] == '{"rows":[1,2]}'
    again = read_typed(_fields(), texts)
    assert not again.errors
    assert {**args, **again.args} == args
    with pytest.raises(ValueError, match="invisible"):
        texts_of(_fields(), {"name": "a\u202eb"})


def test_other_schemas() -> None:
    """What no form can show is None; what is damaged is JSON."""
    assert fields_of(None) is None
    assert fields_of({"type": "object", "additionalProperties": True}) is None
    assert fields_of({"properties": {f"a{n}": {} for n in range(200)}}) is None
    assert fields_of({"properties": {}}) == ()
    (loop,) = fields_of({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"$ref": "#/$defs/A"}}}) or ()
    assert loop.kind == "json"
    (odd,) = fields_of({"properties": {"a": {"type": ["string", "null"], "enum": "x", "anyOf": 3}}}) or ()
    assert odd.kind == "json"
    (hostile,) = fields_of({"properties": {"<b>\u202e": {"const": "\u202e<b>"}}}) or ()
    assert hostile.choices == ('"\\u202e<b>"',)
    assert read_typed([hostile], {hostile.key: hostile.choices[0]}).args == {"<b>\u202e": "\u202e<b>"}
