"""Checks the address of a Redis server."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

_SCHEMES: Final = frozenset({"redis", "rediss", "unix"})


def url_problem(url: str) -> str | None:
    """Return why a URL is not the address of a server, without any text of the URL; None if it is one."""
    scheme, separator, rest = url.partition("://")
    if scheme in {"redis+sentinel", "redis+cluster"}:
        return f"{scheme}:// is not supported yet; give the address of one server as redis://host:port/0"
    if scheme not in _SCHEMES or not separator or not rest:
        return "must be redis://host:port/db, rediss://… or unix:///path/to/socket"
    if not _is_whole(url):
        return (
            "the host or the port is invalid; percent-encode special characters of the user and the password: "
            "/ as %2F, ? as %3F, # as %23, [ as %5B, ] as %5D"
        )
    return None


def _is_whole(url: str) -> bool:
    """Return whether host and port are valid, and no / ? or # cuts the password."""
    try:
        parts = urlsplit(url)
        _ = parts.hostname, parts.port
    except ValueError:  # its message has a part of the URL, which may be one of the password
        return False
    if "@" in parts.netloc:
        return True
    # The path of a socket may have an @, and has no host before it.
    cut = parts.netloc if parts.scheme == "unix" else True
    return not (cut and "@" in f"{parts.path}{parts.query}{parts.fragment}")
