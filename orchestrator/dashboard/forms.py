"""Reads forms."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from orchestrator.core.errors import InvalidInput

if TYPE_CHECKING:
    from starlette.requests import Request


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form as browsers send it without files; empty ones are left out.

    Raises:
        InvalidInput: it is encoded otherwise, or not UTF-8.
    """
    body = await request.body()
    if not body:
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise InvalidInput("the form must be sent as application/x-www-form-urlencoded")
    try:
        fields = parse_qsl(body.decode(), errors="strict", max_num_fields=200)
    except ValueError:
        raise InvalidInput("the form is not valid UTF-8") from None
    return dict(fields)
