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
from anyio import to_thread
from starlette.responses import Response

from orchestrator.core.reading import MISREAD
from orchestrator.core.scrubbing import MASK
from orchestrator.dashboard.api.masked_schemas import mask_schema
from orchestrator.dashboard.texts import UNREADABLE, is_masked
from orchestrator.views.hidden_keys import mask_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

JSON_TYPE: Final = "application/json"


@cache
def fields_of(shape: type) -> Mapping[str, str]:
    """Return the fields of a dataclass, a named tuple or a struct that JSON has, with their annotations as written."""
    if dataclasses.is_dataclass(shape):
        written = {field.name: str(field.type) for field in dataclasses.fields(shape)}
    else:
        # A named tuple has its annotations as references.
        written = {name: getattr(of, "__forward_arg__", str(of)) for name, of in inspect.get_annotations(shape).items()}
    return {name: of for name, of in written.items() if of not in {"bytes", "bytes | None"}}


def has_fields(shape: type) -> bool:
    """Return whether values of a type become JSON objects with the fields of the type."""
    return dataclasses.is_dataclass(shape) or hasattr(shape, "_fields") or issubclass(shape, msgspec.Struct)


def is_free(written: str) -> bool:
    """Return whether a field, by its annotation as written, may have JSON of any form."""
    return not {"Any", "Json", "JsonSchema"}.isdisjoint(re.findall(r"\w+", written))


async def encode(value: Any) -> bytes:
    """Return a view as JSON text; half a character becomes a question mark.

    Works in a thread, because what agents wrote may have megabytes. A call into C holds all threads, so that each value
    of an agent is a call of its own.
    """
    return await to_thread.run_sync(encode_now, value)


def encode_now(value: Any) -> bytes:
    """Return a view as JSON text, at once."""
    parts: list[str] = []
    _write(value, parts.append)
    return "".join(parts).encode(errors="replace")


def _write(value: Any, write: Callable[[str], None]) -> None:
    """Write the parts of a view as JSON has it: objects, arrays, texts, numbers."""
    shape: type = type(value)
    if has_fields(shape):
        fields = fields_of(shape)
        _write_object(((name, getattr(value, name), of) for name, of in fields.items()), write)
        return
    match value:
        case Enum():
            write(_dump(value.value))
        case datetime():
            write(_dump(value.isoformat()))
        case float() if not isfinite(value):
            write("null")
        case dict():
            _write_object(((str(name), one, "") for name, one in value.items()), write)
        case tuple() | list():
            between = "["
            for one in value:
                write(between)
                _write(one, write)
                between = ", "
            write("[]" if between == "[" else "]")
        case _:
            write(_dump(value))


def _write_object(members: Iterable[tuple[str, Any, str]], write: Callable[[str], None]) -> None:
    between = "{"
    for name, one, written in members:
        write(f"{between}{_dump(name)}: ")
        if is_free(written):
            write(_written_by_agents(one, name, written))
        else:
            _write(one, write)
        between = ", "
    write("{}" if between == "{" else "}")


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def reply(data: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer with a JSON text."""
    return Response(data, status, headers, JSON_TYPE)


def _written_by_agents(value: Any, name: str, written: str) -> str:
    """Return the text of a JSON value with masked secrets; a text in its place if JSON has no form for it."""
    try:
        if "JsonSchema" in written:
            return _dump(mask_schema(value))
        if is_masked(name, value):
            return _dump(MASK)
        return mask_keys(_dump(value))
    except MISREAD:
        return _dump(UNREADABLE)
