"""Keeps payloads in a bucket of an S3-compatible service, through obstore."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from anyio import to_thread
from obstore.exceptions import BaseError
from obstore.store import S3Store as Bucket

from orchestrator.core.errors import ConfigError, PayloadMissing, PayloadStoreUnavailable
from orchestrator.payloads.reference import parse_name
from orchestrator.payloads.store import BATCH, StoredObject

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from orchestrator.core.settings import PayloadSettings

T = TypeVar("T")

RETRY_FOR_S: Final = 10.0
"""How long the library repeats a request that failed; the callers repeat too."""
_NO_BUCKET: Final = "NoSuchBucket"
TIMEOUT_S: Final = 120.0
"""Longest time of one request, the value included."""


def open_s3(settings: PayloadSettings, *, bucket: str, parts: Sequence[str]) -> S3Store:
    """Return the store in a bucket. Does not connect.

    Raises:
        ConfigError: obstore refuses the settings.
    """
    options: dict[str, Any] = {}
    if settings.endpoint:
        options["endpoint"] = settings.endpoint
    if settings.region:
        options["region"] = settings.region
    if settings.access_key_id is not None and settings.secret_access_key is not None:
        options["access_key_id"] = settings.access_key_id.get_secret_value()
        options["secret_access_key"] = settings.secret_access_key.get_secret_value()
    prefix = "/".join(parts)
    try:
        bucket_store = Bucket(
            bucket,
            prefix=prefix,
            client_options={
                "allow_http": settings.endpoint.startswith("http://"),
                "connect_timeout": timedelta(seconds=5),
                "timeout": timedelta(seconds=TIMEOUT_S),
            },
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=RETRY_FOR_S)},
            **options,
        )
    except (BaseError, OSError, TypeError, ValueError) as refused:
        # Its message may have a value of the settings.
        raise ConfigError(f"obstore refuses the settings of the payload store: {type(refused).__name__}") from None
    return S3Store(bucket_store, f"s3://{bucket}/{prefix}")


class S3Store:
    """Implements `PayloadStore` in a bucket.

    Attributes:
        address: its place, for people, without credentials.
    """

    def __init__(self, bucket: Any, address: str) -> None:
        self._bucket, self.address = bucket, address

    async def put(self, name: str, data: bytes) -> None:
        """Store an object; see `PayloadStore`."""
        await self._run("write", lambda: self._bucket.put(_checked(name), data))

    async def get(self, name: str, *, max_bytes: int) -> bytes:
        """Read an object; see `PayloadStore`."""

        def read() -> bytes:
            found = self._bucket.get(_checked(name))
            if found.meta["size"] > max_bytes:
                return bytes(self._bucket.get_range(name, start=0, length=max_bytes + 1))
            return bytes(found.bytes())

        try:
            return await self._run("read", read)
        except FileNotFoundError:
            raise PayloadMissing(name, self.address) from None

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects; see `PayloadStore`."""
        with suppress(FileNotFoundError):
            await self._run("delete", lambda: self._bucket.delete([_checked(name) for name in names]))

    async def names_below(self, folder: str) -> list[str]:
        """List the objects of a task; see `PayloadStore`."""

        def read() -> list[str]:
            return [meta["path"] for batch in self._bucket.list(f"{folder}/") for meta in batch]

        return await self._run("list", read)

    async def sweep(self) -> AsyncIterator[Sequence[StoredObject]]:
        """List all objects; see `PayloadStore`."""
        batches = await self._run("list", lambda: iter(self._bucket.list(chunk_size=BATCH)))
        while batch := await self._run("list", lambda: next(batches, None)):
            yield [StoredObject(one["path"], one["size"], one["last_modified"].timestamp()) for one in batch]

    async def _run(self, action: str, call: Callable[[], T]) -> T:
        # In a thread: the coroutines of the library call back into the interpreter from its own threads, and one that
        # does so while the process ends aborts it.
        try:
            return await to_thread.run_sync(call)
        except FileNotFoundError as missing:
            if _NO_BUCKET in str(missing):
                raise self._failed(action, missing) from None
            raise
        except (BaseError, OSError, ValueError) as failure:
            raise self._failed(action, failure) from None

    def _failed(self, action: str, failure: Exception) -> PayloadStoreUnavailable:
        # The message of the library may have headers of the request; the kind of the failure says enough.
        return PayloadStoreUnavailable(
            f"cannot {action} in the payload store {self.address}: {_kind(failure)}; check bucket, region, endpoint "
            "and access key, and run `orc doctor`"
        )


def _kind(failure: Exception) -> str:
    """Describe a failure in a few words, without the texts of the library."""
    name, text = type(failure).__name__, str(failure)
    for words, meaning in (
        (_NO_BUCKET, "the bucket does not exist"),
        ("AccessDenied", "access denied"),
        ("SignatureDoesNotMatch", "the access key or its secret is wrong"),
        ("InvalidAccessKeyId", "the access key does not exist"),
        ("timed out", "no answer in time"),
        ("error sending request", "no connection"),
    ):
        if words in text:
            return meaning
    return {"PermissionDeniedError": "access denied", "UnauthenticatedError": "the access key is not accepted"}.get(
        name, name
    )


def _checked(name: str) -> str:
    if parse_name(name) is None:
        raise PayloadStoreUnavailable(f"{name!r} is no name of a payload; the reference to it is damaged")
    return name
