"""Reads the address of Redis: one server, the sentinels of a group, or some nodes of a cluster.

No other module takes such a URL apart, and redis-py reads only URLs that this module has accepted or made. No message
has text of the URL, because any part of a URL that is wrong may be part of its password.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, quote, unquote, unquote_plus, urlencode, urlsplit

from orchestrator.core.errors import InvalidInput

Kind: TypeAlias = Literal["server", "sentinel", "cluster"]

Verify: TypeAlias = Literal["full", "ca", "none"]
"""What is checked of a server's certificate: all, all but the name of its host, nothing."""

_KINDS: Final[dict[str, Kind]] = {
    "redis": "server",
    "rediss": "server",
    "unix": "server",
    "redis+sentinel": "sentinel",
    "rediss+sentinel": "sentinel",
    "redis+cluster": "cluster",
    "rediss+cluster": "cluster",
}
_PORTS: Final = {"server": 6379, "sentinel": 26_379, "cluster": 6379}
_HALF_ENCODED: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_DB: Final = re.compile(r"[0-9]{1,9}")
_NAME: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_.])?")
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_SENTINEL_USER, _SENTINEL_PASSWORD = "sentinel_user", "sentinel_password"
TLS_CA, TLS_CERT, TLS_KEY = "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"
_TLS_FILES: Final = frozenset({TLS_CA, TLS_CERT, TLS_KEY, "ssl_ca_path"})
_OPTIONS: Final = _TLS_FILES | {"db", "username", "password", "ssl_password", _SENTINEL_USER, _SENTINEL_PASSWORD}
_UNVERIFIED: Final[dict[Verify, dict[str, str]]] = {
    "full": {},
    "ca": {"ssl_check_hostname": "false"},
    "none": {"ssl_check_hostname": "false", "ssl_cert_reqs": "none"},
}

FORMS: Final = (
    "must be redis://host:port/db, rediss://…, unix:///path/to/socket, redis+sentinel://host:port,…/service/db or "
    "redis+cluster://host:port,…"
)
_ENCODE: Final = (
    "percent-encode special characters of the user and the password: / as %2F, ? as %3F, # as %23, [ as %5B, ] as %5D, "
    "@ as %40, % as %25"
)


class Node(NamedTuple):
    """Place of one program: a server or a sentinel."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, repr=False)
class RedisUrl:
    """The parts of a valid URL. Its text leaves the logins out.

    Attributes:
        url: the whole, with the passwords.
        scheme: as written.
        kind: what the nodes are: the server, sentinels, or nodes of a cluster.
        nodes: where they are; empty for a socket.
        path: of a socket, else empty.
        service: name of the group that the sentinels watch, else empty.
        db: number of the database, where the sentinels name the server.
        login: user and password as written in the URL, with the `@`, or empty.
        options: the query, without the login of the sentinels, and what `with_tls` added.
        sentinel_login: `login` of the sentinels.
    """

    url: str
    scheme: str
    kind: Kind
    nodes: tuple[Node, ...]
    path: str
    service: str
    db: int
    login: str
    options: tuple[tuple[str, str], ...]
    sentinel_login: str

    @property
    def is_encrypted(self) -> bool:
        """True if connections use TLS: to the servers and to the sentinels."""
        return self.scheme.startswith("rediss")

    @property
    def is_local(self) -> bool:
        """True if only programs of this machine are named."""
        return all(node.host in _LOCAL for node in self.nodes)

    @property
    def passwords(self) -> tuple[str, ...]:
        """The passwords as written in the URL, and decoded."""
        written = [login.removesuffix("@").partition(":")[2] for login in (self.login, self.sentinel_login)]
        pairs = [pair.partition("=") for pair in self.url.partition("?")[2].split("&")]
        written += [value for name, _, value in pairs if unquote(name).endswith("password")]
        found = {text for one in written for text in (one, unquote(one), unquote_plus(one))}
        found |= {value for name, value in self.options if name.endswith("password")}
        return tuple(sorted(found - {""}))

    def with_tls(self, *, ca: str | None, cert: str | None, key: str | None, verify: Verify) -> RedisUrl:
        """Return it with files in place of those that the URL names, and with what connections check.

        Raises:
            InvalidInput: the URL uses no TLS, and there is something that is for TLS only.
        """
        files = {name: path for name, path in ((TLS_CA, ca), (TLS_CERT, cert), (TLS_KEY, key)) if path is not None}
        if not self.is_encrypted and (files or verify != "full"):
            raise InvalidInput("redis.tls_… have no meaning without TLS; write rediss:// in redis.url, or remove them")
        added = {**files, **_UNVERIFIED[verify]}
        if not added:
            return self
        options = (*(pair for pair in self.options if pair[0] not in added), *added.items())
        before, _, query = self.url.partition("?")
        of_sentinels = [pair for pair in parse_qsl(query) if pair[0] in {_SENTINEL_USER, _SENTINEL_PASSWORD}]
        return replace(self, url=f"{before}?{urlencode([*options, *of_sentinels])}", options=options)

    def server(self, node: Node) -> str:
        """Return the URL of a server at a node, with the login and the options."""
        return self._plain(node, self.login, self.db)

    def sentinel(self, node: Node) -> str:
        """Return the URL of a sentinel at a node, with its login and the options."""
        return self._plain(node, self.sentinel_login, 0)

    def _plain(self, node: Node, login: str, db: int) -> str:
        query = f"?{urlencode(self.options)}" if self.options else ""
        return f"{'rediss' if self.is_encrypted else 'redis'}://{login}{node}/{db}{query}"

    def __str__(self) -> str:
        return ",".join(str(node) for node in self.nodes) or self.path

    def __repr__(self) -> str:
        return f"RedisUrl({self.kind} {self})"


def place_of(url: str) -> str:
    """Return host and port of the URL of a server as written, or the path of its socket, without the login."""
    parts = urlsplit(url)
    return unquote(parts.path) if parts.scheme == "unix" else parts.netloc.rpartition("@")[2]


def public_text(url: str) -> str:
    """Return the URL of a server for messages: without login and options."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{place_of(url)}{parts.path if parts.scheme != 'unix' else ''}"


