"""Opens the payload store that the settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from orchestrator.core.errors import ConfigError

if TYPE_CHECKING:
    from orchestrator.core.settings import Settings
    from orchestrator.payloads.store import PayloadStore


def open_store(settings: Settings) -> PayloadStore | None:
    """Return the store that the settings name, or None if they name none. Does not connect.

    Raises:
        ConfigError: the address is invalid, or the library for it is not installed.
    """
    address = settings.payload.store
    if not address:
        return None
    parts = (*settings.prefix.split(":"), settings.pool)
    url = urlsplit(address)
    if url.scheme == "file":
        from orchestrator.payloads.folder import FolderStore

        return FolderStore(unquote(url.path), parts)
    if url.scheme == "s3":
        try:
            from orchestrator.payloads.s3 import open_s3
        except ImportError:
            raise ConfigError(
                "payload.store is an S3 bucket, which needs obstore; install redis-orchestrator[s3]"
            ) from None

        return open_s3(settings.payload, bucket=url.netloc, parts=(*filter(None, url.path.split("/")), *parts))
    raise ConfigError(f"payload.store is {address!r}; use file:///path or s3://bucket/prefix")
