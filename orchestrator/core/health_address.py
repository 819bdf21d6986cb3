"""Parses the address of a health server. Imports next to nothing, because the probe command uses it."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` takes longer to import than the probe to run
if TYPE_CHECKING:
    from typing import TypeAlias

    HealthAddress: TypeAlias = str | tuple[str, int]
    """Path of a unix socket, or host and port."""

LOOPBACK = "127.0.0.1"


def parse_health_address(text: str) -> HealthAddress:
    """Parse `HOST:PORT`, `[IPV6]:PORT`, `PORT` (at the loopback address) or `unix:/PATH`.

    Raises:
        ValueError: none of these.
    """
    if text.startswith("unix:"):
        path = text.removeprefix("unix:").removeprefix("//")
        # The kernel's limit, with a byte for the end.
        if not path.startswith("/") or len(path.encode()) > 107 or "\0" in path:
            raise ValueError(
                "unix: needs an absolute path of at most 107 bytes, as in unix:/run/orchestrator/supervisor/health.sock"
            )
        return path
    host, colon, digits = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not colon:
        host = LOOPBACK
    if not host or (":" in host) != bracketed or any(sign.isspace() or sign in "/@[]" for sign in host):
        raise ValueError("must be host:port, a port of this machine's loopback address, or unix:/path")
    if not (digits.isascii() and digits.isdigit() and 1 <= int(digits) <= 65_535):
        raise ValueError("needs a port between 1 and 65535, as in 127.0.0.1:9471")
    return host, int(digits)
