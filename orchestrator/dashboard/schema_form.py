"""Makes the fields of a form from the JSON schema of a skill's arguments, and arguments from what was typed.

Texts, numbers, flags and enumerations have fields of their own; every other type is a JSON text area. The worker
validates the arguments with the skill's own types; what is checked here saves a task that it would refuse.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Any, Final, Literal

from orchestrator.core.payload import decode_json, encode_json
from orchestrator.dashboard.rendering import plain_json, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

STEM: Final = "arg."
MOST_FIELDS: Final = 100
MOST_CHOICES: Final = 200
_MAX_REFS: Final = 10
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,300}")
_BOUNDS: Final[Sequence[tuple[str, Callable[[Any, Any], bool], str]]] = (
    ("minimum", ge, "at least"),
    ("exclusiveMinimum", gt, "more than"),
    ("maximum", le, "at most"),
    ("exclusiveMaximum", lt, "less than"),
)
Kind = Literal["text", "integer", "number", "boolean", "choice", "json"]
_KINDS: Final[Mapping[str, Kind]] = {"string": "text", "integer": "integer", "number": "number", "boolean": "boolean"}
_WORDS: Final[Mapping[Kind, str]] = {
    "text": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "choice": "one of these",
    "json": "JSON",
}


@dataclass(frozen=True, slots=True)
class FormField:
    """One argument.

    Attributes:
        name: of the argument.
        kind: which control it has.
        required: it has no default.
        nullable: null is allowed; an empty field means it if there is no default.
        choices: JSON texts of an enumeration.
        hint: type, limits, default and description, for people.
        schema: its part of the schema.
    """

    name: str
    kind: Kind
    required: bool
    nullable: bool
    choices: tuple[str, ...]
    hint: str
    schema: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Name of the control."""
        return STEM + self.name


@dataclass(frozen=True, slots=True)
class Typed:
    """Arguments as they were typed: those that could be read, and what is wrong with the others, by name."""

    args: Mapping[str, Any]
    errors: Mapping[str, str]


def fields_of(schema: Mapping[str, Any] | None) -> tuple[FormField, ...] | None:
    """Return the fields for a schema; None if it describes no named arguments, or too many for a form."""
    if not isinstance(schema, dict) or not isinstance(properties := schema.get("properties", {}), dict):
        return None
    if len(properties) > MOST_FIELDS or (not properties and schema.get("additionalProperties", False) is not False):
        return None
    required, defs = schema.get("required", ()), schema.get("$defs", {})
    return tuple(_field(name, part, required=name in required, defs=defs) for name, part in properties.items())


def _field(name: str, part: Any, *, required: bool, defs: Mapping[str, Any]) -> FormField:
    whole = part if isinstance(part, dict) else {}
    inner, nullable = _without_null(_resolved(whole, defs), defs)
    kind, choices = _kind_of(inner)
    return FormField(name, kind, required, nullable, choices, _hint(kind, whole, inner, required=required), inner)


def _resolved(part: Mapping[str, Any], defs: Mapping[str, Any]) -> Mapping[str, Any]:
    for _ in range(_MAX_REFS):
        name = part.get("$ref")
        if not isinstance(name, str):
            break
        found = defs.get(name.removeprefix("#/$defs/"))
        if not isinstance(found, dict):
            break
        part = {**found, **{key: value for key, value in part.items() if key != "$ref"}}
    return part


