"""Addresses of one server, of the sentinels of a group, and of a cluster."""

from __future__ import annotations

import ssl
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from redis.connection import ConnectionPool, SSLConnection

from orchestrator.client.client import Orchestrator
from orchestrator.core.errors import ConfigError
from orchestrator.core.redis_url import Node, RedisUrl, parse_url, url_problem
from orchestrator.core.secret_environment import secrets_in
from orchestrator.core.settings import Settings
from orchestrator.core.settings_sources import load_settings
from orchestrator.store.locating import locate
from tests.helpers.cases import each_case
from tests.helpers.subprocesses import ROOT

CANARY = "c4n4ry"


@each_case(
    ("url", "kind", "nodes", "service", "db"),
    [
        ("redis://h", "server", [("h", 6379)], "", 0),
        ("redis://u:p@[::1]:1/3", "server", [("::1", 1)], "", 0),
        ("unix:///run/r.sock", "server", [], "", 0),
        ("redis+sentinel://h/g", "sentinel", [("h", 26379)], "g", 0),
        ("redis+sentinel://a:1,b:2/my-group.1/7", "sentinel", [("a", 1), ("b", 2)], "my-group.1", 7),
        ("rediss+sentinel://u:p,q@[::1]:1,[::2],c/g/0", "sentinel", [("::1", 1), ("::2", 26379), ("c", 26379)], "g", 0),
        ("redis+sentinel://a:1,a:1/g", "sentinel", [("a", 1)], "g", 0),
        ("redis+cluster://a:1,b", "cluster", [("a", 1), ("b", 6379)], "", 0),
        ("rediss+cluster://:p@[::1]:1,1.0.0.1:2/0?ssl_ca_certs=x", "cluster", [("::1", 1), ("1.0.0.1", 2)], "", 0),
    ],
)  # fmt: skip
def test_parts(url: str, kind: str, nodes: list[tuple[str, int]], service: str, db: int) -> None:
    """Each form gives its places, the name of the group and the database."""
    parsed = parse_url(url)
    assert (parsed.kind, list(parsed.nodes), parsed.service, parsed.db) == (kind, nodes, service, db)
    assert parsed.is_encrypted == url.startswith("rediss")


def test_addresses_of_servers_and_sentinels() -> None:
    """A server gets the login, the database and the options; a sentinel has a login of its own and no database."""
    url = "rediss+sentinel://us%40er:p%2Fw@a,[::1]:2/g/3?ssl_certfile=c&sentinel_user=w&sentinel_password=s%40%2Bs"
    parsed = parse_url(url)
    assert parsed.server(Node("::2", 5)) == "rediss://us%40er:p%2Fw@[::2]:5/3?ssl_certfile=c"
    assert parsed.sentinel(Node("a", 5)) == "rediss://w:s%40%2Bs@a:5/0?ssl_certfile=c"
    kept = ConnectionPool.from_url(parsed.sentinel(parsed.nodes[1])).connection_kwargs
    assert (kept["host"], kept["port"], kept["username"], kept["password"]) == ("::1", 2, "w", "s@+s")
    made = ConnectionPool.from_url(parsed.server(parsed.nodes[0])).make_connection()
    assert isinstance(made, SSLConnection)
    assert (made.cert_reqs, made.check_hostname, made.certfile) == (ssl.CERT_REQUIRED, True, "c")
    assert parse_url("redis+sentinel://u:p@a/g").sentinel(Node("a", 1)) == "redis://a:1/0"
    assert parse_url("redis+sentinel://a/g?sentinel_password=x").sentinel(Node("a", 1)) == "redis://:x@a:1/0"
    assert parse_url("redis+cluster://u:p@a:1").server(Node("b", 2)) == "redis://u:p@b:2/0"


@each_case(
    ("url", "told"),
    [
        ("redis+sentinel://h", "name the group"),
        ("redis+sentinel://h/", "name the group"),
        (f"redis+sentinel://h/{CANARY} x", "name the group"),
        (f"redis+sentinel://h/g/{CANARY}", "number of the database"),
        (f"redis+sentinel://h/g/0/{CANARY}", "number of the database"),
        (f"redis+sentinel://h/g?{CANARY}", "name=value"),
        (f"redis+sentinel://h/g?sentinel_user={CANARY}", "sentinel_password"),
        (f"redis+sentinel://h/g?sentinel_password={CANARY}@x", "%40"),
        (f"redis+sentinel://h,:{CANARY}/g", "host:port,host:port"),
        (f"redis+sentinel://h,{CANARY}:/g", "host:port,host:port"),
        (f"redis+sentinel://h:{CANARY}/g", "host:port,host:port"),
        (f"redis+sentinel://h, {CANARY}/g", "host:port,host:port"),
        (f"redis+sentinel://[{CANARY}]:1/g", "host:port,host:port"),
        (f"redis+sentinel://h:70000,{CANARY}/g", "host:port,host:port"),
        (f"redis+sentinel://:{CANARY}\u2100@h/g", "percent-encode"),
        (f"redis+cluster://h/{CANARY}", "database 0"),
        (f"redis+cluster://h,,{CANARY}", "host:port,host:port"),
        (f"redis+cluster://h?sentinel_password={CANARY}", "no meaning"),
        (f"redis+other://{CANARY}", "must be redis://"),
        (f"redis://h?sentinel_password={CANARY}", "no meaning"),
        (f"redis://h?{CANARY}=1", "behind the ? there is an option that is none of db, password, sentinel_password"),
        (f"redis://h?ssl_ca_certs={CANARY}", "write rediss://"),
        (f"rediss://:{CANARY}@h?ssl_cert_reqs=none", "redis.tls_verify"),
        (f"rediss://:{CANARY}@h?ssl_check_hostname=false", "redis.tls_verify"),
        (f"redis://:{CANARY}#1@h", "# as %23"),
        (f"redis://:1#{CANARY}@h", "# as %23"),
        (f"redis://:{CANARY}/1@h", "/ as %2F"),
        (f"redis://:1/{CANARY}@h", "/ as %2F"),
        (f"redis://u@1/{CANARY}", "number of the database"),
        (f"redis://:{CANARY}?1@h", "? as %3F"),
        (f"redis://:{CANARY}%1@h", "% as %25"),
        (f"unix://:{CANARY}%zz@/run/s", "% as %25"),
        (f"redis+cluster://:{CANARY}%@h", "% as %25"),
        (f"redis://:{CANARY}\n1@h", "a character that a URL cannot have"),
        (f"redis://h/{CANARY}", "number of the database"),
        (f"redis://h/0#{CANARY}", "# as %23"),
        (f"redis://h?db={CANARY}", "the option db"),
    ],
)  # fmt: skip
def test_wrong_addresses(url: str, told: str) -> None:
    """The message says what to do, and has no text of the URL; so do settings, a client and a locator."""
    problem = url_problem(url)
    assert problem is not None
    assert told in problem
    refusals: list[str] = [problem]
    for refuse in (lambda: load_settings(overrides={"redis.url": url}), lambda: Orchestrator(url), lambda: locate(url)):
        with pytest.raises(ConfigError) as refused:
            refuse()
        refusals.append(str(refused.value))
    assert CANARY not in "".join(refusals)
    assert all(told in refusal for refusal in refusals)


