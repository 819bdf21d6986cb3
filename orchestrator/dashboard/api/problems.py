"""Answers refused requests of the API as RFC 9457 says: what happened, to what, and what to do, as JSON."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX: Final = "/api/v1"
PROBLEM_TYPE: Final = "application/problem+json"


def is_of_api(path: str) -> bool:
    """Return whether a path, with any base path before it, is one of the API."""
    return f"{PREFIX}/" in path


def problem(status: int, text: str, *, error: str = "", headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer to a refused request.

    Args:
        status: of HTTP.
        text: what happened and what to do.
        error: name of the error for programs, as `KeyConflict`.
        headers: more headers.
    """
    told = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": text}
    if error:
        told["error"] = error
    data = json.dumps(told, ensure_ascii=False).encode(errors="replace")
    return Response(data, status, {**_added(status), **(headers or {})}, PROBLEM_TYPE)


def _added(status: int) -> Mapping[str, str]:
    match status:
        case 401:
            return {"WWW-Authenticate": "Bearer"}
        case 429 | 503:
            return {"Retry-After": "1"}
    return {}
