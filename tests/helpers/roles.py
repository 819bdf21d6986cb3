"""Lets the programs of a test log in with the users of their roles, as `orc auth acl` makes them for its namespace.

The name of a connection tells the program: `supervisor`, `worker`, `client`, `cli`. Connections with other names, and
the plain clients with which tests look at the data, log in with the default user, who may do all.
"""

from __future__ import annotations

import re
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orchestrator.doctor.acl import ROLES, AclScope, acl_user
from orchestrator.store import links
from orchestrator.store.store import Store
from orchestrator.testing.temporary_pool import TemporaryPool
from tests.faultkit import proxy, servers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from orchestrator.embedded.server_binary import ServerBinary
    from tests.faultkit.servers import RedisServer

PASSWORD: Final = "pw"
URL: Final = "ORC_REDIS__URL"
VECTOR_SETS_SINCE: Final = 8
RUNS: Final = re.compile(r"from orchestrator import[^;\n]*\brun\b|orchestrator\.run\(")
"""A script that is a worker."""
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


FOLDERS: Final = frozenset({"integration", "e2e", "fault"})
"""Folders of tests whose programs log in by role, but for those in `DEFAULT_USER`."""
DEFAULT_USER: Final[Mapping[str, str]] = {
    "test_backup": "restores into namespaces of their own",
    "test_deployment_guide": "makes the users of the page itself",
    "test_durability": "tells levels by settings of the server, which no role reads",
    "test_managed_redis": "its servers have users of their own, with what such services forbid",
    "test_mixed_versions": "older programs need what the rights of their version allow",
    "test_rights": "makes users with single rights itself",
    "test_tls": "its certificates are the logins",
    "test_without_opentelemetry": "one program plays all roles",
}
"""Files of tests whose programs log in as the default user, with the reason.

Further: tests that are marked `default_user`, which copy keys to another namespace, or tell the server by its settings;
programs that find a server which the product starts, embedded, because that has no users; and the slow tests of files
that are not in `SLOW_TOO`, for they have not been tried under the roles yet.
"""
SLOW_TOO: Final = frozenset(
    {
        "test_acl", "test_agent_state", "test_asking", "test_boards", "test_cancelling", "test_chat", "test_children",
        "test_cli_answering", "test_cli_dead", "test_cli_forget", "test_cli_locks", "test_damage_matrix",
        "test_desired_state", "test_execution_locks", "test_extraction", "test_handles", "test_lanes", "test_limits",
        "test_output", "test_pauses", "test_payload_store", "test_retrying", "test_schedules", "test_views",
        "test_worker",
    }
)  # fmt: skip
TRIED: Final = frozenset({"config|get", "eval_ro"})
"""Commands that programs try and can do without, as they do without setting the floor of an empty pool."""


@dataclass(slots=True)
class Logins:
    """The logins of the test that runs.

    Attributes:
        prefix: of the namespaces that the users may use; empty: all programs log in as the default user.
        roles: by the name of connections.
    """

    prefix: str = ""
    roles: Mapping[str, str] = field(default_factory=dict)

    def of(self, url: str, connection: str) -> str | None:
        """Return the user of a connection; None for the default user."""
        if "@" in url or not _reaches_users(url):
            return None
        return self.roles.get(re.split(r"[^a-z]", connection, maxsplit=1)[0])

    def url(self, url: str, role: str) -> str:
        """Return a URL with the login of a role, if its server has one."""
        if not self.prefix or "@" in url or not _reaches_users(url):
            return url
        return url.replace("://", f"://{self.roles.get(role, role)}:{PASSWORD}@", 1)


LOGINS: Final = Logins()


def _reaches_users(url: str) -> bool:
    """Return whether a URL leads to a server that has the users: itself, by a proxy, or by sentinels."""
    places = set().union(*(server.places for server in servers.RUNNING if server.has_users))
    named = [url.removeprefix("unix://"), *re.findall(r":(\d+)", url)]
    proxied = [proxy.UPSTREAMS.get(int(port), "") for port in named[1:]]
    upstreams = [found if isinstance(found, str) else str(found[1]) for found in proxied]
    return bool(places & {*named, *upstreams}) or (url.startswith("redis+sentinel") and bool(places))


def install() -> None:
    """Let connections of this process, and programs that it starts, log in by their names, from now on."""
    for name in ("AsyncConnectionPool", "ConnectionPool"):
        plain: Any = getattr(links, name)
        setattr(links, name, _logging_in(plain))
    TemporaryPool.start_supervisor = _start_supervisor  # type: ignore[assignment,method-assign]
    subprocess.Popen.__init__ = _start_program(subprocess.Popen.__init__)  # type: ignore[method-assign]
    servers.USERS.append(_options)


def _logging_in(plain: Any) -> Any:
    class LoggingIn(plain):  # type: ignore[misc]
        @classmethod
        def from_url(cls, url: str, **options: Any) -> Any:
            user = LOGINS.of(url, options.get("client_name") or "")
            login = {} if user is None else {"username": user, "password": PASSWORD}
            return plain.from_url(url, **options, **login)

    return LoggingIn


