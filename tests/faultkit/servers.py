"""A redis-server for one test, on a unix socket or a port: started, killed, frozen, restarted.

Without persistence unless the options enable it.
"""

from __future__ import annotations

import contextlib
import resource
import shutil
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from orchestrator.core.errors import ConfigError
from orchestrator.embedded.server_binary import ServerBinary, find_server_binary
from orchestrator.store.script_files import all_scripts
from orchestrator.testing.waiting import wait_until
from tests.faultkit.processes import ActorProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

_START_TIMEOUT_S: Final = 20.0

RUNNING: Final[set[RedisServer]] = set()
"""The servers of this process that run."""
USERS: Final[list[Callable[[ServerBinary], Sequence[str]]]] = []
"""What returns the options of users for each server that starts; see `tests.helpers.roles`."""
REFUSED: Final[list[Mapping[str, Any]]] = []
"""What servers that were closed had refused to such users."""
_ASK_S: Final = 0.5

_WITHOUT_DISK_SIGNAL: Final = ("sh", "-c", 'trap "" XFSZ; exec "$0" "$@"')
"""Makes a file limit an error for the server instead of a signal, as on a full disk."""

_OPTIONS: Final[Mapping[str, str]] = {
    "appendonly": "no",
    "daemonize": "no",
    "databases": "1",
    "enable-debug-command": "local",  # tests let the server sleep or reload
    "loglevel": "notice",
    "save": "",
}


def find_binary_of_line(line: str) -> ServerBinary | None:
    """Find the redis-server of a version line, such as `7.`, on the PATH; None if there is none."""
    on_path = shutil.which("redis-server")
    if on_path is None:
        return None
    try:
        binary = find_server_binary(Path(on_path))
    except ConfigError:
        return None
    return binary if binary.version.startswith(line) else None


class RedisServer:
    """One server process with its own directory; use it in a `with` block.

    Args:
        binary: default: the newest installed program.
        port: None = unix socket only, 0 = a free port on the loopback address, else this port.
        options: further options of redis.conf, by name (`{"maxmemory": "3mb"}`).
        env: added to the environment of the server.
    """

    def __init__(
        self,
        binary: ServerBinary | None = None,
        *,
        port: int | None = None,
        options: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.binary = binary or find_server_binary()
        self.port = free_port() if port == 0 else port
        self._options = {**_OPTIONS, **(options or {})}
        self._env = env
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._process: ActorProcess | None = None
        self.has_users = False
        """Whether it has the users of tests, see `USERS`."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def version(self) -> str:
        """Version of the program, such as `8.2.3`."""
        return self.binary.version

    @property
    def directory(self) -> Path:
        """Directory of its socket and its files."""
        if self._directory is None:
            raise RuntimeError("this Redis was not started, or is closed; use it inside the with block")
        return Path(self._directory.name)

    @property
    def url(self) -> str:
        """URL for clients."""
        return f"unix://{self.directory}/redis.sock" if self.port is None else f"redis://127.0.0.1:{self.port}/0"

    @property
    def takes_users(self) -> bool:
        """Whether it may get users of tests, because no file gives it its own."""
        return "include" not in self._options

    @property
    def places(self) -> set[str]:
        """Its socket and its port, as they stand in URLs."""
        return {f"{self.directory}/redis.sock", *([str(self.port)] if self.port else [])}

    @property
    def runs(self) -> bool:
        """Whether its process is there, be it frozen."""
        return self._process is not None and self._process.returncode is None

    @property
    def process(self) -> ActorProcess:
        """The process, to freeze or to inspect."""
        if self._process is None:
            raise RuntimeError("this Redis does not run; start it first")
        return self._process

    def start(self) -> Self:
        """Start it, also after `kill`, and wait until it answers."""
        if self._directory is None:
            # In /tmp, because the path of a socket may have 107 bytes.
            self._directory = tempfile.TemporaryDirectory(prefix="orc-", dir="/tmp")
        options = {**self._options, "dir": str(self.directory), "unixsocket": f"{self.directory}/redis.sock"}
        options |= {"port": str(self.port or 0), "bind": "127.0.0.1"}
        # With setpriv, the server ends with a killed test process.
        die_with_parent = [setpriv, "--pdeathsig", "KILL"] if (setpriv := shutil.which("setpriv")) else []
        arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
        users = [word for options in USERS if self.takes_users for word in options(self.binary)]
        self.has_users = bool(users)
        command = [*_WITHOUT_DISK_SIGNAL, *die_with_parent, str(self.binary.path), *arguments, *users]
        self._process = ActorProcess(command, name="redis-server", env=self._env).start()
        try:
            wait_until(self._answers, lambda: self.process.describe("an answer to PING"), _START_TIMEOUT_S, poll_s=0.01)
        except BaseException:
            self.close()
            raise
        RUNNING.add(self)
        return self

    def kill(self) -> None:
        """Kill it; the directory stays for the next `start`."""
        REFUSED.extend(self.refused())
        RUNNING.discard(self)
        self.process.kill()
        self.process.close()
        self._process = None

    def restart(self, *, clean: bool = False) -> None:
        """Kill it, or with `clean` shut it down, and start it at the same address."""
        if clean:
            with self.client() as client, contextlib.suppress(redis.ConnectionError):
                client.shutdown()
            self.process.wait_exit()
        self.kill()
        self.start()

    def crash_report(self) -> str | None:
        """Return what it printed at its end, which nobody asked for; None while it runs."""
        if self.runs:
            return None
        printed, _, report = self.process.output.partition("REDIS BUG REPORT START")
        return f"exit code {self.process.returncode}\n{report[:4000] or printed[-2000:]}"

    def fill_disk(self, *, full: bool = True) -> None:
        """Let every write to a file fail, as on a full disk; False ends that. Linux only."""
        _, hard = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (0 if full else hard, hard))

    def close(self) -> None:
        """Kill it and remove its directory."""
        if self._process is not None:
            self.kill()
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def load_scripts(self) -> None:
        """Load the scripts that are missing, as on a server that has long been in use."""
        scripts = list(all_scripts().values())
        with self.client() as direct:
            known = direct.script_exists(*[script.sha for script in scripts])
            for script, is_known in zip(scripts, known, strict=True):
                if not is_known:
                    direct.script_load(script.text)

    def client(self, **options: Any) -> redis.Redis:
        """Return a synchronous client without retries; close it."""
        return redis.Redis.from_url(self.url, retry=Retry(NoBackoff(), 0), **options)

    def refused(self) -> Sequence[Mapping[str, Any]]:
        """Return what it has refused to users of tests, if it has some and answers."""
        if not self.has_users:
            return ()
        with contextlib.suppress(redis.RedisError), self.client(socket_timeout=_ASK_S) as client:
            found: Any = client.acl_log(1000)
            return tuple(found)
        return ()

    def _answers(self) -> bool:
        if self.process.returncode is not None:
            raise RuntimeError(self.process.describe("a start"))
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


@contextlib.contextmanager
def cluster_server(binary: ServerBinary | None = None) -> Iterator[RedisServer]:
    """Run one server in cluster mode that has all slots: it refuses a command with keys of two slots."""
    # The bus of the cluster needs a port, although no other node connects to it.
    options = {"cluster-enabled": "yes", "cluster-port": str(free_port())}
    with RedisServer(binary, options=options) as server, server.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        wait_until(
            lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO", NEVER_DECODE=True),
            "a whole cluster",
        )
        yield server


def free_port() -> int:
    """Return a port of the loopback address that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
