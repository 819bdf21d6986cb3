"""A Redis Cluster for tests: masters that share the slots, each with a replica if asked; slots move between masters."""

from __future__ import annotations

import contextlib
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from orchestrator.store.locator import SLOTS, slot_of
from orchestrator.testing.waiting import wait_until
from tests.faultkit.servers import RedisServer, free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from orchestrator.embedded.server_binary import ServerBinary

_FORMED_S: Final = 30.0
_MOST: Final = 1_000_000
_MIGRATE_MS: Final = 5000
_AT_ONCE: Final = 500


class Cluster:
    """Masters and replicas that run.

    Attributes:
        nodes: the servers: first the masters of the start, then their replicas in the same order.
    """

    def __init__(self, nodes: Sequence[RedisServer], masters: int) -> None:
        self.nodes = tuple(nodes)
        self._masters = masters

    @property
    def url(self) -> str:
        """Names all nodes."""
        return f"redis+cluster://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}"

    @property
    def port(self) -> int:
        """Port of the first node."""
        assert self.nodes[0].port is not None
        return self.nodes[0].port

    def ask(self, node: RedisServer, *command: str | int, within_s: float = 10.0) -> Any:
        """Send one command to a node, which may be frozen, and return its raw reply."""
        retry = Retry(NoBackoff(), 0)
        with redis.Redis.from_url(node.url, retry=retry, socket_timeout=within_s) as client:
            return client.execute_command(*command, NEVER_DECODE=True)

    def masters(self) -> list[RedisServer]:
        """The masters of now, by their first slot."""
        return list(dict.fromkeys(node for _, _, node in self._shards()))

    def owner(self, key: str) -> RedisServer:
        """The master of the slot of a key."""
        slot = slot_of(key)
        return next(node for first, last, node in self._shards() if first <= slot <= last)

    def replica_of(self, master: RedisServer) -> RedisServer:
        """A running replica of a master."""
        id_ = self._id(master)
        for node in self._running():
            if node is not master and f"slave {id_} " in self._own_line(node):
                return node
        raise LookupError("the master has no replica")

    def client(self, key: str) -> redis.Redis:
        """A plain client of the master that has a key; close it."""
        return self.owner(key).client()

    def names(self, pattern: str) -> set[str]:
        """The keys of all masters."""
        found = set[str]()
        for node in self.masters():
            with node.client() as client:
                found |= {name.decode() for name in client.scan_iter(pattern, count=1000)}
        return found

    def clear(self) -> None:
        """Remove all keys."""
        for node in self.masters():
            self.ask(node, "FLUSHALL")

    # Slots that move --------------------------------------------------------------------------------------------------

    def move_slot(self, key: str, *, keys: int = _MOST) -> RedisServer:
        """Move the slot of a key to the next master, as `redis-cli --cluster reshard` does; return that master.

        Args:
            key: has the slot.
            keys: how many keys are moved; with fewer than there are, the move is left half done.
        """
        source = self.owner(key)
        masters = self.masters()
        target = masters[(masters.index(source) + 1) % len(masters)]
        self.begin_move(key, source, target)
        self._migrate(slot_of(key), source, target, keys)
        if keys == _MOST:
            self._hand_over(key, source, target)
        return target

    def begin_move(self, key: str, source: RedisServer, target: RedisServer) -> None:
        """Begin to move the slot of a key."""
        slot = slot_of(key)
        self.ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self._id(source))
        self.ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self._id(target))

    def finish_move(self, key: str, target: RedisServer) -> None:
        """Finish a move that was left half done, as `redis-cli --cluster fix` does."""
        source = self.owner(key)
        self._migrate(slot_of(key), source, target, _MOST)
        self._hand_over(key, source, target)

    def _hand_over(self, key: str, source: RedisServer, target: RedisServer) -> None:
        slot, id_ = slot_of(key), self._id(target)
        for node in dict.fromkeys([target, source, *self.masters()]):
            self.ask(node, "CLUSTER", "SETSLOT", slot, "NODE", id_)

    def _migrate(self, slot: int, source: RedisServer, target: RedisServer, keys: int) -> None:
        left = keys
        while left > 0:
            names = self.ask(source, "CLUSTER", "GETKEYSINSLOT", slot, min(left, _AT_ONCE))
            if not names:
                return
            assert target.port is not None
            self.ask(source, "MIGRATE", "127.0.0.1", target.port, "", 0, _MIGRATE_MS, "KEYS", *names)
            left -= len(names)

    # Failovers --------------------------------------------------------------------------------------------------------

    def fail_over(self, master: RedisServer) -> RedisServer:
        """Hand a master's slots to its replica in an orderly way; return the new master."""
        replica = self.replica_of(master)
        self.ask(replica, "CLUSTER", "FAILOVER")
        self.wait_for_master(replica)
        return replica

    def wait_for_master(self, node: RedisServer, timeout_s: float = 20.0) -> None:
        """Wait until all running masters name a node as master of slots."""
        wait_until(lambda: all(node in self._masters_by(one) for one in self._running()), "a new master", timeout_s)

    def wait_until_whole(self, timeout_s: float = _FORMED_S) -> None:
        """Wait until all nodes see a whole cluster, and each replica has its data."""
        wait_until(lambda: all(self._is_whole(node) for node in self.nodes), "a whole cluster", timeout_s)

    def _is_whole(self, node: RedisServer) -> bool:
        try:
            facts = self.ask(node, "CLUSTER", "INFO", within_s=1.0)
            role = self.ask(node, "ROLE")
            lines = self.ask(node, "CLUSTER", "NODES").decode().splitlines()
        except redis.RedisError:
            return False
        synced = role[0] != b"slave" or role[3] == b"connected"
        known = f"cluster_known_nodes:{len(self.nodes)}".encode()
        well = not any("fail" in line or "handshake" in line for line in lines)
        return b"cluster_state:ok" in facts and known in facts and synced and well

    def _running(self) -> list[RedisServer]:
        return [node for node in self.nodes if node.runs]

    def _shards(self, by: RedisServer | None = None) -> list[tuple[int, int, RedisServer]]:
        places = {node.port: node for node in self.nodes}
        for node in [by] if by is not None else self._running():
            with contextlib.suppress(redis.RedisError):
                reply = self.ask(node, "CLUSTER", "SLOTS", within_s=1.0)
                shards = [(first, last, places[master[1]]) for first, last, master, *_ in reply]
                return sorted(shards, key=lambda shard: shard[0])
        raise RuntimeError("no node of the cluster answers")

    def _masters_by(self, node: RedisServer) -> list[RedisServer]:
        try:
            return [master for _, _, master in self._shards(node)]
        except RuntimeError:
            return []

    def _id(self, node: RedisServer) -> str:
        id_: bytes = self.ask(node, "CLUSTER", "MYID")
        return id_.decode()

    def _own_line(self, node: RedisServer) -> str:
        lines = self.ask(node, "CLUSTER", "NODES").decode().splitlines()
        return str(next(line for line in lines if "myself" in line))


