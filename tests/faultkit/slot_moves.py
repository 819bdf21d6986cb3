"""Two servers in cluster mode, between which a test moves slots: one step at a time, as `redis-cli --cluster` does."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

from orchestrator.testing.waiting import wait_until
from tests.faultkit.servers import RedisServer, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import redis

    from orchestrator.embedded.server_binary import ServerBinary

_LAST_SLOT: Final = 16383
_MOST: Final = 1_000_000
_TIMEOUT_MS: Final = 5000


class SlotMoves:
    """Moves slots between two servers. At first the first server has all slots but the last one.

    Attributes:
        nodes: the servers.
        clients: one plain client for each.
    """

    def __init__(self, nodes: Sequence[RedisServer], clients: Sequence[redis.Redis]) -> None:
        self.nodes, self.clients = tuple(nodes), tuple(clients)
        self._ids = [self.ask(number, "CLUSTER", "MYID").decode() for number in (0, 1)]
        self._owners: dict[int, int] = {}
        self._moving: set[int] = set()

    def ask(self, number: int, *command: str | int) -> Any:
        """Send one command to a node and return its raw reply."""
        return self.clients[number].execute_command(*command, NEVER_DECODE=True)  # type: ignore[no-untyped-call]

    def slot(self, key: str) -> int:
        """The slot of a key."""
        return int(self.ask(0, "CLUSTER", "KEYSLOT", key))

    def owner(self, key: str) -> int:
        """The node, 0 or 1, that has the slot of a key; while it moves, the node that it leaves."""
        return self._owners.get(self.slot(key), 0)

    def keys(self, key: str, number: int) -> list[str]:
        """The keys of the slot of a key that a node holds."""
        found: list[bytes] = self.ask(number, "CLUSTER", "GETKEYSINSLOT", self.slot(key), _MOST)
        return sorted(name.decode() for name in found)

    def begin(self, key: str) -> None:
        """Begin to move the slot of a key to the other node."""
        slot, source = self.slot(key), self.owner(key)
        self._moving.add(slot)
        self.ask(1 - source, "CLUSTER", "SETSLOT", slot, "IMPORTING", self._ids[source])
        self.ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self._ids[1 - source])

    def move(self, key: str, names: Sequence[str]) -> None:
        """Move keys of the slot that moves."""
        self._migrate(self.owner(key), names)

    def end(self, key: str) -> None:
        """Move the rest of the slot, make the other node its owner, and wait until both nodes agree on that."""
        self.hand_over(key)
        self.settle()

    def hand_over(self, key: str) -> None:
        """Move the rest of the slot and make the other node its owner. `settle` before the next move."""
        source, slot = self.owner(key), self.slot(key)
        self.move(key, self.keys(key, source))
        for number in (1 - source, source):
            self.ask(number, "CLUSTER", "SETSLOT", slot, "NODE", self._ids[1 - source])
        self._owners[slot] = 1 - source

    def settle(self) -> None:
        """Wait until both nodes agree on the owners."""
        # A node that knows an old epoch of the other one could lose the next slot again.
        wait_until(lambda: self._epochs(0) == self._epochs(1), "the same epochs on both nodes", 20)

    def move_slot(self, key: str) -> None:
        """Move the slot of a key to the other node."""
        self.settle()
        self.begin(key)
        self.hand_over(key)

    def undo(self, key: str) -> None:
        """Move the keys back and leave the slot where it was."""
        source, slot = self.owner(key), self.slot(key)
        self.ask(source, "CLUSTER", "SETSLOT", slot, "STABLE")
        self._migrate(1 - source, self.keys(key, 1 - source))
        self.ask(1 - source, "CLUSTER", "SETSLOT", slot, "STABLE")

    def clear(self) -> None:
        """Stop all moves and remove all keys."""
        for number in (0, 1):
            for slot in self._moving:
                self.ask(number, "CLUSTER", "SETSLOT", slot, "STABLE")
            self.ask(number, "FLUSHALL")
        self._moving.clear()

    def changes(self) -> list[int]:
        """How many changes the data of each node has seen."""
        return [client.info("persistence")["rdb_changes_since_last_save"] for client in self.clients]

    def _epochs(self, number: int) -> dict[bytes, bytes]:
        lines: list[bytes] = self.ask(number, "CLUSTER", "NODES").splitlines()
        return {line.split()[0]: line.split()[6] for line in lines}

    def _migrate(self, source: int, names: Sequence[str]) -> None:
        port = self.nodes[1 - source].port
        assert port is not None
        if names:
            self.ask(source, "MIGRATE", "127.0.0.1", port, "", 0, _TIMEOUT_MS, "KEYS", *names)


@contextmanager
def slot_moves(binary: ServerBinary | None = None) -> Iterator[SlotMoves]:
    """Run two servers that form a cluster."""
    with ExitStack() as stack:
        ports = [free_port(), free_port()]
        nodes = [
            stack.enter_context(
                RedisServer(binary, port=0, options={"cluster-enabled": "yes", "cluster-port": str(port)})
            )
            for port in ports
        ]
        clients = [stack.enter_context(node.client()) for node in nodes]
        for number, client in enumerate(clients):
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        # One slot for the second node: a node without slots becomes a replica.
        clients[0].execute_command("CLUSTER", "ADDSLOTSRANGE", 0, _LAST_SLOT - 1)
        clients[1].execute_command("CLUSTER", "ADDSLOTS", _LAST_SLOT)
        clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[1].port, ports[1])
        wait_until(lambda: all(_is_whole(client) for client in clients), "a whole cluster of two nodes", 20)
        yield SlotMoves(nodes, clients)


def _is_whole(client: redis.Redis) -> bool:
    facts: bytes = client.execute_command("CLUSTER", "INFO", NEVER_DECODE=True)  # type: ignore[no-untyped-call]
    return b"cluster_state:ok" in facts and b"cluster_known_nodes:2" in facts
