"""Reads files that a user names, and no more of them than can be meant: /dev/zero and pipes have no end."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, BinaryIO, Final

if TYPE_CHECKING:
    from pathlib import Path

CONFIGURATION_BYTES: Final = 1024 * 1024
"""Longest file with settings or with a secret."""
CERTIFICATES_BYTES: Final = 16 * 1024 * 1024
"""Longest file with certificates or a key."""
BODY_BYTES: Final = 64 * 1024 * 1024
"""Longest file with arguments or values; `queue.max_args_bytes` is far less by default."""


def read_bounded(source: Path | BinaryIO, most_bytes: int) -> bytes:
    """Read a file or an open stream to its end.

    Raises:
        OSError: it cannot be read, or is longer (EFBIG).
    """
    if not hasattr(source, "read"):
        with source.open("rb") as file:
            return read_bounded(file, most_bytes)
    found: bytes = source.read(most_bytes + 1)
    if len(found) > most_bytes:
        raise OSError(errno.EFBIG, f"it is longer than {most_bytes // 1024 // 1024} MiB")
    return found
