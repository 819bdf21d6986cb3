"""Chooses `maxmemory` of the embedded server, so that it refuses writes before the machine runs out of memory."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import ConfigError
from orchestrator.embedded.data_dir import MEMORY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

SHARE: Final = 0.5
"""Share of the memory: a rewrite of the append-only file may need as much again, and workers need the rest."""
LEAST_BYTES: Final = 64 * 1024**2
_CGROUP_FILES: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_SIZE: Final = re.compile(r"\d{1,15}(?:[kmg]b?)?", re.IGNORECASE)


def choose_maxmemory(environ: Mapping[str, str] = os.environ) -> str:
    """Return the value for Redis: that of the environment, else half of the memory of the machine or of its cgroup.

    Raises:
        ConfigError: the environment has none.
    """
    given = environ.get(MEMORY_NAME, "").strip()
    if not given:
        return str(max(LEAST_BYTES, int(machine_bytes() * SHARE)))
    if not _SIZE.fullmatch(given):
        raise ConfigError(f"{MEMORY_NAME} {given[:40]!r} is no size; use bytes or a size as 2gb, or 0 for no bound")
    return given


def machine_bytes() -> int:
    """Return the memory that processes here may use."""
    known = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in _CGROUP_FILES:
        try:
            text = Path(name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            known.append(int(text))
    return min(known)
