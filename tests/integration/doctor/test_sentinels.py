"""What `orc doctor` says of a Sentinel group."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestrator.core.redis_url import parse_url
from orchestrator.doctor.findings import DoctorFinding, Severity
from orchestrator.doctor.runner import run_server_checks
from orchestrator.store.sentinel_locator import ask
from orchestrator.testing.waiting import wait_for
from tests.faultkit.sentinels import SentinelGroup
from tests.helpers.local_team import local_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = "doctor:test:t"


@pytest.fixture
def group() -> Iterator[SentinelGroup]:
    """A master, two replicas and three sentinels."""
    with SentinelGroup() as started:
        yield started


async def find(url: str, code: str = "redis-sentinel") -> list[DoctorFinding]:
    """What is found about a group."""
    return [one for one in (await run_server_checks(local_settings(url, PREFIX))).findings if one.code == code]


async def test_a_group(group: SentinelGroup) -> None:
    """The doctor wants `min-replicas-to-write`, says what is lost without it, and names silent sentinels."""
    (agreed, writes) = await find(group.url)
    assert (agreed.severity, agreed.found) == (Severity.OK, "3 of 3 sentinels answer, and can promote a replica")
    assert writes.severity is Severity.WARNING
    assert "all of them are lost" in writes.found
    for server in group.servers:
        with server.client() as client:
            client.execute_command("CONFIG", "SET", "min-replicas-to-write", 1, "min-replicas-max-lag", 2)
    assert [one.severity for one in await find(group.url)] == [Severity.OK, Severity.OK]

    some = group.url.replace(f",127.0.0.1:{group.sentinels[2].port}", "")
    assert "names 2 of 3 sentinels" in (await find(some))[0].found

    group.sentinels[0].kill()
    (silent, _) = await find(group.url)
    assert silent.severity is Severity.WARNING
    assert f"2 of 3 sentinels answer; 127.0.0.1:{group.sentinels[0].port}: " in silent.found

    group.sentinels[1].kill()
    place = parse_url(group.url)
    (last,) = [node for node in place.nodes if node.port == group.sentinels[2].port]
    await wait_for(
        lambda: "NOQUORUM" in str(ask(place, last, "CKQUORUM")[0]), "the last sentinel to miss the others", 20
    )
    found = await find(group.url)
    assert [one.severity for one in found] == [Severity.PROBLEM, Severity.PROBLEM, Severity.OK]
    assert "cannot promote a replica: NOQUORUM" in found[1].found


async def test_a_user_of_the_sentinels(group: SentinelGroup) -> None:
    """The rights that the guide names are enough, and the doctor says which one it lacks."""
    text = (Path(__file__).parents[3] / "docs" / "guides" / "scaling.md").read_text(encoding="utf-8")
    rights = re.findall(r"`(\+(?:sentinel|client)[^`]*)`", text)
    assert rights[-1] == "+sentinel|ckquorum"
    assert len(rights) == 2
    for sentinel in group.sentinels:
        with sentinel.client() as client:
            client.execute_command("ACL", "SETUSER", "watcher", "on", ">hunter2", "&*", *rights[0].split())
    url = f"{group.url}?sentinel_user=watcher&sentinel_password=hunter2"
    (denied, _) = await find(url)
    assert denied.severity is Severity.WARNING
    assert "is unknown: " in denied.found
    for sentinel in group.sentinels:
        with sentinel.client() as client:
            client.execute_command("ACL", "SETUSER", "watcher", rights[1])
    (agreed, _) = await find(url)
    assert agreed.severity is Severity.OK


async def test_no_sentinel_answers(group: SentinelGroup) -> None:
    """The server is not reached, and the reason of each sentinel is told, also a group that it does not watch."""
    port = group.sentinels[0].port
    (found,) = await find(f"redis+sentinel://:hunter2@127.0.0.1:{port},127.0.0.1:1/other", "redis-reach")
    assert found.severity is Severity.PROBLEM
    assert f"127.0.0.1:{port}: ERR No such master with that name" in found.found
    assert "127.0.0.1:1: " in found.found
    assert "hunter2" not in found.found