def beside(url: str, host: str, port: int) -> str:
    """Return the URL of another server with the same login and options; without a host, on the host of this one."""
    parts = urlsplit(url)
    login, at, _ = parts.netloc.rpartition("@")
    place = Node(parts.hostname or "localhost" if host in {"", "?"} else host, port)
    if parts.scheme == "unix":
        return f"redis://{login}{at}{place}/0"
    return parts._replace(netloc=f"{login}{at}{place}").geturl()


def url_problem(url: str) -> str | None:
    """Return why a URL is not the address of Redis, without any text of the URL; None if it is one."""
    try:
        parse_url(url)
    except InvalidInput as wrong:
        return str(wrong)
    return None


def parse_url(url: str) -> RedisUrl:
    """Return the parts of a URL.

    Raises:
        InvalidInput: it is not the address of Redis.
    """
    scheme, separator, rest = url.partition("://")
    kind = _KINDS.get(scheme)
    if kind is None or not separator or not rest:
        raise InvalidInput(FORMS)
    # Parsers drop some of these, and take others for the end of the password.
    if not rest.isprintable() or not {"#", "\\"}.isdisjoint(rest) or _HALF_ENCODED.search(rest):
        raise InvalidInput(f"there is a character that a URL cannot have; {_ENCODE}")
    if kind == "server":
        return _parse_server(url, scheme)
    place, path, query = _split(rest)
    login, at, hosts = place.rpartition("@")
    nodes = _nodes(hosts, _PORTS[kind])
    service, db = _group(path) if kind == "sentinel" else _no_group(path)
    options = _options(query, scheme)
    given = {name: value for name, value in options if name in {_SENTINEL_USER, _SENTINEL_PASSWORD}}
    return RedisUrl(
        url=url,
        scheme=scheme,
        kind=kind,
        nodes=nodes,
        path="",
        service=service,
        db=db,
        login=f"{login}{at}",
        options=tuple(pair for pair in options if pair[0] not in given),
        sentinel_login=_sentinel_login(given),
    )


def _parse_server(url: str, scheme: str) -> RedisUrl:
    if not _is_whole(url):
        raise InvalidInput(f"the host or the port is invalid; {_ENCODE}")
    parts = urlsplit(url)
    login, at, _ = parts.netloc.rpartition("@")
    is_socket = scheme == "unix"
    if not is_socket and parts.path not in {"", "/"} and not _DB.fullmatch(parts.path[1:]):
        raise InvalidInput(f"behind the host only the number of the database may follow, as in /0; {_ENCODE}")
    return RedisUrl(
        url=url,
        scheme=scheme,
        kind="server",
        nodes=() if is_socket else (Node(parts.hostname or "localhost", parts.port or _PORTS["server"]),),
        path=unquote(parts.path) if is_socket else "",
        service="",
        db=0,
        login=f"{login}{at}",
        options=tuple(_options(parts.query, scheme)),
        sentinel_login="",
    )


