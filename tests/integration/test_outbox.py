"""The outbox of the manual: a relay that is killed at any step neither loses an order nor ships one twice."""

from __future__ import annotations

import ast
import importlib.util
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.from_thread
import pytest

from orchestrator import Agent, QueueFull
from orchestrator.services import pool_keys
from orchestrator.store.script_files import all_scripts
from orchestrator.sync import Orchestrator, TaskHandle
from tests.docs.pages import ROOT, blocks
from tests.faultkit.commands import script
from tests.faultkit.processes import ActorProcess
from tests.faultkit.proxy import ThreadedProxy
from tests.helpers.end_state import records
from tests.helpers.local_team import TIMEOUT_S, run_local_team

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator
    from pathlib import Path

    import redis

    from orchestrator.core.settings import Settings
    from tests.faultkit.servers import RedisServer

EXAMPLE: Final = ROOT / "examples" / "outbox.py"
ORDERS: Final = 3

_DIES = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import outbox
from orchestrator.sync import Orchestrator

at = sys.argv[3]
database = outbox.connect(sys.argv[2])
if at:
    # Called before each statement is run, also for those that sqlite3 makes by itself.
    database.set_trace_callback(lambda sql: os.kill(os.getpid(), signal.SIGKILL) if sql.startswith(at) else None)
if len(sys.argv) > 4:
    outbox.place_order(database, int(sys.argv[4]), "a lamp")
else:
    with Orchestrator() as orc:
        print("relayed", outbox.relay(database, orc))
"""


KILLS: Final = {
    "before it reads": ("SELECT id, skill", 0, 0),
    "before Redis has the second order": ("request", 1, 1),
    "before it hears that Redis has the second order": ("reply", 2, 1),
    "before it marks the first order": ("UPDATE", 1, 0),
    "before the first mark is committed": ("COMMIT", 1, 0),
}
"""Where; how many orders Redis has then, how many are marked."""


@dataclass(frozen=True, slots=True)
class Shop:
    """The example as a module, and a database with three orders that nobody has relayed."""

    outbox: Any
    database: sqlite3.Connection
    folder: Path
    settings: Settings
    server: RedisServer
    direct: redis.Redis

    def tasks(self) -> list[str]:
        """The tasks that Redis has."""
        return list(records(self.direct, pool_keys(self.settings)))

    def marked(self) -> list[str]:
        """The tasks that are noted in the outbox."""
        return [task for (task,) in self.database.execute("SELECT task FROM outbox WHERE task IS NOT NULL")]

    def process(self, url: str, *, dies_at: str, order: str = "") -> ActorProcess:
        """Describe a process that relays, or places an order, and is killed before a statement that begins so."""
        environ = {"ORC_REDIS__URL": url, "ORC_PREFIX": self.settings.prefix}
        arguments = [str(EXAMPLE.parent), str(self.folder / "shop.db"), dies_at, *([order] if order else [])]
        return ActorProcess.python("-c", _DIES, *arguments, name="relay", env=environ)

    def relay_until_killed(self, at: str) -> None:
        """Relay in a process that dies at one of `KILLS`."""
        submit = script(all_scripts()["tasks/submit"].sha)
        with (
            ThreadedProxy(self.server.url) as proxy,
            self.process(proxy.url, dies_at="" if at in {"request", "reply"} else at) as relay,
        ):
            if at == "request":
                proxy.fail_command(submit, nth=2)
                proxy.watch(submit, lambda _: relay.kill(), nth=2)
            elif at == "reply":
                proxy.watch(submit, lambda _: relay.kill(), nth=2, where="reply")
            assert relay.wait_exit(15) == -9, relay.output
            assert "relayed" not in relay.output

    def shipped(self) -> Counter[int]:
        """Let a warehouse run what is there; how often each order was shipped."""
        seen: Counter[int] = Counter()
        warehouse = Agent("warehouse")

        @warehouse.skill
        async def ship(number: int, item: str) -> str:
            seen[number] += 1
            return item

        with (
            anyio.from_thread.start_blocking_portal(name="team") as portal,
            portal.wrap_async_context_manager(run_local_team(self.settings)) as team,
            Orchestrator(settings=self.settings) as orc,
        ):
            portal.call(team.work, warehouse)
            handles = [orc.task(id_) for id_ in self.tasks()]
            assert len(list(orc.as_completed(handles, timeout=TIMEOUT_S))) == len(handles)
        return seen


@pytest.fixture
def shop(tmp_path: Path, settings: Settings, redis_server: RedisServer, redis_client: redis.Redis) -> Iterator[Shop]:
    """One whose orders are placed in this process."""
    spec = importlib.util.spec_from_file_location("outbox", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    outbox = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(outbox)
    with closing(outbox.connect(tmp_path / "shop.db")) as database:
        for number in range(ORDERS):
            outbox.place_order(database, number, "a kettle")
        yield Shop(outbox, database, tmp_path, settings, redis_server, redis_client)


@pytest.fixture
def orc(settings: Settings) -> Iterator[Orchestrator]:
    """The client of a relay in this process."""
    with Orchestrator(settings=settings) as client:
        yield client


@pytest.mark.parametrize(
    "where", [pytest.param(where, marks=[pytest.mark.slow] * where.startswith("before it")) for where in KILLS]
)
def test_a_relay_that_is_killed(where: str, shop: Shop, orc: Orchestrator) -> None:
    """The next one sends the rest; every order is one task, is marked with it, and is shipped once."""
    at, tasks, marks = KILLS[where]
    shop.relay_until_killed(at)
    assert (len(shop.tasks()), len(shop.marked())) == (tasks, marks)
    assert shop.outbox.relay(shop.database, orc) == ORDERS - marks
    assert shop.outbox.relay(shop.database, orc) == 0
    assert sorted(shop.marked()) == sorted(shop.tasks())
    assert shop.shipped() == Counter(range(ORDERS))


def test_without_the_key_an_order_is_shipped_twice(
    shop: Shop, orc: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the key that protects: a relay that leaves it out sends what was sent again."""
    submit = orc.submit

    def forget_the_key(skill: str, args: dict[str, Any], **_: object) -> TaskHandle[Any]:
        return submit(skill, args)

    shop.relay_until_killed("UPDATE")
    monkeypatch.setattr(orc, "submit", forget_the_key)
    shop.outbox.relay(shop.database, orc)
    assert shop.shipped() == Counter({0: 2, 1: 1, 2: 1})


