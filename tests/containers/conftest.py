"""The image, built once, and a Redis that its containers reach through a socket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.containers.images import ImageStore, MountedImage, NoBase, why_not
from tests.faultkit.servers import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Place:
    """What containers of a test share: a Redis and a pool.

    Attributes:
        server: the Redis.
        environ: of the containers.
        volumes: of the containers: the socket, and the URL as a secret file.
    """

    server: RedisServer
    prefix: str
    environ: dict[str, str]
    volumes: dict[str, Path]


@pytest.fixture(scope="session")
def store() -> ImageStore:
    """Images, among them that of this checkout."""
    if reason := why_not():
        pytest.skip(reason)
    store = ImageStore()
    try:
        store.build()
    except NoBase as failed:
        pytest.skip(str(failed))
    return store


@pytest.fixture(scope="session")
def image(store: ImageStore) -> Iterator[MountedImage]:
    """The image of this checkout."""
    with store.mounted() as image:
        yield image


@pytest.fixture(scope="session")
def open_server() -> Iterator[RedisServer]:
    """A Redis whose socket every user may open, as that of a container is another one."""
    with RedisServer(options={"unixsocketperm": "777"}) as server:
        server.directory.chmod(0o755)
        yield server


@pytest.fixture
def place(open_server: RedisServer, tmp_path: Path) -> Place:
    """A Redis and a pool for the containers of one test."""
    secret = tmp_path / "url"
    secret.write_text("unix:///run/redis/redis.sock\n", encoding="utf-8")
    secret.chmod(0o444)
    prefix = f"{tmp_path.name.replace('_', '-')}:test:t"
    return Place(
        open_server,
        prefix,
        {"ORC_PREFIX": prefix, "ORC_WORKER__DRAIN_S": "5"},
        {"/run/redis": open_server.directory, "/run/secrets/ORC_REDIS__URL": secret},
    )
