"""Writes views as JSON.

A field of bytes is left out: arguments and results have addresses of their own. Values that agents wrote are masked by
the names of their keys, as on pages; of schemas, the values in them.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from datetime import datetime
from enum import Enum
from functools import cache
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import Response

from orchestrator.core.reading import MISREAD
from orchestrator.dashboard.api.masked_schemas import mask_schema
from orchestrator.dashboard.texts import UNREADABLE, without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping

JSON_TYPE: Final = "application/json"


@cache
def fields_of(shape: type) -> Mapping[str, str]:
    """Return the fields of a dataclass, a named tuple or a struct that JSON has, with their annotations as written."""
    if dataclasses.is_dataclass(shape):
        written = {field.name: str(field.type) for field in dataclasses.fields(shape)}
    else:
        written = {name: str(of) for name, of in inspect.get_annotations(shape).items()}
    return {name: of for name, of in written.items() if of not in {"bytes", "bytes | None"}}


def has_fields(shape: type) -> bool:
    """Return whether values of a type become JSON objects with the fields of the type."""
    return dataclasses.is_dataclass(shape) or hasattr(shape, "_fields") or issubclass(shape, msgspec.Struct)


def is_free(written: str) -> bool:
    """Return whether a field, by its annotation as written, may have JSON of any form."""
    return not {"Any", "Json", "JsonSchema"}.isdisjoint(re.findall(r"\w+", written))


def plain(value: Any) -> Any:
    """Return a view as JSON has it: objects, arrays, texts, numbers."""
    shape: type = type(value)
    if has_fields(shape):
        return {
            name: _written_by_agents(getattr(value, name), name, of) if is_free(of) else plain(getattr(value, name))
            for name, of in fields_of(shape).items()
        }
    match value:
        case Enum():
            return value.value
        case datetime():
            return value.isoformat()
        case float() if not isfinite(value):
            return None
        case dict():
            return {str(name): plain(one) for name, one in value.items()}
        case tuple() | list():
            return [plain(one) for one in value]
    return value


def encode(value: Any) -> bytes:
    """Return a view as JSON text; half a character becomes a question mark."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False).encode(errors="replace")


def reply(data: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer with a JSON text."""
    return Response(data, status, headers, JSON_TYPE)


def _written_by_agents(value: Any, name: str, written: str) -> Any:
    """Return a JSON value with masked secrets; a text in its place if JSON has no form for it."""
    try:
        if "JsonSchema" in written:
            value = mask_schema(value)
        else:
            value = without_secrets(list(value) if isinstance(value, tuple) else value, name)
        json.dumps(value, allow_nan=False)
    except MISREAD:
        return UNREADABLE
    return value
