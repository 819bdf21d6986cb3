"""Looks at the settings: whether they hold, which ones were changed and where, and who may read a password."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from orchestrator.doctor.findings import ok, problem, warning

if TYPE_CHECKING:
    from orchestrator.core.errors import ConfigError
    from orchestrator.core.settings import LoadedSettings
    from orchestrator.doctor.findings import Finding

_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1", None})


def broken_settings(wrong: ConfigError) -> list[Finding]:
    """What the settings say when they cannot be used: a finding for each line."""
    fix = "correct it where the message says, then `orc config validate`"
    return [problem("settings", line, fix) for line in str(wrong).splitlines()]


def check_settings(loaded: LoadedSettings) -> list[Finding]:
    """Which settings differ from their defaults, and who says so."""
    changed = [f"{row.name} = {row.value} ({row.source})" for row in loaded.rows() if row.source != "default"]
    return [ok("settings", "; ".join(changed) or "all have their defaults")]


def check_secret_files(loaded: LoadedSettings) -> list[Finding]:
    """Files that hold the password of the server, and that everybody may read."""
    place = loaded.places.get("redis.url", "")
    path = next((Path(place.removeprefix(kind)) for kind in ("secret file ", "file ") if place.startswith(kind)), None)
    if path is None or not loaded.settings.secrets:
        return [ok("secret-files", "no file holds a password")]
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o007:
        found = f"{path} holds the password of Redis and has mode {mode:04o}: everybody may read it"
        return [warning("secret-files", found, f"`chmod 600 {path}`")]
    return [ok("secret-files", f"{path} has mode {mode:04o}")]


def check_url(loaded: LoadedSettings) -> list[Finding]:
    """Whether a password leaves this machine in clear text, or was typed where everybody sees it."""
    url = loaded.settings.redis.url
    if url is None:
        return [ok("redis-url", "none is set: the embedded server near by is used")]
    parts = urlsplit(url.get_secret_value())
    where = f"{parts.scheme}://{parts.hostname or parts.path}{f':{parts.port}' if parts.port else ''}"
    if loaded.settings.secrets and loaded.places.get("redis.url") == "option":
        found = f"{where}: the password was given as an option, which every user of this machine can see"
        return [warning("redis-url", found, "put the URL into ORC_REDIS__URL or a secret file")]
    if loaded.settings.secrets and parts.scheme == "redis" and parts.hostname not in _LOCAL:
        found = f"{where}: the password crosses the network in clear text"
        return [
            warning("redis-url", found, f"set ORC_REDIS__URL to rediss://…@{parts.hostname}, with TLS at the server")
        ]
    return [ok("redis-url", where)]
