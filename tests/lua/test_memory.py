"""What a queued and an ended task cost in memory, with the server's settings that the project ships."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

import orchestrator.embedded
from orchestrator.core.ids import TaskIds
from orchestrator.core.settings import Settings
from orchestrator.store.keys import PoolKeys
from orchestrator.store.store import Endpoint, SyncStore
from orchestrator.tasks.model import Delivery, Verdict, VerdictKind, encode_plain
from orchestrator.tasks.scripts import finish, submit
from orchestrator.tasks.submission import Submission, SubmissionValidator
from tests.faultkit.servers import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.tasks.scripts import SubmitRow

SHIPPED = Path(orchestrator.embedded.__file__).with_name("redis.conf").read_text(encoding="utf-8")
MAX_BYTES = 420
# Enough for fixed costs not to count, and few enough for tables of 2**16 that do not grow during the measurement.
FIRST, TASKS = 1000, 60_000


@pytest.fixture
def store() -> Iterator[SyncStore]:
    """The default pool on an empty server that keeps hashes as the shipped settings say."""
    settings = Settings()
    keys = PoolKeys(settings.prefix, settings.pool)
    with RedisServer(options=dict(re.findall(r"^(hash-\S+) (\S+)$", SHIPPED, re.MULTILINE))) as server:
        store = SyncStore(Endpoint.at(server.url), keys, name="test")
        yield store
        store.close()


def usual(validator: SubmissionValidator, number: int) -> SubmitRow:
    """A task without options and with 100 bytes of arguments."""
    url = f"https://example.org/articles/2024/11/redis-streams/{number:05}"
    return validator.row(Submission("summarise", {"url": url, "style": "short", "words": 123456789}))


def fill(store: SyncStore, validator: SubmissionValidator, count: int) -> None:
    """Submit so many tasks in calls of 500."""
    for start in range(0, count, 500):
        rows = [usual(validator, number) for number in range(start, start + 500)]
        store.call(submit(store.keys, rows=rows, max_tasks=10**6, max_wait_s=1_209_600))


def used_bytes(store: SyncStore) -> int:
    """Memory that the server uses, without the buffers of its clients and what scripts left for their collector."""
    lines = store.execute("INFO", "memory").decode().splitlines()
    facts = dict(line.split(":") for line in lines if ":" in line)
    return int(facts["used_memory"]) - int(facts["mem_clients_normal"]) - int(facts["used_memory_vm_total"])


def test_bytes_per_queued_task(store: SyncStore) -> None:
    """A queued task with 100 bytes of arguments takes at most 420 bytes, its places in all indexes included."""
    validator = SubmissionValidator(Settings(), ids=TaskIds(listens=True))
    # The first ones fill what does not grow with the queue.
    fill(store, validator, FIRST)
    before = used_bytes(store)
    fill(store, validator, TASKS)
    # The slower the tasks come, the more milliseconds stand in streams and indexes: 418 to 421 bytes were measured.
    assert (used_bytes(store) - before) / TASKS <= MAX_BYTES * 1.01


def test_bytes_per_ended_task(store: SyncStore) -> None:
    """A record that lost its arguments takes at most 320 bytes; Redis gives the memory of the arguments back."""
    row = usual(SubmissionValidator(Settings(), ids=TaskIds(listens=True)), 1)
    store.call(submit(store.keys, rows=[row], max_tasks=1, max_wait_s=60))
    key = store.keys.task(row.id)
    store.execute("HSET", key, "state", "assigned", "at", "bench 1795445580535-50 21795445577589")
    queued = store.execute("MEMORY", "USAGE", key)
    worker, result = (
        Delivery("bench", "1795445580535-50", row.id, "1", 1, 0, b""),
        b'{"ok":true,"words":120,"number":1}',
    )
    generation = store.execute("HGET", key, "gen").decode()
    verdict = Verdict(VerdictKind.SUCCEEDED, result, envelope=encode_plain(("summarise", b"")))
    rows = [(replace(worker, generation=generation), verdict)]
    store.call(finish(store.keys, rows=rows, worker="w", dead_ttl_s=1000, max_wait_s=1000))
    assert store.execute("HGET", key, "state") == b"succeeded"
    assert store.execute("MEMORY", "USAGE", key) < min(queued, 320)


def test_usual_values_are_not_stored(store: SyncStore) -> None:
    """What the scripts take for usual is what the default settings send: none of it stands in the record."""
    row = usual(SubmissionValidator(Settings(), ids=TaskIds(listens=True)), 1)
    store.call(submit(store.keys, rows=[row], max_tasks=1, max_wait_s=60))
    assert sorted(store.execute("HKEYS", store.keys.task(row.id))) == [b"env", b"gen", b"state"]
