"""Keeps the slot map of a Redis Cluster: reads CLUSTER SLOTS from any node that answers, and again after a doubt.

The calling thread reads the first map (`prepare`). Later a thread of its own does, which ends with the answer, because
event loops and threads share the locator, and neither may wait for it.
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from redis.exceptions import RedisError

from orchestrator.core.errors import ConfigError, ServerRefused, ServerUnavailable
from orchestrator.core.log import get_logger
from orchestrator.core.reading import read_text
from orchestrator.store.failures import ADVICE, translate
from orchestrator.store.links import make_sync_pool
from orchestrator.store.locator import SLOTS, Address

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from orchestrator.store.locator import Leaver

_log = get_logger(__name__)

ASKED_EVERY_S: Final = 0.5
"""Mean pause between two reads of the map, however many redirects and doubts come."""
ANSWER_WITHIN_S: Final = 2.0
"""Longest wait for the connection to a node and for its answer; another node is asked then."""
_COMMAND: Final = ("CLUSTER", "SLOTS")
_NO_CLUSTER: Final = "cluster support disabled"


class ClusterLocator:
    """Answers the address of a slot from the slot map of a cluster.

    Until a map is read, all slots are at one of the seeds, whose MOVED replies lead to the right node.

    Args:
        seeds: configured nodes; one that answers is enough.
    """

    def __init__(self, seeds: Sequence[Address]) -> None:
        self._seeds = random.sample(seeds, len(seeds))
        self._lock = threading.Lock()
        self._leavers: WeakSet[Leaver] = WeakSet()
        self._addresses = {seed: seed for seed in seeds}
        self._slots = [self._seeds[0]] * SLOTS
        self._masters: frozenset[Address] = frozenset()
        self._named: Address | None = None
        self._doubted: Address | None = None
        self._reader: threading.Thread | None = None
        self._again = False
        self._is_ready = False
        self._read_s = -ASKED_EVERY_S
        self.single: Address | None = self._seeds[0]

    @property
    def servers(self) -> Sequence[Address]:
        """The nodes that have slots, sorted; the seed in use before a map is read."""
        return sorted(self._masters or {self._slots[0]}, key=str)

    def address(self, slot: int) -> Address:
        """Return the address of a slot."""
        return self._slots[slot]

    def moved(self, slot: int, address: Address) -> None:
        """Note that a node answered with this address for the slot, and read the whole map in the background."""
        with self._lock:
            known = self._named = self._slots[slot] = self._addresses.setdefault(address, address)
            self._masters = self._masters and self._masters | {known}
            if self.single is not known:
                self.single = None
        self._read_soon()

    def doubt(self, address: Address) -> None:
        """Read the map in the background, because a node does not answer, is a replica, or is cut off."""
        with self._lock:
            self._doubted = address
            if not self._masters and self._slots[0] == address:
                self._seeds.append(self._seeds.pop(0))
                self._slots, self.single = [self._seeds[0]] * SLOTS, self._seeds[0]
        self._read_soon()

    def late(self, address: Address) -> None:
        """Read the map in the background, because a reply of a node takes long."""
        self._doubted = address
        self._read_soon()

    def watch(self, leaver: Leaver) -> None:
        """Let a store leave a node that has lost its slots, because a frozen one does not say so."""
        with self._lock:
            self._leavers.add(leaver)

    def prepare(self) -> None:
        """Read the map if that was not tried. Blocks.

        Raises:
            ServerUnavailable: no node answers.
            ConfigError: the seeds are no cluster.
        """
        if not self._is_ready:
            self._read()

    def _read_soon(self) -> None:
        with self._lock:
            self._again = True
            if self._reader is None:
                self._reader = threading.Thread(target=self._read_in_turn, name="slot-map", daemon=True)
                self._reader.start()

    def _read_in_turn(self) -> None:
        while True:
            # At random moments, so that the processes of a pool do not ask together.
            time.sleep(max(0.0, self._read_s + ASKED_EVERY_S * random.uniform(0.5, 1.5) - time.monotonic()))
            with self._lock:
                self._again = False
            try:
                self._read()
            except Exception as failure:  # noqa: BLE001 - after a thread that ended here no other would start
                _log.warning("slot_map_unknown", error=str(failure))
                self._read_s = time.monotonic()
            with self._lock:
                if not self._again:
                    self._reader = None
                    return

    def _read(self) -> None:
        failures = []
        for node in self._nodes():
            try:
                shards = ask(node)
            except ServerUnavailable as failure:
                failures.append(f"{node}: {str(failure).removesuffix(f'; {ADVICE}')}")
            except ServerRefused as refused:
                if _NO_CLUSTER in str(refused):
                    raise ConfigError(f"the server at {node} is not part of a cluster; use redis:// for it") from None
                # MOVED replies still lead to the right node, one slot at a time.
                _log.warning("slot_map_unknown", error=f"{node}: {refused}")
                break
            else:
                if shards:
                    self._learn(shards)
                    break
                failures.append(f"{node}: it knows no node with slots")
        else:
            raise ServerUnavailable(f"no node of the cluster answers ({'; '.join(failures)}); {ADVICE}")
        self._is_ready, self._read_s = True, time.monotonic()

    def _nodes(self) -> list[Address]:
        """Return the known nodes in the order in which to ask them.

        First the one that a MOVED reply named, which knows best, then the masters, and the configured ones. Last the
        one that was doubted: it may be frozen, or be cut off from the others and know an old map.
        """
        with self._lock:
            masters, seeds, named, doubted = list(self._masters), list(self._seeds), self._named, self._doubted
            self._named = self._doubted = None
        random.shuffle(masters)
        random.shuffle(seeds)
        nodes = dict.fromkeys([*([named] if named else []), *masters, *seeds])
        return sorted(nodes, key=lambda node: node == doubted)

    def _learn(self, shards: Iterable[tuple[int, int, Address]]) -> None:
        with self._lock:
            slots, masters = list(self._slots), set[Address]()
            for first, last, address in shards:
                known = self._addresses.setdefault(address, address)
                slots[first : last + 1] = [known] * (last + 1 - first)
                masters.add(known)
            gone, leavers = self._masters - masters, list(self._leavers)
            self._slots, self._masters = slots, frozenset(masters)
            self.single = slots[0] if len(set(map(id, slots))) == 1 else None
        for address in gone:
            _log.info("slots_left", address=str(address))
            for leaver in leavers:
                leaver.leave(address)


def ask(node: Address) -> list[tuple[int, int, Address]]:
    """Ask a node for the first and last slot and the master of each shard. Blocks.

    Raises:
        ServerUnavailable: it does not answer.
        ServerRefused: it is no cluster, or the user may not ask.
    """
    pool = make_sync_pool(node, connect_timeout_s=ANSWER_WITHIN_S, read_timeout_s=ANSWER_WITHIN_S, name="orc:slot-map")
    try:
        connection = pool.get_connection()
        connection.send_command(*_COMMAND)  # type: ignore[no-untyped-call]
        return parse_slots(connection.read_response(), node)
    except (RedisError, OSError) as error:
        raise translate(error, what=" ".join(_COMMAND), sent=False, at=node) from error
    finally:
        pool.disconnect()


def parse_slots(reply: Sequence[Any], answering: Address) -> list[tuple[int, int, Address]]:
    """Parse the reply of CLUSTER SLOTS: first and last slot, and the master."""
    return [
        # Without a port the only address is a unix socket.
        (int(first), int(last), answering.at(read_text(host or b""), int(port)) if port else answering)
        for first, last, (host, port, *_), *_ in reply
    ]
