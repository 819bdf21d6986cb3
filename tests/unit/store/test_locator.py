"""Addresses, hash slots, keys of commands, and what a fixed locator learns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.core.errors import ServerUnavailable
from orchestrator.store.failures import Redirected, translate
from orchestrator.store.locator import Address, FixedLocator, key_of
from tests.helpers.cases import each_case

if TYPE_CHECKING:
    from orchestrator.store.calls import Argument


@each_case(
    ("home", "host", "port", "wanted"),
    [
        ("redis://h:1/2", "10.0.0.1", 7, "redis://10.0.0.1:7/2"),
        ("rediss://u:p%40s@h:1/0?ssl_ca_certs=x", "n", 7, "rediss://u:p%40s@n:7/0?ssl_ca_certs=x"),
        ("redis://:pw@[::1]:1/0", "fe80::2", 7, "redis://:pw@[fe80::2]:7/0"),
        ("redis://u:pw@h:1/0", "", 7, "redis://u:pw@h:7/0"),
        ("redis://[::1]:1/0", "?", 7, "redis://[::1]:7/0"),
        ("unix:///run/redis.sock", "n", 7, "redis://n:7/0"),
        ("unix://u:pw@/run/redis.sock?db=0", "n", 7, "redis://u:pw@n:7/0"),
    ],
)
def test_an_address_of_the_same_cluster(home: str, host: str, port: int, wanted: str) -> None:
    """Only host and port change; the login, the scheme and the options stay."""
    assert Address(home).at(host, port) == Address(wanted)


def test_no_text_shows_the_login() -> None:
    """Neither an address nor an error that names one."""
    address = Address("redis://user:hunter2@h:1/0").at("n", 7)
    assert (str(address), repr(address)) == ("n:7", "Address(n:7)")
    assert str(Address("unix://user:hunter2@/run/s?db=0")) == "/run/s"
    assert "hunter2" in address.url


@each_case(
    ("text", "wanted"),
    [
        ("MOVED 3999 127.0.0.1:6381", (3999, "127.0.0.1", 6381, False)),
        ("MOVED 1 fe80::2:6381", (1, "fe80::2", 6381, False)),
        ("ASK 3999 :6381", (3999, "", 6381, True)),
    ],
)
def test_redirects(text: str, wanted: tuple[int, str, int, bool]) -> None:
    """Both answers are told as not run; a caller that does not follow them may try again."""
    error = translate(Exception(text), what="GET", sent=True, at=Address("redis://h:1/0"))
    assert isinstance(error, Redirected)
    assert (error.slot, error.host, error.port, error.asking) == wanted
    assert isinstance(error, ServerUnavailable)
    assert not error.outcome_unknown
    assert error.retry_within_s == 0.2


@each_case(
    ("command", "wanted"),
    [
        (("GET", "k"), "k"),
        (("GET", b"k"), b"k"),
        (("EVALSHA", "sha", 1, "k", "v"), "k"),
        (("EVAL", "return 1", 0, "v"), None),
        (("XREAD", "COUNT", 1, "BLOCK", 0, "STREAMS", "k", "l", "0", "0"), "k"),
        (("XREADGROUP", "GROUP", "g", "w", "COUNT", 1, "STREAMS", "k", ">"), "k"),
        (("XINFO", "STREAM", "k"), "k"),
        (("SSUBSCRIBE", "k"), "k"),
        (("TIME",), None),
        (("SCAN", b"0", "MATCH", "k*"), None),
    ],
)
def test_keys_of_commands(command: tuple[Argument, ...], wanted: str | bytes | None) -> None:
    """The first key decides where a command goes."""
    assert key_of(command) == wanted


def test_a_fixed_locator() -> None:
    """It has one address for all slots, but for those that MOVED placed elsewhere."""
    home, other = Address("redis://h:1/0"), Address("redis://n:2/0")
    locator = FixedLocator(home)
    assert locator.single is home
    locator.moved(5, other)
    assert (locator.single is None, locator.address(5), locator.address(6)) == (True, other, home)
    locator.moved(5, Address("redis://h:1/0"))
    assert (locator.single, locator.address(5)) == (home, home)
    locator.moved(5, other)
    locator.doubt(home)
    assert locator.address(5) == other
    locator.doubt(Address("redis://n:2/0"))
    assert (locator.single, locator.address(5)) == (home, home)
