"""The payload store in a bucket, over HTTP, by the library that the product uses."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr

from orchestrator.core.errors import PayloadChanged, PayloadMissing, PayloadStoreUnavailable
from orchestrator.core.ids import new_task_id
from orchestrator.core.settings import PayloadSettings, Settings
from orchestrator.payloads.opening import open_store
from orchestrator.payloads.reference import name_of
from orchestrator.supervisor.payload_sweeper import PayloadSweeper
from orchestrator.workers.agent import Agent
from tests.helpers.local_team import local_settings, run_local_team
from tests.helpers.s3_server import S3Server, run_s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faultkit.servers import RedisServer

SECRET = "a-secret-that-nobody-may-see"


@pytest.fixture
def s3() -> Iterator[S3Server]:
    """A server with one bucket."""
    with run_s3_server("values") as server:
        yield server


def payload_settings(s3: S3Server, bucket: str = "values") -> PayloadSettings:
    """Settings for a bucket of the server."""
    return PayloadSettings(
        store=f"s3://{bucket}/some/prefix",
        endpoint=s3.url,
        access_key_id=SecretStr(s3.key_id),
        secret_access_key=SecretStr(SECRET),
    )


async def test_an_agent_with_a_bucket(redis_server: RedisServer, prefix: str, s3: S3Server) -> None:
    """Arguments and result travel through the bucket; a changed object is an error; a sweep empties it."""
    agent = Agent("echo")

    @agent.skill
    async def echo(text: str) -> str:
        return text

    big = "x" * 2_000_000
    settings = local_settings(redis_server.url, prefix).model_copy(update={"payload": payload_settings(s3)})
    async with run_local_team(settings) as team:
        await team.work(agent)
        handle = await team.orc.submit("echo", {"text": big})
        assert await handle.result(10) == big
        objects = s3.buckets["values"]
        result = next(key for key in objects if "/result-" in key)
        assert result.startswith(f"some/prefix/{prefix.replace(':', '/')}/default/")
        objects[result] += b" "
        with pytest.raises(PayloadChanged):
            await handle.result(10)
        s3.modified = datetime(2020, 1, 1, tzinfo=UTC)
        assert await PayloadSweeper(team.services).sweep() == 0
        await team.services.store.execute("DEL", team.services.keys.task(handle.id))
        assert await PayloadSweeper(team.services).sweep() == 2
        assert objects == {}


async def test_methods(s3: S3Server) -> None:
    """An object is read as it was written, and no more of it than asked; lists have several pages."""
    store = open_store(Settings(payload=payload_settings(s3)))
    assert store is not None
    task = new_task_id()
    names = [name_of(task, part) for part in ("args", "result-1", "result-2")]
    for name in names:
        await store.put(name, b"0123456789")
    assert await store.get(names[0], max_bytes=10) == b"0123456789"
    assert await store.get(names[0], max_bytes=3) == b"0123"
    assert await store.names_below(names[0].rpartition("/")[0]) == names
    assert [one.name async for batch in store.sweep() for one in batch] == names
    await store.delete(names)
    await store.delete(names)
    with pytest.raises(PayloadMissing):
        await store.get(names[0], max_bytes=10)


@pytest.mark.parametrize("cause", ["bucket", "refused", "down"])
async def test_failures_name_the_store_and_no_secret(s3: S3Server, cause: str) -> None:
    """A failure says what is wrong, without credentials."""
    settings = payload_settings(s3, "absent" if cause == "bucket" else "values")
    s3.refuses = cause == "refused"
    if cause == "down":
        settings = settings.model_copy(update={"endpoint": "http://127.0.0.1:1"})
    store = open_store(Settings(payload=settings))
    assert store is not None
    name = name_of(new_task_id(), "args")
    told = {"bucket": "does not exist", "refused": "access denied", "down": "no connection"}[cause]
    for call in (store.put(name, b"1"), store.get(name, max_bytes=9), store.delete([name]), store.names_below(name)):
        with pytest.raises(PayloadStoreUnavailable, match=told) as failed:
            await call
        assert SECRET not in repr(failed.value)
        assert s3.key_id not in repr(failed.value)
    assert SECRET not in repr(settings)
    assert {SECRET, s3.key_id} <= set(Settings(payload=settings).secrets)
