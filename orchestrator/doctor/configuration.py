"""Checks the settings: validity, sources, secrets and the URL."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.doctor.findings import ok, problem, warning

if TYPE_CHECKING:
    from orchestrator.core.errors import ConfigError
    from orchestrator.core.settings import Settings
    from orchestrator.core.settings_sources import LoadedSettings
    from orchestrator.doctor.findings import DoctorFinding

_WIDEST: Final = 0o640


def broken_settings(wrong: ConfigError) -> list[DoctorFinding]:
    """Report settings that cannot be used, one finding per line of the error."""
    fix = "correct it where the message says, then `orc config validate`"
    return [problem("settings", line, fix) for line in str(wrong).splitlines()]


def check_settings(loaded: LoadedSettings) -> list[DoctorFinding]:
    """Report settings that differ from their defaults, with their sources."""
    changed = [f"{row.name} = {row.value} ({row.source})" for row in loaded.rows() if row.source != "default"]
    return [ok("settings", "; ".join(changed) or "all have their defaults")]


def check_secret_files(loaded: LoadedSettings) -> list[DoctorFinding]:
    """Report files with secrets whose mode is wider than 0640."""
    files: dict[Path, list[str]] = {}
    for name, what in _secrets(loaded.settings).items():
        place = loaded.places.get(name, "")
        kind = next((kind for kind in ("secret file ", "file ") if place.startswith(kind)), None)
        if kind:
            files.setdefault(Path(place.removeprefix(kind)), []).append(what)
    if not files:
        return [ok("secret-files", "no file holds a password")]
    findings: list[DoctorFinding] = []
    for path, held in files.items():
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & ~_WIDEST:
            whom = "all users" if mode & 0o007 else "its group"
            found = f"{path} holds {' and '.join(held)} and has mode {mode:04o}, which lets {whom} use it"
            findings.append(warning("secret-files", found, f"`chmod 600 {path}`"))
        else:
            findings.append(ok("secret-files", f"{path} has mode {mode:04o}"))
    return findings


def check_shadowed_files(loaded: LoadedSettings) -> list[DoctorFinding]:
    """Report secret files whose value a variable of the environment overrides."""
    return [
        warning(
            "secret-files",
            f"{place} is not used, because {loaded.places[name]} overrides it",
            "remove the variable, for example from /etc/orchestrator/orchestrator.env, or the file",
        )
        for name, place in loaded.shadowed.items()
    ]


def _secrets(settings: Settings) -> dict[str, str]:
    """Return the secret settings that are set, each with a description."""
    held = {
        "redis.url": (_has_password(settings), "the password of Redis"),
        "control.secret": (settings.control.secret is not None, "the control secret"),
        "control.previous_secret": (settings.control.previous_secret is not None, "the previous control secret"),
    }
    return {name: what for name, (there, what) in held.items() if there}


def _has_password(settings: Settings) -> bool:
    place = settings.redis.place
    return place is not None and bool(place.passwords)


def check_control_secret(loaded: LoadedSettings) -> list[DoctorFinding]:
    """Report a missing control secret if Redis is on another machine."""
    control, parsed = loaded.settings.control, loaded.settings.redis.place
    if control.secret is not None:
        also = "; the previous secret is accepted too" if control.previous_secret is not None else ""
        return [ok("control-secret", f"commands are signed and checked{also}")]
    if parsed is None or parsed.is_local:
        return [ok("control-secret", "none is set; Redis is reached on this machine only")]
    hosts = ", ".join(dict.fromkeys(node.host for node in parsed.nodes))
    found = f"control.secret is not set, and Redis is at {hosts}: its clients can stop and start agents"
    fix = "set ORC_CONTROL__SECRET to the same secret for supervisors, workers and operators: `openssl rand -hex 32`"
    return [warning("control-secret", found, fix)]


def check_url(loaded: LoadedSettings) -> list[DoctorFinding]:
    """Report what crosses the network in clear text or unverified, and a password on the command line."""
    parsed, verify = loaded.settings.redis.place, loaded.settings.redis.tls_verify
    if parsed is None:
        return [ok("redis-url", "not set: the embedded server is used")]
    where, password = f"{parsed.scheme}://{parsed}", bool(parsed.passwords)
    if password and loaded.places.get("redis.url") == "option":
        found = f"{where}: the password was given as an option, which every user of this machine can see"
        return [warning("redis-url", found, "put the URL into ORC_REDIS__URL or a secret file")]
    if not parsed.is_encrypted and not parsed.is_local:
        what = "the password and all tasks cross" if password else "all tasks cross"
        found = f"{where}: {what} the network in clear text"
        encrypted = parsed.scheme.replace("redis", "rediss", 1)
        at = ",".join(node.host for node in parsed.nodes)
        return [warning("redis-url", found, f"set ORC_REDIS__URL to {encrypted}://…@{at}, with TLS at the server")]
    if verify != "full":
        unchecked = "the name of the host" if verify == "ca" else "nothing"
        checked = f"{unchecked} in the certificate of Redis is {'not ' if verify == 'ca' else ''}checked"
        fix = "set redis.tls_verify to full, and redis.tls_ca to the authority that signed the certificate"
        return [warning("redis-url", f"{where}: {checked} (redis.tls_verify is {verify})", fix)]
    return [ok("redis-url", where)]