def _is_whole(url: str) -> bool:
    """Return whether host and port are valid, and no / ? or # cuts the password."""
    try:
        parts = urlsplit(url)
        _ = parts.hostname, parts.port
    except ValueError:  # its message has a part of the URL, which may be one of the password
        return False
    if "@" in parts.netloc:
        return True
    # The path of a socket may have an @, and has no host before it.
    cut = parts.netloc if parts.scheme == "unix" else True
    return not (cut and "@" in f"{parts.path}{parts.query}{parts.fragment}")


def _split(rest: str) -> tuple[str, str, str]:
    """Return hosts with login, path and query. `urlsplit` refuses several hosts, above all of IPv6."""
    if not rest.isascii():
        raise InvalidInput(f"there is a character that a URL cannot have; {_ENCODE}")
    before, _, query = rest.partition("?")
    place, _, path = before.partition("/")
    if "@" in f"{path}{query}":
        raise InvalidInput(f"there is an @ behind the hosts; {_ENCODE}")
    return place, path, query


def _nodes(hosts: str, default: int) -> tuple[Node, ...]:
    """Return the places in `host:port,host:port`."""
    return tuple(dict.fromkeys(_node(one, default) for one in hosts.split(",")))


def _node(place: str, default: int) -> Node:
    host, port = place, ""
    if place.startswith("["):
        host, _, behind = place[1:].partition("]")
        port = behind.removeprefix(":")
        known = _is_ipv6(host) and (not behind or behind.startswith(":"))
    else:
        host, _, port = place.partition(":")
        known = _NAME.fullmatch(host) is not None
    number = int(port) if port.isdecimal() and port.isascii() and len(port) <= 5 else 0 if port else default
    if not known or not 1 <= number <= 65_535 or place.endswith(":"):
        raise InvalidInput(
            "a host or a port is invalid; write host:port,host:port with IPv6 addresses as [::1]:port, without blanks; "
            f"{_ENCODE}"
        )
    return Node(host, number)


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def _group(path: str) -> tuple[str, int]:
    service, _, db = path.partition("/")
    service = unquote(service)
    if not _NAME.fullmatch(service):
        raise InvalidInput("name the group that the sentinels watch behind the hosts, as in …:26379/mymaster/0")
    if db and not (db.isdecimal() and len(db) <= 9):
        raise InvalidInput("behind the name of the group only the number of the database may follow, as in /mymaster/0")
    return service, int(db or 0)


def _no_group(path: str) -> tuple[str, int]:
    if path not in {"", "0"}:
        raise InvalidInput("a cluster has database 0 only; remove what follows the hosts")
    return "", 0


def _options(query: str, scheme: str) -> list[tuple[str, str]]:
    try:
        found = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise InvalidInput("behind the ? only options as name=value&name=value may follow") from None
    names = {name for name, _ in found}
    if names & {"ssl_cert_reqs", "ssl_check_hostname"}:
        raise InvalidInput("what is checked of a certificate is set by redis.tls_verify; remove it from the query")
    if names & {_SENTINEL_USER, _SENTINEL_PASSWORD} and _KINDS[scheme] != "sentinel":
        raise InvalidInput("a login of sentinels has no meaning without sentinels; remove it from the query")
    if names - _OPTIONS:
        raise InvalidInput(f"behind the ? there is an option that is none of {', '.join(sorted(_OPTIONS))}")
    if not all(_DB.fullmatch(value) for name, value in found if name == "db"):
        raise InvalidInput("the option db takes the number of a database")
    if names & _TLS_FILES and not scheme.startswith("rediss"):
        raise InvalidInput("options that begin with ssl_ have no meaning without TLS; write rediss://, or remove them")
    return found


def _sentinel_login(given: dict[str, str]) -> str:
    if not given.get(_SENTINEL_PASSWORD):
        if given:
            raise InvalidInput(f"{_SENTINEL_USER} needs {_SENTINEL_PASSWORD}, which must not be empty")
        return ""
    return f"{quote(given.get(_SENTINEL_USER, ''), safe='')}:{quote(given[_SENTINEL_PASSWORD], safe='')}@"
