"""Names of the project's connections to a server."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import redis

_LABELLED: Final = re.compile(r"([^@]+)@.+/\d+/[^/:]+(:.*)?")


def connection_names(client: redis.Redis) -> list[str]:
    """Return the sorted names of all named connections without pool and version: `client`, `client:replies`, ..."""
    listed: Any = client.client_list()
    return sorted(_LABELLED.sub(r"\1\2", each["name"]) for each in listed if each["name"])