def _without_null(part: Mapping[str, Any], defs: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """Return `X` of `X | None`, and whether null is allowed."""
    options = part.get("anyOf")
    if not isinstance(options, list):
        return part, part.get("type") == "null"
    others = [one for one in options if isinstance(one, dict) and one.get("type") != "null"]
    if len(others) == len(options) or len(others) != 1:
        return part, len(others) < len(options)
    return _resolved(others[0], defs), True


def _kind_of(part: Mapping[str, Any]) -> tuple[Kind, tuple[str, ...]]:
    listed = [part["const"]] if "const" in part else part.get("enum")
    if isinstance(listed, list) and 0 < len(listed) <= MOST_CHOICES:
        return "choice", tuple(_json(one) for one in listed)
    kind = part.get("type")
    return _KINDS.get(kind, "json") if isinstance(kind, str) else "json", ()


def _hint(kind: Kind, whole: Mapping[str, Any], inner: Mapping[str, Any], *, required: bool) -> str:
    said = [_WORDS[kind]]
    named = (("minimum", "at least"), ("exclusiveMinimum", "more than"), ("maximum", "at most"),
             ("exclusiveMaximum", "less than"), ("minLength", "characters, at least"),
             ("maxLength", "characters, at most"), ("pattern", "pattern"), ("format", "format"))  # fmt: skip
    said += [f"{words} {inner[key]}" for key, words in named if isinstance(inner.get(key), int | float | str)]
    if not required:
        said.append(f"default {_json(whole['default'])[:200]}" if "default" in whole else "optional")
    text = whole.get("description") or inner.get("description") or ""
    return ", ".join(said) + (f". {text}" if text else "")


def _json(value: Any) -> str:
    return plain_json(encode_json("a value", value, max_bytes=1 << 20, max_depth=100).decode())


# --------------------------------------------------------------------------------------------------- from and to texts


def read_typed(fields: Sequence[FormField], form: Mapping[str, str]) -> Typed:
    """Return the arguments that a form has, and what is wrong with it."""
    args: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for field in fields:
        text = form.get(field.key, "").replace("\r\n", "\n")
        if not text.strip() and not (field.kind == "text" and field.required):
            if field.required and field.nullable:
                args[field.name] = None
            elif field.required:
                errors[field.name] = f"is required: {_WORDS[field.kind]}"
            continue
        try:
            args[field.name] = _checked(field, _read(field, text))
        except (ValueError, RecursionError) as wrong:
            errors[field.name] = str(wrong)
    return Typed(args, errors)


def _read(field: FormField, text: str) -> Any:
    match field.kind:
        case "text":
            return text
        case "integer":
            try:
                return int(text.strip())
            except ValueError:
                raise ValueError("must be a whole number, such as 7") from None
        case "number":
            return _number(text.strip())
        case "boolean":
            if text not in {"true", "false"}:
                raise ValueError("must be true or false")
            return text == "true"
        case "choice":
            if text not in field.choices:
                raise ValueError(f"must be one of {', '.join(field.choices)[:500]}")
    try:
        return decode_json(text.encode())
    except (ValueError, RecursionError):
        raise ValueError('is not JSON, such as {"name": "Ada"} or [1, 2] or "text"') from None


def _number(text: str) -> float:
    try:
        # A whole number keeps all its digits.
        number = int(text) if _WHOLE.fullmatch(text) else float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError("must be a number, such as 0.5")
    return number


def _checked(field: FormField, value: Any) -> Any:
    limits = field.schema
    if field.kind in {"integer", "number"}:
        for key, compare, words in _BOUNDS:
            limit = limits.get(key)
            if isinstance(limit, int | float) and not compare(value, limit):
                raise ValueError(f"must be {words} {limit}")
    if field.kind == "text":
        least, most = limits.get("minLength"), limits.get("maxLength")
        if isinstance(least, int) and len(value) < least:
            raise ValueError(f"must have at least {least} characters")
        if isinstance(most, int) and len(value) > most:
            raise ValueError(f"must have at most {most} characters, and has {len(value)}")
    return value


def texts_of(fields: Sequence[FormField], args: Mapping[str, Any]) -> dict[str, str]:
    """Return what the controls show for arguments, for a form that submits them again.

    Raises:
        ValueError: a text has invisible characters, which a control would not show.
    """
    shown: dict[str, str] = {}
    for field in fields:
        if field.name not in args:
            continue
        value = args[field.name]
        if value is None:
            shown[field.key] = "" if field.kind != "json" or field.nullable else "null"
        else:
            text = value if field.kind == "text" and isinstance(value, str) else _json(value)
            if visible(text) != text:
                raise ValueError(f"{field.name} has invisible characters")
            shown[field.key] = text
    return shown
