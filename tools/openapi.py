"""Writes the OpenAPI document of the HTTP API from its operations: `make generate`.

The types of answers are those of views. They import what they annotate with for type checkers only, so that their
annotations are read here with those imports, and not when the dashboard runs.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import sys
import types
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, Final, Literal, Union, get_args, get_origin

from orchestrator.dashboard.api import changing, reading, replay_reading, session_reading
from orchestrator.dashboard.api.kept_answers import HEADER, MOST_CHARS
from orchestrator.dashboard.api.operation import MOST_CHARS as MOST_QUERY_CHARS
from orchestrator.dashboard.api.operation import OPERATIONS, Operation, QueryParameter
from orchestrator.dashboard.api.problems import PREFIX, PROBLEM_TYPE
from orchestrator.dashboard.api.replies import JSON_TYPE, fields_of, has_fields, is_free
from orchestrator.dashboard.api.streams import DOCUMENT, EVENTS
from orchestrator.dashboard.guard import MAX_BODY
from orchestrator.dashboard.identity import ROLE_OF_DANGER
from orchestrator.tasks.model import TaskEvent

assert changing.__name__  # the modules declare their operations at import
assert reading.__name__
assert session_reading.__name__
assert replay_reading.__name__

ABOUT: Final = (
    "What the pages of the dashboard show, and what its forms do. Authenticate with a token of `orc web token make`. "
    "Lists go on with `after`, which is the `cursor` of the page before. A POST needs an `Idempotency-Key`."
)
PROBLEMS: Final = {
    "400": "A part of the request is missing or wrong.",
    "401": "The request has no valid token.",
    "403": "The role or the scope of the token does not allow it, or the dashboard is read-only.",
    "404": "The thing does not exist, or the token may not see it.",
    "409": "The pool refuses it, or holds damaged data.",
    "413": f"The request has more than {MAX_BODY} bytes.",
    "421": "The dashboard is not reached by this host name.",
    "422": f"The {HEADER} was used with another request.",
    "429": "The login, or the dashboard, has too many streams open.",
    "503": "Redis does not answer.",
}
OF_POST: Final = {"413", "422"}
_REF: Final = "#/components/schemas/{model}"


def document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    schemas: dict[str, Any] = {
        "Problem": {
            "type": "object",
            "description": "RFC 9457.",
            "properties": {
                "type": {"type": "string"},
                "title": {"type": "string"},
                "status": {"type": "integer"},
                "detail": {"type": "string", "description": "What happened and what to do."},
                "error": {"type": "string", "description": "Name of the error for programs."},
            },
            "required": ["type", "title", "status", "detail"],
        }
    }
    problem = _REF.format(model="Problem")
    paths: dict[str, dict[str, Any]] = {}
    for one in sorted(OPERATIONS, key=lambda one: (one.path, one.method)):
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Orchestrator", "version": "1", "description": ABOUT},
        "servers": [{"url": PREFIX, "description": "The dashboard that sends this document, with its base path."}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "responses": {
                code: {"description": text, "content": {PROBLEM_TYPE: {"schema": {"$ref": problem}}}}
                for code, text in PROBLEMS.items()
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def rendered() -> str:
    """Return the document as its file has it."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def _operation(one: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    summary, _, rest = one.text.partition("\n\n")
    told = " ".join(rest.split())
    if one.danger is not None:
        told += f" Class {one.danger}: needs the role {ROLE_OF_DANGER[one.danger].word}."
    answers = {
        code: {"$ref": f"#/components/responses/{code}"}
        for code in PROBLEMS
        if (one.method == "POST" or code not in OF_POST) and (one.media == EVENTS or code != "429")
    }
    content: Any = {"schema": {} if one.reply is None else _schema(one.reply, schemas)}
    if one.media == EVENTS:
        data = {"type": "string", "contentMediaType": JSON_TYPE, "contentSchema": _schema(TaskEvent, schemas)}
        of_task = {"properties": {"id": {"type": "string"}, "data": data}, "required": ["id", "data"]}
        last = {"properties": {"event": {"enum": ["ended", "bye"]}}, "required": ["event"]}
        content = {"schema": {"type": "object", "anyOf": [of_task, last]}}
    found: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{one.method.lower()}{one.path}").strip("_"),
        "summary": " ".join(summary.split()),
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in _names(one.path)
            ),
            *map(_parameter, one.query),
        ],
        "responses": {"200": {"description": "Done.", "content": {one.media: content}}, **answers},
    }
    if told.strip():
        found["description"] = told.strip()
    if one.media == EVENTS:
        found["parameters"].append(
            {"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}, "description": "Go on behind it."}
        )
    if one.method == "POST":
        found["parameters"].append(
            {
                "name": HEADER,
                "in": "header",
                "required": True,
                "description": "New for each action; a repeat with the same key gets the first answer for a day.",
                "schema": {"type": "string", "minLength": 1, "maxLength": MOST_CHARS, "pattern": "^[!-~]+$"},
            }
        )
        assert one.body is not None
        found["requestBody"] = {"required": True, "content": {JSON_TYPE: {"schema": _body(one.body, schemas)}}}
    return found


def _names(path: str) -> list[str]:
    return re.findall(r"\{(\w+)\}", path)


def _parameter(one: QueryParameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "maxLength": MOST_QUERY_CHARS}
    if one.most is not None:
        schema = {"type": "integer", "minimum": 1, "maximum": one.most}
    elif one.choices:
        schema = {"type": "string", "enum": [str(choice) for choice in one.choices]}
    return {"name": one.name, "in": "query", "required": one.required, "description": one.text, "schema": schema}


def _body(model: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template=_REF)
    schemas |= schema.pop("$defs", {})
    schema["description"] = " ".join(inspect.cleandoc(model.__doc__ or "").split())
    schemas[model.__name__] = schema
    return {"$ref": _REF.format(model=model.__name__)}


# -------------------------------------------------------------------------------------------------------------- answers


def _schema(of: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type; those of types with fields go to `schemas`."""
    origin, args = get_origin(of), get_args(of)
    if of is Any or of is object:
        return {}
    if origin in {Union, types.UnionType}:
        return {"anyOf": [_schema(arg, schemas) for arg in args]}
    if origin is Literal:
        return {"enum": list(args)}
    if origin is tuple:
        if args[-1] is Ellipsis:
            return {"type": "array", "items": _schema(args[0], schemas)}
        items = [_schema(arg, schemas) for arg in args]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin in {dict, Mapping}:
        return {"type": "object", "additionalProperties": _schema(args[1], schemas)}
    if of is type(None):
        return {"type": "null"}
    if isinstance(of, type):
        return _of_class(of, schemas)
    raise TypeError(f"an answer has a field of type {of}, which JSON has no form for")


def _of_class(of: type[Any], schemas: dict[str, Any]) -> dict[str, Any]:
    if issubclass(of, Enum):
        return {"type": "string", "enum": [one.value for one in of]}
    simple = {str: "string", int: "integer", bool: "boolean"}
    if of in simple:
        return {"type": simple[of]}
    if of is float:
        return {"type": ["number", "null"]}
    if of is datetime:
        return {"type": "string", "format": "date-time"}
    if not has_fields(of):
        raise TypeError(f"an answer has a field of type {of}, which JSON has no form for")
    shape: type = of
    if of.__name__ not in schemas:
        schemas[of.__name__] = {}  # ends a recursion
        hints, (text, about) = resolved(of), _documentation(of)
        properties = {
            name: {**({} if is_free(written) else _schema(hints[name], schemas)), **about.get(name, {})}
            for name, written in fields_of(shape).items()
        }
        schemas[of.__name__] = {
            "type": "object", "description": text, "properties": properties, "required": list(properties)
        }  # fmt: skip
    return {"$ref": _REF.format(model=of.__name__)}


@cache
def _annotation_names(module: str) -> dict[str, Any]:
    """Return what a module imports for type checkers only."""
    names: dict[str, Any] = {}
    for node in ast.walk(ast.parse(inspect.getsource(importlib.import_module(module)))):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for each in node.body:
                if isinstance(each, ast.ImportFrom) and each.module:
                    source = importlib.import_module(each.module)
                    names |= {one.asname or one.name: getattr(source, one.name) for one in each.names}
    return names


def resolved(of: type) -> dict[str, Any]:
    """Return the types of the fields that JSON has."""
    known = {**_annotation_names(of.__module__), **vars(sys.modules[of.__module__])}
    return {name: eval(written, known) for name, written in fields_of(of).items() if not is_free(written)}


def _documentation(of: type) -> tuple[str, dict[str, dict[str, str]]]:
    """Return the text of a docstring, and those of its attributes."""
    text, _, attributes = inspect.cleandoc(of.__doc__ or "").partition("\n\nAttributes:\n")
    about: dict[str, dict[str, str]] = {}
    for found in re.finditer(r"^    (\w[\w, ]*): ((?:.|\n(?!    \w[\w, ]*: ))*)", attributes, re.MULTILINE):
        for name in found[1].split(", "):
            about[name] = {"description": " ".join(found[2].split())}
    return " ".join(text.split()), about


if __name__ == "__main__":
    DOCUMENT.write_text(rendered(), encoding="utf-8")
