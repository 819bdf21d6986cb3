"""Lets the programs of a test log in with the users of their roles, as `orc auth acl` makes them for its namespace.

The name of a connection tells the program: `supervisor`, `worker`, `client`, `cli`. Connections with other names, and
the plain clients with which tests look at the data, log in with the default user, who may do all.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from orchestrator.doctor.acl import ROLES, AclScope, acl_user
from orchestrator.store import links
from orchestrator.store.store import Store
from orchestrator.testing.temporary_pool import TemporaryPool
from tests.faultkit import proxy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import redis

    from tests.faultkit.servers import RedisServer

PASSWORD: Final = "pw"
NAMES: Final = frozenset(role.name for role in ROLES)
OF_CONNECTIONS: Final[Mapping[str, str]] = {
    "client": "client",
    "supervisor": "supervisor",
    "worker": "worker",
    "host": "worker",
    **dict.fromkeys(("cli", "views", "doctor", "backup", "restore", "repair"), "operator"),
    "loader": "loader",
}
"""Roles by the first word of the name of a connection."""
OF_ORC: Final = frozenset({"client", "cli", "views", "doctor", "backup", "restore", "repair"})
"""Connections of the command line, which are those of an operator or a viewer there."""
READING: Final = frozenset(
    {
        "agents list", "agents show", "agents top", "control list", "dead list", "events", "keys report", "limits list",
        "locks list", "memory list", "queues list", "schedules list", "sessions list", "sessions show", "skills list",
        "skills show", "stats", "status", "tasks list", "tasks result", "tasks show", "workers list",
    }
)  # fmt: skip
"""Commands of `orc` that a viewer runs."""


FILES: Final = frozenset(
    {
        "test_acl",
        "test_agent_state",
        "test_asking",
        "test_boards",
        "test_cancelling",
        "test_chat",
        "test_children",
        "test_cli_answering",
        "test_cli_dead",
        "test_cli_forget",
        "test_cli_locks",
        "test_desired_state",
        "test_execution_locks",
        "test_extraction",
        "test_handles",
        "test_lanes",
        "test_limits",
        "test_output",
        "test_pauses",
        "test_payload_store",
        "test_retrying",
        "test_schedules",
        "test_views",
        "test_worker",
    }
)
"""Integration tests that always log in by role; the others do with the variable `ORC_TEST_ROLES`."""
TRIED: Final = frozenset({"config|get", "eval_ro"})
"""Commands that programs try and can do without, as they do without setting the floor of an empty pool."""


@dataclass(slots=True)
class Logins:
    """The logins of the test that runs.

    Attributes:
        places: sockets and ports of servers that have the users.
        roles: by the name of connections.
    """

    places: set[str] = field(default_factory=set)
    roles: Mapping[str, str] = field(default_factory=dict)

    def of(self, url: str, connection: str) -> str | None:
        """Return the user of a connection; None for the default user."""
        parts = urlsplit(url)
        if parts.username or not {parts.path, str(parts.port), _upstream(parts.port)} & self.places:
            return None
        return self.roles.get(re.split(r"[^a-z]", connection, maxsplit=1)[0])


LOGINS: Final = Logins()


def _upstream(port: int | None) -> str:
    found = proxy.UPSTREAMS.get(port or 0, "")
    return found if isinstance(found, str) else str(found[1])


def install() -> None:
    """Let connections of this process log in by their names, from now on."""
    for name in ("AsyncConnectionPool", "ConnectionPool"):
        plain: Any = getattr(links, name)
        setattr(links, name, _logging_in(plain))
    TemporaryPool.start_supervisor = _start_supervisor  # type: ignore[assignment,method-assign]


def _logging_in(plain: Any) -> Any:
    class LoggingIn(plain):  # type: ignore[misc]
        @classmethod
        def from_url(cls, url: str, **options: Any) -> Any:
            user = LOGINS.of(url, options.get("client_name") or "")
            login = {} if user is None else {"username": user, "password": PASSWORD}
            return plain.from_url(url, **options, **login)

    return LoggingIn


_start_as_test = TemporaryPool.start_supervisor


async def _start_supervisor(pool: TemporaryPool) -> Any:
    """Start the supervisor of a temporary pool with a connection of its own, as the program has it."""
    if not LOGINS.places:
        return await _start_as_test(pool)
    services = pool.services
    store = await pool._stack.enter_async_context(Store(services.endpoint, services.keys, name="supervisor"))
    pool.services = replace(services, store=store)
    try:
        return await _start_as_test(pool)
    finally:
        pool.services = services


def set_users(server: RedisServer, prefix: str, *, pool: str | None = None, loader_only: bool = False) -> None:
    """Give a server the users of all roles for a namespace, or for one pool of it, and empty its ACL LOG."""
    with server.client() as admin, admin.pipeline(transaction=False) as pipeline:
        scope = AclScope(prefix, pool, vector_sets=_has_vector_sets(server, admin), loader_only=loader_only)
        for role in ROLES:
            name, *rules = acl_user(role, scope)
            pipeline.execute_command("ACL", "SETUSER", name, "reset", f">{PASSWORD}", *rules)
        pipeline.acl_log_reset()
        pipeline.execute()


def _has_vector_sets(server: RedisServer, admin: redis.Redis) -> bool:
    path = server.binary.path
    if path not in _VECTOR_SETS:
        commands: Any = admin.command()
        _VECTOR_SETS[path] = "vadd" in {name.lower() for name in commands}
    return _VECTOR_SETS[path]


_VECTOR_SETS: Final[dict[Path, bool]] = {}
"""Whether a program has vector sets."""


@contextmanager
def logging_in(server: RedisServer, prefix: str, **roles: str) -> Iterator[None]:
    """Let the programs of this process log in at a server as their roles.

    Args:
        server: gets the users.
        prefix: the namespace that they may use.
        roles: by the name of connections, where they differ from the usual ones: `worker="pauser"`.
    """
    set_users(server, prefix)
    LOGINS.places = {f"{server.directory}/redis.sock", *([str(server.port)] if server.port else [])}
    LOGINS.roles = {**OF_CONNECTIONS, **roles}
    try:
        yield
    finally:
        LOGINS.places, LOGINS.roles = set(), {}


@contextmanager
def typing(arguments: tuple[str, ...]) -> Iterator[None]:
    """Log in as the operator, or as the viewer for a command that only reads, while a command of `orc` runs."""
    before = LOGINS.roles
    words = [word for word in arguments[:2] if not word.startswith("-")]
    reads = words[:1] == [*READING & {*words[:1]}] or " ".join(words) in READING
    LOGINS.roles = {**before, **dict.fromkeys(OF_ORC, "viewer" if reads else "operator")} if before else before
    try:
        yield
    finally:
        LOGINS.roles = before


def url_of(server: RedisServer, role: str) -> str:
    """Return the URL with the login of a role, for other programs."""
    return f"unix://{role}:{PASSWORD}@{server.directory}/redis.sock"


def denials(client: redis.Redis, prefix: str = "") -> list[str]:
    """Return what a server has refused to the users of roles since the last reset.

    Args:
        client: of the server.
        prefix: of keys that the users may use; a program of an earlier test that has not ended yet used others.
    """
    log: Any = client.acl_log(1000)
    return [
        f"{entry['username']} may not use {entry['object']} ({entry['reason']}, {entry['context']})"
        for entry in log
        if entry["username"] in NAMES
        and entry["object"] not in TRIED
        and not entry["object"].endswith("}:format")
        and (entry["reason"] == "command" or prefix in entry["object"])
    ]