def test_who_dies_while_it_orders_has_ordered_nothing(shop: Shop) -> None:
    """Killed before the commit: neither the order nor its row in the outbox is there."""
    with shop.process(shop.server.url, dies_at="COMMIT", order="7") as buyer:
        assert buyer.wait_exit(15) == -9, buyer.output
    assert shop.database.execute("SELECT count(*) FROM orders WHERE number = 7").fetchone() == (0,)
    assert shop.database.execute("SELECT count(*) FROM outbox").fetchone() == (ORDERS,)


def test_what_will_always_be_refused_holds_up_no_other(shop: Shop, orc: Orchestrator) -> None:
    """A row that cannot be a task, and one whose key has another body, are set aside with the reason."""
    with shop.database:
        shop.outbox.enqueue(shop.database, "no skill has blanks", {})
        shop.outbox.enqueue(shop.database, "ship", {"number": 8, "item": "a lamp"})
    (key,) = shop.database.execute("SELECT id FROM outbox ORDER BY position DESC").fetchone()
    orc.submit("ship", {"number": 9}, key=key)
    assert shop.outbox.relay(shop.database, orc) == ORDERS + 2
    assert shop.outbox.relay(shop.database, orc) == 0
    refused = shop.database.execute("SELECT refused FROM outbox WHERE refused IS NOT NULL ORDER BY position")
    (first,), (second,) = refused.fetchall()
    assert "no skill has blanks" in first
    assert "another body" in second
    assert len(shop.marked()) == ORDERS


@pytest.mark.parametrize("settings", [{"queue__max_tasks": 2}], indirect=True)
def test_what_is_refused_now_is_sent_later(shop: Shop, orc: Orchestrator) -> None:
    """A full queue raises, and the rows stay; when there is room they are sent."""
    with pytest.raises(QueueFull):
        shop.outbox.relay(shop.database, orc)
    assert len(shop.marked()) == 2
    orc.task(shop.marked()[0]).cancel()
    assert shop.outbox.relay(shop.database, orc) == 1
    assert len(set(shop.marked())) == ORDERS


def test_the_page_shows_the_example() -> None:
    """Every function and the table on the page are those of the example."""
    example = EXAMPLE.read_text(encoding="utf-8")
    shown = [block.text for block in blocks("docs/guides/outbox.md") if block.language == "python"]
    parts = [ast.get_source_segment(text, node) for text in shown for node in ast.parse(text).body]
    known = [part for part in parts if part and part.startswith(("def ", "SCHEMA", "KEPT", "@agent", "async def"))]
    assert len(known) >= 5
    assert [part for part in known if part not in example] == []