@each_case(
    "url",
    [
        "redis://:{0}@h/0", "redis+sentinel://:{0}@h/g", "redis+sentinel://h/g?sentinel_password={0}",
        "rediss+sentinel://u@h/g?sentinel_user=w&sentinel_password={0}", "redis+cluster://u:{0}@[::1]:1,[::2]:2",
        "redis://h/0?password={0}", "unix:///run/s?password={0}", "redis://h/0?p%61ssword={0}",
    ],
)  # fmt: skip
def test_passwords_are_secrets(url: str) -> None:
    """Passwords of servers and sentinels are masked in logs, not passed to handlers, and no text shows them."""
    url = url.format(f"{CANARY}%21")
    settings = _settings(url)
    assert f"{CANARY}!" in settings.secrets
    assert secrets_in({"ORC_REDIS__URL": url}) == {"ORC_REDIS__URL": url}
    assert CANARY not in f"{parse_url(url)} {parse_url(url)!r} {[parse_url(url)]}"


def _settings(url: str) -> Settings:
    return Settings.model_validate({"redis": {"url": url}})


PASSWORDS = st.text(alphabet="ab1/#@%:?&=+[]\\\n \u00e9\u2100", max_size=12)


@given(
    password=PASSWORDS,
    encoded=st.booleans(),
    form=st.sampled_from(["redis://:{0}@host:7/3", "redis://u:{0}@host:7/3", "unix://u:{0}@/s"]),
)
@example(password="pa/ss", encoded=False, form="redis://:{0}@host:7/3")
@example(password="12#ss", encoded=False, form="redis://:{0}@host:7/3")
@example(password="p@ss", encoded=False, form="redis://:{0}@host:7/3")
@example(password="@/", encoded=False, form="unix://u:{0}@/s")
def test_redis_py_reads_what_is_accepted_alike(*, password: str, encoded: bool, form: str) -> None:
    """An encoded password is accepted; any that is accepted is the one that redis-py sends, to the host that is meant.

    What it sends is masked in every text.
    """
    url = form.format(quote(password, safe="") if encoded else password)
    if url_problem(url) is not None:
        assert not encoded
        return
    kept = ConnectionPool.from_url(url).connection_kwargs
    sent = kept.get("password", "")
    assert sent == password or not encoded
    if "path" in kept:
        # `unix://u:@/@/s` is the socket `/@/s`, with an empty password.
        assert kept["path"] == (parse_url(url).path if "@/" in password and not encoded else "/s")
    else:
        assert (kept.get("host"), kept.get("port"), kept.get("db")) == ("host", 7, 3)
    assert not sent or sent in parse_url(url).passwords


def test_one_module_takes_addresses_of_redis_apart() -> None:
    """A second parser would cut some passwords elsewhere."""
    readers = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "orchestrator").rglob("*.py")
        if "urlsplit" in (text := path.read_text()) or "urlparse" in text
    }
    # The others read addresses of payload stores.
    assert readers == {
        "orchestrator/core/redis_url.py", "orchestrator/core/settings.py", "orchestrator/payloads/opening.py",
    }  # fmt: skip


@each_case("url", ["redis://h/0", "redis+sentinel://a:1,[::1]:2/g", "redis+cluster://a:1,b:2"])
def test_addresses_without_a_password(url: str) -> None:
    """They are no secret: programs that handlers start may need them."""
    assert secrets_in({"ORC_REDIS__URL": url}) == {}
    assert _settings(url).secrets == ()


def test_texts() -> None:
    """The text names the places."""
    texts = {str(parse_url(url)) for url in ("redis+sentinel://u:p@a:1,[::1]:2/g", "unix://:p@/run/s", "redis://h")}
    assert texts == {"a:1,[::1]:2", "/run/s", "h:6379"}
    assert isinstance(parse_url("redis://h"), RedisUrl)
