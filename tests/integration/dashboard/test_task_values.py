"""Arguments and results on pages: previews, whole values, downloads, and what a large one costs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import Agent
from orchestrator.payloads.folder import FolderStore
from orchestrator.views.hidden_keys import mask_keys
from tests.helpers.local_team import TIMEOUT_S, LocalTeam, local_settings, run_local_team
from tests.helpers.web_client import WebClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import redis

    from tests.faultkit.servers import RedisServer

PAGE_BYTES = 200_000


@pytest.fixture(params=["none", "zstd"])
def compression(request: pytest.FixtureRequest) -> str:
    """How the store keeps values."""
    value: str = request.param
    if value == "zstd":
        pytest.importorskip("backports.zstd")
    return value


@pytest.fixture
async def stored(redis_server: RedisServer, prefix: str, tmp_path: Path, compression: str) -> AsyncIterator[LocalTeam]:
    """A team with a payload store."""
    settings = local_settings(
        redis_server.url, prefix, payload__store=(tmp_path / "payloads").as_uri(), payload__compression=compression
    )
    async with run_local_team(settings) as running:
        yield running


def _agent() -> Agent:
    agent = Agent("printer")

    @agent.skill
    async def rows(count: int) -> list[dict[str, Any]]:
        return [{"row": n, "api_key": f"hunter{n}", "name": "ä"} for n in range(count)]

    @agent.skill
    async def text(size: int) -> str:
        return "x" * size

    @agent.skill(redact=True)
    async def hide(secret: str) -> str:
        return f"secret {secret}"

    return agent


async def test_a_large_result(stored: LocalTeam, monkeypatch: pytest.MonkeyPatch, compression: str) -> None:
    """A page reads the beginning of 20 MB; the download has all of it."""
    await stored.work(_agent())
    web = WebClient(stored.orc)
    await web.log_in()
    handle = await stored.orc.submit("text", {"size": 20_000_000})
    await handle.result(timeout=20.0)
    read: list[int] = []
    get = FolderStore.get

    async def counted(self: FolderStore, name: str, *, max_bytes: int) -> bytes:
        data = await get(self, name, max_bytes=max_bytes)
        read.append(len(data))
        return data

    monkeypatch.setattr(FolderStore, "get", counted)
    for _ in range(2):
        page = await web.get(f"/tasks/{handle.id}")
        web.dashboard.forget_reads()
        assert "20.0 MB" in page.text
        assert f"{'x' * 4000}" in page.text
        assert len(page.content) < PAGE_BYTES
    assert len(read) == 1
    assert read[0] <= 16 * 1024 + 1
    whole = await web.get(f"/tasks/{handle.id}/result")
    assert "too large for a page" in whole.text
    assert len(whole.content) < PAGE_BYTES
    download = await web.get(f"/tasks/{handle.id}/result/download")
    assert len(download.content) == 20_000_002
    assert download.headers["content-disposition"] == f'attachment; filename="task-{handle.id}-result.json"'
    assert download.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in download.headers["content-security-policy"]


async def test_values_of_redis(team: LocalTeam, redis_client: redis.Redis) -> None:
    """Secrets are masked in previews, whole values and downloads; a page reads the beginning of a value once."""
    await team.work(_agent())
    web = WebClient(team.orc)
    await web.log_in()
    handle = await team.orc.submit("rows", {"count": 3000})
    result = json.dumps(await handle.result(timeout=TIMEOUT_S), separators=(",", ":"), ensure_ascii=False)
    page = (await web.get(f"/tasks/{handle.id}")).text
    web.dashboard.forget_reads()
    assert "hunter" not in page
    assert "Show the whole value" in page
    before = redis_client.info("stats")["total_net_output_bytes"]
    await web.get(f"/tasks/{handle.id}")
    assert redis_client.info("stats")["total_net_output_bytes"] - before < len(result) / 3
    whole = (await web.get(f"/tasks/{handle.id}/result")).text
    assert "hunter" not in whole
    assert "&#34;row&#34;:2999" in whole
    download = await web.get(f"/tasks/{handle.id}/result/download")
    assert download.content.decode() == mask_keys(result)
    assert download.content.count(b"********") == 3000
    assert (await web.get(f"/tasks/{handle.id}/args")).status_code == 200


async def test_redacted(team: LocalTeam) -> None:
    """Of a redacted skill pages show sizes, and nothing is to download."""
    await team.work(_agent())
    web = WebClient(team.orc)
    await web.log_in()
    handle = await team.orc.submit("hide", {"secret": "hunter2"})
    await handle.result(timeout=TIMEOUT_S)
    for path in ("", "/args", "/result", "/result/download"):
        answer = await web.get(f"/tasks/{handle.id}{path}")
        assert answer.status_code == (404 if "download" in path else 200)
        assert "hunter2" not in answer.text
        assert "redacted" in answer.text
    assert "hunter2" not in (await web.get(f"/submit?from={handle.id}")).text


async def test_no_value(team: LocalTeam) -> None:
    """A task without a result says so; a part that there is not is not found."""
    web = WebClient(team.orc)
    await web.log_in()
    handle = await team.orc.submit("later")
    assert "has no result now" in (await web.get(f"/tasks/{handle.id}/result")).text
    for path in ("result/download", "env/download", "env"):
        assert (await web.get(f"/tasks/{handle.id}/{path}")).status_code in {404, 405}, path
