"""Takes secrets out of the environment of a process, so that handlers and the programs that they start do not get them.

A program reads its settings, then calls `take_secrets`. Settings that the same process reads later, such as those of a
client in a handler, still have them. The memory of the variables is overwritten, because `/proc/PID/environ` shows it
to every process of the user.
"""

from __future__ import annotations

import ctypes
import json
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_taken: Final[dict[str, str]] = {}


def take_secrets() -> None:
    """Remove the variables that hold a secret from the environment of this process, and remember them."""
    libc = None
    for name, value in secrets_in(os.environ).items():
        _taken[name] = value
        if libc is None:
            libc = ctypes.CDLL(None)
            libc.getenv.restype = ctypes.c_void_p
        address = libc.getenv(name.encode())
        if address is not None:
            ctypes.memset(address, ord("*"), len(os.fsencode(value)))
        del os.environ[name]


def remember_secrets(taken: Mapping[str, str]) -> None:
    """Remember the variables that another process of this program has taken."""
    _taken.update(taken)


def settings_environ() -> dict[str, str]:
    """Return the environment with the variables that were taken: for settings, and for programs of this project."""
    return {**_taken, **os.environ}


def agents_environ() -> dict[str, str]:
    """Return the environment without secrets: for programs that run the code of agents."""
    hidden = secrets_in(os.environ)
    return {name: value for name, value in os.environ.items() if name not in hidden}


def secrets_in(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that hold a secret: a signing secret, or an address of Redis with a password."""
    return {name: value for name, value in environ.items() if _holds_secret(name.upper(), value)}


def _holds_secret(name: str, value: str) -> bool:
    if not name.startswith("ORC_"):
        return False
    from orchestrator.core.settings import leaves  # slow, and the process of a handler does without

    for leaf in leaves():
        if leaf.secret and (name == leaf.variable or leaf.variable.startswith(f"{name}__")):
            return leaf.name != "redis.url" or _has_password(value if name == leaf.variable else _url_in(value))
    return False


def _has_password(url: str) -> bool:
    """Return whether an address has a password, or may have one, because it is none.

    An address without a password is no secret; programs that handlers start may need it.
    """
    from orchestrator.core.errors import InvalidInput
    from orchestrator.core.redis_url import parse_url

    try:
        return bool(parse_url(url).passwords)
    except InvalidInput:
        return url != ""


def _url_in(section: str) -> str:
    """Return the address in the section `redis` as JSON; the whole text if that is no such section."""
    try:
        return str(json.loads(section).get("url", ""))
    except (ValueError, RecursionError, AttributeError):
        return section