def _start_program(plain: Any) -> Any:
    """Return what starts programs with the URL of their role, in their variables and among their words."""

    @wraps(plain)
    def start(self: Any, args: Any, *others: Any, **options: Any) -> None:
        if LOGINS.prefix and not isinstance(args, (str, bytes)):
            args, environ = [*args], options.get("env")
            role = _role_of([str(word) for word in args])
            args = [LOGINS.url(word, role) if isinstance(word, str) and "://" in word[:20] else word for word in args]
            if environ is not None and URL in environ:
                options["env"] = {**environ, URL: LOGINS.url(environ[URL], role)}
        plain(self, args, *others, **options)

    return start


def _role_of(words: list[str]) -> str:
    """Return the role of a program by its command line; that of a client, unless it is a program of ours."""
    files = [word for word in words if word.endswith(".py") and Path(word).is_file()]
    text = " ".join([*words, *(Path(file).read_text() for file in files)])
    if "supervisor run" in text or "run_supervisor" in text or re.search(r"\borc\S* (up|demo)\b", text):
        return "supervisor"
    if "worker run" in text or "orchestrator.workers" in text or re.search(RUNS, text):
        return "worker"
    typed = re.search(r"(?:/orc|-m orchestrator) (.*)", text, re.DOTALL)
    if typed is None:
        return "operator" if ".admin" in text else "client"
    return "viewer" if _only_reads(typed[1].split(" ")) else "operator"


_start_as_test = TemporaryPool.start_supervisor


async def _start_supervisor(pool: TemporaryPool) -> Any:
    """Start the supervisor of a temporary pool with a connection of its own, as the program has it."""
    if not LOGINS.prefix:
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
        scope = AclScope(prefix, pool, vector_sets=_has_vector_sets(server.binary), loader_only=loader_only)
        for name, rules in _users(scope):
            pipeline.execute_command("ACL", "SETUSER", name, "reset", *rules)
        pipeline.acl_log_reset()
        pipeline.execute()
    server.has_users = True


def _users(scope: AclScope) -> Iterator[tuple[str, list[str]]]:
    for name, on, *rules in _rules(replace(scope, prefix=_ANY)):
        yield name, [on, f">{PASSWORD}", *(rule.replace(_ANY, scope.prefix) for rule in rules)]


@cache
def _rules(scope: AclScope) -> list[list[str]]:
    """Return the users of a scope; to make them takes longer than many a test."""
    return [acl_user(role, scope) for role in ROLES]


_ANY: Final = "<prefix>"


def _options(binary: ServerBinary) -> list[str]:
    """Return the options with which a server starts that has the users of the test that runs."""
    if not LOGINS.prefix:
        return []
    users = _users(AclScope(LOGINS.prefix, vector_sets=_has_vector_sets(binary)))
    return [word for name, rules in users for word in ("--user", name, *rules)]


def _has_vector_sets(binary: ServerBinary) -> bool:
    return binary.path.name != "valkey-server" and int(binary.version.partition(".")[0]) >= VECTOR_SETS_SINCE


@contextmanager
def logging_in(prefix: str, **roles: str) -> Iterator[None]:
    """Let programs log in as their roles, at the servers that run and at those that the test starts.

    Args:
        prefix: the namespace of the test.
        roles: by the name of connections, where they differ from the usual ones: `worker="pauser"`.
    """
    # Some tests use several namespaces beside each other.
    namespaces = f"{prefix.rpartition(':')[0]}:*"
    for server in servers.RUNNING:
        if server.takes_users:
            set_users(server, namespaces)
    servers.REFUSED.clear()
    LOGINS.prefix, LOGINS.roles = namespaces, {**OF_CONNECTIONS, **roles}
    try:
        yield
    finally:
        LOGINS.prefix, LOGINS.roles = "", {}
        for server in servers.RUNNING:
            server.has_users = False


@contextmanager
def typing(arguments: tuple[str, ...]) -> Iterator[None]:
    """Log in as the operator, or as the viewer for a command that only reads, while a command of `orc` runs."""
    before = LOGINS.roles
    role = "viewer" if _only_reads(arguments) else "operator"
    LOGINS.roles = {**before, **dict.fromkeys(OF_ORC, role)} if before else before
    try:
        yield
    finally:
        LOGINS.roles = before


def _only_reads(arguments: Sequence[str]) -> bool:
    words = [word for word in arguments[:2] if not word.startswith("-")]
    return bool({" ".join(words[:1]), " ".join(words)} & READING)


def url_of(server: RedisServer, role: str) -> str:
    """Return the URL with the login of a role, for other programs."""
    return f"unix://{role}:{PASSWORD}@{server.directory}/redis.sock"


def denials(prefix: str = "") -> list[str]:
    """Return what servers have refused to the users of roles in this test.

    Args:
        prefix: of keys that the users may use; a program of an earlier test that has not ended yet used others.
    """
    log = [*servers.REFUSED, *(entry for server in servers.RUNNING for entry in server.refused())]
    return [
        f"{entry['username']} may not use {entry['object']} ({entry['reason']}, {entry['context']})"
        for entry in log
        if entry["username"] in NAMES
        and entry["object"] not in TRIED
        and not entry["object"].endswith("}:format")
        and (entry["reason"] == "command" or prefix in entry["object"])
    ]
