"""Keeps the answers to requests with an `Idempotency-Key`, so that a repeat gets the same answer and changes nothing.

A claim gives the request the id of the command, task or record that it makes. When the answer was lost, because Redis
or this process ended, the repeat goes on under the same id, and Redis refuses what it has done before. It remembers ids
for `REMEMBERED_S`, and a claim lives as long. The first answer that is stored stands for `KEPT_S`.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from orchestrator.control.scripts import REMEMBERED_S
from orchestrator.core.errors import InvalidInput, ServerFull, StoreError
from orchestrator.core.ids import new_task_id
from orchestrator.core.reading import json_reader

if TYPE_CHECKING:
    from starlette.requests import Request

    from orchestrator.dashboard.identity import Identity
    from orchestrator.services import Services

HEADER: Final = "Idempotency-Key"
MOST_CHARS: Final = 255
_KEY: Final = re.compile(r"[!-~]+")
KEPT_S: Final = 86_400
"""How long an answer is kept."""


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
    if len(key) > MOST_CHARS or _KEY.fullmatch(key) is None:
        raise InvalidInput(
            f"the request needs the header {HEADER}: 1 to {MOST_CHARS} ASCII characters without blanks, new for each "
            "action, such as a UUID; a repeat with the same key gets the first answer"
        )
    return key


async def claim(
    services: Services, identity: Identity, key: str, request: Request, body: bytes, *, drains: bool
) -> KeptRequest:
    """Return what is kept of the first request with a key: this one, or an earlier one that was the same.

    Args:
        services: of the pool.
        identity: who sends it.
        key: of the request.
        request: the request.
        body: its body.
        drains: it is done also when Redis is full and stores no claim; its id then comes from the key alone.

    Raises:
        KeyReused: the key was used with another request.
        ServerFull: Redis stores no claim, and the request needs one.
    """
    path, store = str(request.scope["path"]), services.store
    digest = sha256(b"\0".join((request.method.encode(), path.encode(), body))).hexdigest()
    place = _place(services, identity, key, "claim")
    new = KeptRequest(digest, new_task_id())
    answered, claimed = await store.pipeline(
        [
            ("GET", _place(services, identity, key, "answer")),
            ("SET", place, msgspec.json.encode(new), "EX", REMEMBERED_S, "NX", "GET"),
        ]
    )
    if isinstance(claimed, ServerFull) and answered is None:
        earlier = await store.execute("GET", place)
        if earlier is None and not drains:
            raise claimed
        claimed = earlier or msgspec.json.encode(KeptRequest(digest, _id_of(place, digest)))
    found = claimed if answered is None else answered
    if isinstance(found, StoreError):
        raise found
    first = new if found is None else _read(found)
    if first.digest != digest:
        raise KeyReused(f"{HEADER} {key!r} was used with another request in the last day; use a new key")
    return first


async def keep(services: Services, identity: Identity, key: str, answered: KeptRequest) -> KeptRequest:
    """Keep the answer to a request, and return the one that stands: an equal request may have been answered before."""
    place = _place(services, identity, key, "answer")
    stored = await services.store.execute("SET", place, msgspec.json.encode(answered), "EX", KEPT_S, "NX", "GET")
    return answered if stored is None else _read(stored)


def _place(services: Services, identity: Identity, key: str, part: Literal["claim", "answer"]) -> str:
    sender = f"{'token' if identity.by_token else 'user'} {identity.name}"
    return services.keys.web_request(sha256(f"{sender}\0{key}\0{part}".encode()).hexdigest())


def _id_of(place: str, digest: str) -> str:
    """Return the id of a request without a claim, which its repeats have too."""
    made = sha256(f"{place} {digest}".encode()).hexdigest()
    return f"{made[:8]}-{made[8:12]}-7{made[12:15]}-8{made[15:18]}-{made[18:30]}"
