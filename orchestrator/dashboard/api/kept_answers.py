"""Keeps the answers to requests with an `Idempotency-Key`, so that a repeat gets the same answer and changes nothing.

A key gives its request the id of the command, task or record that it makes. When the answer was lost, because Redis or
this process ended, the repeat goes on under the same id, and Redis refuses what it has done before.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec

from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import new_task_id
from orchestrator.core.reading import json_reader

if TYPE_CHECKING:
    from starlette.requests import Request

    from orchestrator.dashboard.identity import Identity
    from orchestrator.services import Services

HEADER: Final = "Idempotency-Key"
MOST_CHARS: Final = 255
KEPT_S: Final = 86_400


class KeyReused(Exception):
    """An `Idempotency-Key` was used before with another request."""


class KeptRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request with a key.

    Attributes:
        digest: of its method, path and body.
        id: of what it makes.
        answer: JSON text; None before the first answer.
    """

    digest: str
    id: str
    answer: str | None = None


_read = json_reader(KeptRequest)


def read_key(request: Request) -> str:
    """Return the key of a request.

    Raises:
        InvalidInput: it has none, or not one of 1 to 255 visible characters.
    """
    key = request.headers.get(HEADER, "")
    if not (0 < len(key) <= MOST_CHARS and key.isascii() and key.isprintable()):
        raise InvalidInput(
            f"the request needs the header {HEADER}: 1 to {MOST_CHARS} ASCII characters that are new for each action, "
            "such as a UUID; a repeat with the same key gets the first answer"
        )
    return key


async def claim(services: Services, identity: Identity, key: str, request: Request, body: bytes) -> KeptRequest:
    """Return what is kept of the first request with a key: this one, or an earlier one that was the same.

    Raises:
        KeyReused: the key was used with another request.
    """
    path = str(request.scope["path"])
    new = KeptRequest(sha256(b"\0".join((request.method.encode(), path.encode(), body))).hexdigest(), new_task_id())
    place = _place(services, identity, key)
    stored = await services.store.execute("SET", place, msgspec.json.encode(new), "EX", KEPT_S, "NX", "GET")
    if stored is None:
        return new
    first = _read(stored)
    if first.digest != new.digest:
        raise KeyReused(f"{HEADER} {key!r} was used with another request in the last day; use a new key")
    return first


async def keep(services: Services, identity: Identity, key: str, answered: KeptRequest) -> None:
    """Keep the answer to a request for a day from its claim."""
    place = _place(services, identity, key)
    await services.store.execute("SET", place, msgspec.json.encode(answered), "XX", "KEEPTTL")


def _place(services: Services, identity: Identity, key: str) -> str:
    return services.keys.web_request(sha256(f"{identity.name}\0{key}".encode()).hexdigest())