@contextmanager
def run_cluster(
    binary: ServerBinary | None = None,
    *,
    masters: int = 3,
    replicas: bool = False,
    timeout_ms: int = 1000,
    options: Mapping[str, str] | None = None,
    own_options: Callable[[], Mapping[str, str]] = dict,
) -> Iterator[Cluster]:
    """Run a cluster.

    Args:
        binary: default: the newest installed program.
        masters: number of masters; each has its part of the slots.
        replicas: whether each master has a replica.
        timeout_ms: time without an answer after which a node counts as failed.
        options: further options of redis.conf.
        own_options: makes those of one node, such as its port for TLS.
    """
    with ExitStack() as stack:
        count = masters * (2 if replicas else 1)
        bus = [free_port() for _ in range(count)]
        common = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": str(timeout_ms),
            "repl-diskless-sync-delay": "0",
            "repl-ping-replica-period": "1",
            **(options or {}),
        }
        nodes = [
            stack.enter_context(
                RedisServer(binary, port=0, options={**common, "cluster-port": str(port), **own_options()})
            )
            for port in bus
        ]
        cluster = Cluster(nodes, masters)
        for number, node in enumerate(nodes):
            cluster.ask(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            assert node.port is not None
            if number:
                cluster.ask(nodes[0], "CLUSTER", "MEET", "127.0.0.1", node.port, bus[number])
        for number, node in enumerate(nodes[:masters]):
            first, behind = number * SLOTS // masters, (number + 1) * SLOTS // masters
            cluster.ask(node, "CLUSTER", "ADDSLOTSRANGE", first, behind - 1)
        wait_until(lambda: all(_knows(cluster, node, count) for node in nodes), "nodes that know each other", _FORMED_S)
        for number, node in enumerate(nodes[masters:]):
            cluster.ask(node, "CLUSTER", "REPLICATE", cluster._id(nodes[number]))
        cluster.wait_until_whole()
        yield cluster


def _knows(cluster: Cluster, node: RedisServer, count: int) -> bool:
    lines = cluster.ask(node, "CLUSTER", "NODES").decode().splitlines()
    return len(lines) == count and not any("handshake" in line for line in lines)
