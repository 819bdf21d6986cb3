"""A Sentinel group for one test: a master, replicas and sentinels, as processes."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from orchestrator.embedded.server_binary import ServerBinary, find_server_binary
from orchestrator.testing.waiting import wait_until
from tests.faultkit.processes import ActorProcess
from tests.faultkit.servers import RedisServer, free_port

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

SERVICE: Final = "mymaster"
DOWN_AFTER_S: Final = 0.7
_START_TIMEOUT_S: Final = 30.0
_OPTIONS: Final = {"repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}


class Sentinel:
    """One sentinel process; use it in a `with` block.

    Args:
        binary: its program.
        master: port of the master at first.
        quorum: sentinels that must agree that the master is down.
        options: further lines of its configuration.
    """

    def __init__(self, binary: ServerBinary, *, master: int, quorum: int, options: tuple[str, ...] = ()) -> None:
        self._binary, self.port = binary, free_port()
        self._lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"sentinel monitor {SERVICE} 127.0.0.1 {master} {quorum}",
            f"sentinel down-after-milliseconds {SERVICE} {round(DOWN_AFTER_S * 1000)}",
            f"sentinel failover-timeout {SERVICE} 5000",
            *options,
        ]
        self._directory = tempfile.TemporaryDirectory(prefix="orc-", dir="/tmp")
        self._process: ActorProcess | None = None

    @property
    def process(self) -> ActorProcess:
        """The process, to freeze or to inspect."""
        assert self._process is not None
        return self._process

    def __enter__(self) -> Self:
        Path(self._directory.name, "sentinel.conf").write_text("\n".join([f"dir {self._directory.name}", *self._lines]))
        return self.start()

    def start(self) -> Self:
        """Start it, also after `kill`; it remembers what it knew."""
        die_with_parent = [setpriv, "--pdeathsig", "KILL"] if (setpriv := shutil.which("setpriv")) else []
        config = f"{self._directory.name}/sentinel.conf"
        self._process = ActorProcess([*die_with_parent, str(self._binary.path), config, "--sentinel"], name="sentinel")
        self._process.start()
        wait_until(self._answers, lambda: self.process.describe("an answer to PING"), _START_TIMEOUT_S, poll_s=0.01)
        return self

    def kill(self) -> None:
        """Kill it; `start` starts it again."""
        self.process.kill()
        self.process.close()
        self._process = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.kill()
        self._directory.cleanup()

    def client(self) -> redis.Redis:
        """Return a synchronous client without retries; close it."""
        return redis.Redis(port=self.port, retry=Retry(NoBackoff(), 0), decode_responses=True, socket_timeout=5)

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


class SentinelGroup:
    """A master, its replicas and their sentinels; use it in a `with` block.

    Args:
        binary: program of all; default: the newest installed.
        replicas: number of replicas.
        sentinels: number of sentinels.
        options: of the servers, by name.
    """

    def __init__(
        self,
        binary: ServerBinary | None = None,
        *,
        replicas: int = 2,
        sentinels: int = 3,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self._binary = binary or find_server_binary()
        self._replicas, self._count = replicas, sentinels
        self._options = {**_OPTIONS, **(options or {})}
        self._stack = ExitStack()
        self.servers: list[RedisServer] = []
        self.sentinels: list[Sentinel] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            first = stack.enter_context(RedisServer(self._binary, port=0, options=self._options))
            assert first.port is not None
            self.servers = [first]
            for _ in range(self._replicas):
                replica = stack.enter_context(RedisServer(self._binary, port=0, options=self._options))
                self.servers.append(replica)
                # Not an option: once promoted, it is to start as a master.
                with replica.client() as client:
                    client.replicaof("127.0.0.1", str(first.port))
            self._wait("the replicas to be in step", lambda: self._in_step(first) == self._replicas)
            quorum = self._count // 2 + 1
            for _ in range(self._count):
                sentinel = Sentinel(self._binary, master=first.port, quorum=quorum)
                self.sentinels.append(stack.enter_context(sentinel))
            self._wait("the sentinels to know each other", self._is_whole)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        """URL for clients."""
        return f"redis+sentinel://{','.join(f'127.0.0.1:{one.port}' for one in self.sentinels)}/{SERVICE}/0"

    @property
    def master(self) -> RedisServer:
        """The server that the sentinels take for the master."""
        for sentinel in self.sentinels:
            try:
                with sentinel.client() as client:
                    _, port = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
            except redis.RedisError:
                continue
            return next(server for server in self.servers if server.port == int(port))
        raise RuntimeError("no sentinel answers")

    def failover(self) -> None:
        """Tell a sentinel to promote a replica, as for an update of the master."""
        with self.sentinels[0].client() as client:
            client.execute_command("SENTINEL", "FAILOVER", SERVICE)

    def wait_for_master(self, *, other_than: RedisServer) -> RedisServer:
        """Wait until another server is the master."""
        self._wait("another master", lambda: self.master is not other_than)
        return self.master

    def wait_whole(self) -> None:
        """Wait until the master has all replicas again, and all sentinels agree."""
        self._wait("all replicas", lambda: self._in_step(self.master) == self._replicas)
        self._wait("the sentinels to know each other", self._is_whole)

    def _is_whole(self) -> bool:
        return all(self._knows_all(sentinel) for sentinel in self.sentinels)

    def _knows_all(self, sentinel: Sentinel) -> bool:
        with sentinel.client() as client:
            known = client.execute_command("SENTINEL", "MASTER", SERVICE)
            known = known if isinstance(known, dict) else dict(zip(known[::2], known[1::2], strict=True))
            wanted = (self._count - 1, self._replicas, "master")
            return (int(known["num-other-sentinels"]), int(known["num-slaves"]), known["flags"]) == wanted

    def _in_step(self, server: RedisServer) -> int:
        try:
            with server.client() as client:
                found = client.info("replication")
        except redis.RedisError:
            return -1
        return sum(str(found.get(f"slave{n}", {}).get("state")) == "online" for n in range(self._replicas))

    @staticmethod
    def _wait(what: str, condition: object) -> None:
        wait_until(condition, what, _START_TIMEOUT_S, poll_s=0.05)  # type: ignore[arg-type]
