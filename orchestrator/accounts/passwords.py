"""Hashes passwords with scrypt."""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import Final

COST: Final = 2**14
"""scrypt's n. With r = 8 and p = 5 a check takes 16 MiB; OWASP's password storage cheat sheet names these three."""
BLOCK: Final = 8
PARALLEL: Final = 5
LEAST_CHARS: Final = 8


def hash_password(password: str) -> str:
    """Return `scrypt$n$r$p$salt$hash`, the last two in hexadecimal digits."""
    salt = os.urandom(16)
    return f"scrypt${COST}${BLOCK}${PARALLEL}${salt.hex()}${_scrypt(password, salt, COST, BLOCK, PARALLEL).hex()}"


def matches(password: str, stored: str) -> bool:
    """Return whether a password has this hash; a stored text that is no hash matches none."""
    try:
        kind, n, r, p, salt, digest = stored.split("$")
        if kind != "scrypt" or int(n) > COST * 16 or int(r) > 32 or int(p) > 16:
            return False
        return hmac.compare_digest(
            _scrypt(password, bytes.fromhex(salt), int(n), int(r), int(p)), bytes.fromhex(digest)
        )
    except ValueError:
        return False


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, maxmem=256 << 20)
