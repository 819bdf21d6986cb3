"""Counts of the chats of a tenant: sizes replace each other, ended chats go, a lost key starts anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.chat import scripts
from orchestrator.chat.scripts import SizeRow
from tests.lua.scope import Scope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faultkit.servers import RedisServer

pytestmark = pytest.mark.every_server
NEVER = 10**14


@pytest.fixture
def tenant(redis_server: RedisServer, prefix: str) -> Iterator[Scope]:
    """The counts of a tenant."""
    scope = Scope(redis_server.url, prefix, "usage", "acme")
    yield scope
    scope.close()


def account(tenant: Scope, *rows: SizeRow) -> tuple[int, int, int]:
    """Count chats."""
    return tenant.call(scripts.account(tenant.keys, rows=rows))


def test_sizes_replace_each_other(tenant: Scope) -> None:
    """A repeat changes nothing; a chat counts once, whoever counts it."""
    assert account(tenant) == (0, 0, 0)
    assert not tenant.names()
    row = SizeRow("s:main", 100, 3, NEVER)
    assert account(tenant, row) == (100, 3, 1)
    assert account(tenant, row, SizeRow("t:main", 50, 1, NEVER)) == (150, 4, 2)
    assert account(tenant, row._replace(bytes=40, messages=1)) == (90, 2, 2)
    assert account(tenant, row._replace(bytes=0, messages=0)) == (50, 1, 2)
    assert [name for name in tenant.names() if tenant.store.execute("PTTL", name) < 0] == []


def test_ended_chats_go(tenant: Scope) -> None:
    """Those that are reported as ended, and those whose time has come."""
    rows = [SizeRow(f"s{n}:main", 10, 1, NEVER) for n in range(4)]
    account(tenant, *rows)
    assert account(tenant, rows[0]._replace(ends=0), SizeRow("unknown:main", 5, 5, 0)) == (30, 3, 3)
    tenant.store.execute("ZADD", tenant.keys.key("chat:seen"), 1, "s1:main")
    assert account(tenant) == (20, 2, 2)
    tenant.store.execute("ZADD", tenant.keys.key("chat:seen"), 1, "s2:main")
    assert account(tenant, rows[2]) == (20, 2, 2)


@pytest.mark.parametrize("lost", [["chat"], ["chat:seen"], ["chat:sizes"], ["chat:seen", "chat:sizes"]], ids=str)
def test_a_lost_key(tenant: Scope, lost: list[str]) -> None:
    """The counts begin anew, and are right when each chat has changed again."""
    rows = [SizeRow(f"s{n}:main", 10, 1, NEVER) for n in range(3)]
    account(tenant, *rows)
    for part in lost:
        tenant.store.execute("DEL", tenant.keys.key(part))
    assert account(tenant, rows[0]) == (10, 1, 1)
    assert account(tenant, *rows) == (30, 3, 3)
