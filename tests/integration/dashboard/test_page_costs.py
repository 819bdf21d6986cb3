"""Every page reads a bounded part of a pool, however large it is.

`python -m tests.integration.dashboard.test_page_costs [SHARE]` fills a pool of its own with a share of 10^6 tasks, and
prints the table of the guide with times.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import pytest

from orchestrator.dashboard import pages
from orchestrator.dashboard.page import PAGES
from tests.helpers.counted_reads import counted_reads
from tests.helpers.large_pool import PoolSize, fill
from tests.helpers.local_team import local_settings, run_local_team
from tests.helpers.web_client import WebClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import redis

    from orchestrator.core.settings import Settings

MOST_TRIPS, MOST_COMMANDS, MOST_BYTES = 5, 300, 200_000
ROUNDS: Final = 20
"""Visits of one page for its time."""
END: Final = "end of the page"
OF_LOGIN: Final = 1
"""The key of the session cookie, or the user of the session, is read before the page."""
DEARER: Final = {
    "/bulk/": (20, 3_000),  # the question reads up to 1,000 tasks, to act on these and no others
    "/tasks": (8, MOST_COMMANDS),  # a list without an index goes from place to place, in the order in which tasks move
}


@dataclass
class PageCost:
    """What one visit of a page costs: round trips, commands, bytes, and seconds of each visit."""

    trips: int = 0
    commands: list[str] = field(default_factory=list)
    inside: set[str] = field(default_factory=set)
    size: int = 0
    took_s: list[float] = field(default_factory=list)

    @property
    def p95_ms(self) -> float:
        """Milliseconds that 95 of 100 visits take at most."""
        return sorted(self.took_s)[int(len(self.took_s) * 0.95) - 1] * 1000


def addresses(names: Mapping[str, str]) -> Iterator[str]:
    """Yield one address of each page, and more of those that take filters."""
    assert pages.ALL
    session = names["session"]
    for page in PAGES:
        if page.path.startswith("/sessions/"):
            yield f"{page.path}?" + urlencode({"id": session, "path": "part/1", "from": 0})
        elif page.path == "/bulk/{action}":
            yield from ("/bulk/cancel?skill=skill-1", "/bulk/purge?queue=skill%3Askill-1", "/bulk/retry?skill=fail")
        elif page.path == "/memory":
            yield "/memory?agent=editor"
        elif page.path == "/doctor":
            yield "/doctor"
        else:
            yield page.path.format(
                id=names["command" if page.path.startswith("/control") else "task"],
                agent="agent-1",
                queue=quote("skill:skill-1", safe=""),
                worker=quote(names["worker"], safe=""),
                kind="pause-agent",
                budget=names["budget"],
                limit=names["limit"],
            )
    yield f"/tasks/{names['question']}"
    yield from (
        "/tasks?" + urlencode(query)
        for query in (
            *({"state": state} for state in ("ready", "dead", "succeeded", "awaiting_input")),
            *(
                {"skill": "skill-7"},
                {"agent": "agent-1"},
                {"session": session},
                {"tag": "blog"},
                {"queue": "skill:skill-1"},
            ),
            *({"error": "column a"}, {"state": "dead", "reason": "column a"}, {"state": "ready", "skill": "nothing"}),
        )
    )
    yield from ("/agents?starts=agent-9", "/queues?starts=skill", "/workers?starts=host-1", "/dead?skill=fail")
    yield from (
        "/sessions?contains=99",
        "/sessions?contains=nothing",
        "/control?kind=stop",
        "/limits?starts=x",
        "/limits?starts=provider",
    )
    yield from ("/budgets?starts=budget-9", "/budgets?after=budget-77")
    yield from ("/submit?skill=write", "/submit?skill=nobody-has-it")


@contextmanager
def _watched(client: redis.Redis, cost: PageCost) -> Iterator[None]:
    """Note the commands that the server gets in the block, and those that scripts send."""
    with client.monitor() as monitor, client.client() as other:  # type: ignore[no-untyped-call]
        yield
        other.echo(END)
        while END not in (seen := monitor.next_command())["command"]:
            name = seen["command"].split(" ")[0].upper()
            if seen["client_type"] == "lua":
                cost.inside.add(name)
            else:
                cost.commands.append(name)


async def _visit(web: WebClient, address: str) -> int:
    web.dashboard.forget_reads()
    answer = await web.get(address)
    assert answer.status_code == 200, (address, answer.text[-2000:])
    return len(answer.content)


async def measure(settings: Settings, size: PoolSize, client: redis.Redis, rounds: int) -> dict[str, PageCost]:
    """Fill a pool, and visit every page of it."""
    costs: dict[str, PageCost] = {}
    async with run_local_team(settings, supervised=False) as team:
        names = await fill(team, size)
        web = WebClient(team.orc)
        await web.log_in()
        with pytest.MonkeyPatch.context() as patch:
            for address in addresses(names):
                cost = costs[address] = PageCost()
                await _visit(web, address)  # loads scripts
                with counted_reads(web.dashboard.services.store, patch) as counted, _watched(client, cost):
                    cost.size = await _visit(web, address)
                cost.trips = counted.trips
                for _ in range(rounds):
                    began_s = time.perf_counter()
                    await _visit(web, address)
                    cost.took_s.append(time.perf_counter() - began_s)
    return costs


def _check(costs: Mapping[str, PageCost]) -> None:
    dear = []
    for address, cost in costs.items():
        kind = "/bulk/" if address.startswith("/bulk/") else address.partition("?")[0]
        trips, commands = DEARER.get(kind, (MOST_TRIPS, MOST_COMMANDS))
        if cost.trips > trips + OF_LOGIN or len(cost.commands) > commands or cost.size > MOST_BYTES:
            dear.append(f"{address}: {cost.trips} trips, {len(cost.commands)} commands, {cost.size} bytes")
    assert dear == [], "\n".join(dear)
    assert not {"SCAN", "KEYS"} & {name for cost in costs.values() for name in (*cost.commands, *cost.inside)}


async def test_costs(settings: Settings, redis_client: redis.Redis) -> None:
    """No page sends more than 5 round trips and 300 commands, a SCAN or KEYS, or answers more than 200 KB."""
    _check(await measure(settings, PoolSize().times(0.002), redis_client, 0))


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_costs_in_a_large_pool(settings: Settings, redis_client: redis.Redis) -> None:
    """The bounds hold in a pool of 100,000 tasks, 100 agents, 1,000 sessions and 1,000 dead letters."""
    _check(await measure(settings, PoolSize().times(0.1), redis_client, 0))


def _table(costs: Mapping[str, PageCost]) -> str:
    lines = ["| Page | p95 (ms) | Round trips | Commands | kB |", "|---|---:|---:|---:|---:|"]
    for address, cost in costs.items():
        row: tuple[Any, ...] = (
            address.replace("|", "%7C"), f"{cost.p95_ms:.0f}", cost.trips, len(cost.commands), f"{cost.size / 1000:.0f}"
        )  # fmt: skip
        lines.append("| `{}` | {} | {} | {} | {} |".format(*row))
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    import anyio

    from tests.helpers.server_matrix import NEWEST, start_server

    share = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    with start_server(NEWEST) as server, server.client() as client:
        settings = local_settings(server.url, "costs:pool:costs")
        costs = anyio.run(measure, settings, PoolSize().times(share), client, ROUNDS)
    sys.stdout.write(_table(costs) + "\n")
    _check(costs)


if __name__ == "__main__":
    main()
