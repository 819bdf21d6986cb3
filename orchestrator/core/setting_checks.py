"""Places and checks of settings that are read with and without their models."""

from __future__ import annotations

from typing import Final

from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import check_name

SYSTEM_FILE: Final = "/etc/orchestrator/orchestrator.toml"
SYSTEM_SECRETS: Final = "/run/secrets"


def check_prefix(prefix: str) -> str:
    """Return a prefix.

    Raises:
        ValueError: it is none.
    """
    parts = prefix.split(":")
    safe = all(part and part.isascii() and part.replace("-", "").replace("_", "").isalnum() for part in parts)
    if len(parts) != 3 or not safe or len(prefix) > 128:
        raise ValueError("must be three parts app:env:tenant of letters, digits, - and _, such as shop:prod:acme")
    return prefix


def check_pool(pool: str) -> str:
    """Return the name of a pool.

    Raises:
        ValueError: it is none.
    """
    try:
        return check_name("pool", pool)
    except InvalidInput:  # its message shows the value, which might be a URL in the wrong place
        raise ValueError("must be 1 to 128 letters, digits or . _ @ : - and begin with a letter or digit") from None
