"""Compresses objects of the payload store with zstd, from the standard library since Python 3.14, else a package."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, Final

from orchestrator.core.errors import ConfigError

ZSTD: Final = "zstd"
LEVEL: Final = 3
WORTH: Final = 0.9
"""Largest size of a compressed object, as a share of the value; a larger one is stored as it is."""


@cache
def zstd_module() -> Any:
    """Return the module.

    Raises:
        ConfigError: it is not installed.
    """
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ConfigError("payload.compression is zstd, which needs a package; install redis-orchestrator[zstd]")


def compress(data: bytes) -> bytes | None:
    """Return the compressed value, or None if that saves too little. Releases the interpreter lock."""
    packed: bytes = zstd_module().compress(data, LEVEL)
    return packed if len(packed) <= WORTH * len(data) else None


def decompress(data: bytes, size: int) -> bytes:
    """Return the value, which has `size` bytes: a small object may hold far more.

    Raises:
        ValueError: it cannot be read, or has another size.
        ConfigError: the module is not installed.
    """
    module = zstd_module()
    unpacker = module.ZstdDecompressor()
    try:
        value: bytes = unpacker.decompress(data, size + 1)
    except module.ZstdError as damaged:
        raise ValueError(str(damaged)) from None
    if not unpacker.eof or len(value) != size:
        raise ValueError(f"it does not hold {size} bytes")
    return value


def decompress_head(data: bytes, max_bytes: int) -> bytes:
    """Return the beginning of the value, from the beginning of its object; raises as `decompress`."""
    module = zstd_module()
    try:
        head: bytes = module.ZstdDecompressor().decompress(data, max_bytes)
    except module.ZstdError as damaged:
        raise ValueError(str(damaged)) from None
    return head
