"""The systemd units of the project: their text for this machine, their installation, the state of the services.

The units lie in `systemd/` of the repository and travel in the wheel. An installed file begins with a digest of the
rest, so that a newer version replaces the file of an older one, and never one that an operator has edited.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import ConfigError, InvalidInput, ServerUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PLACEHOLDER: Final = "/usr/bin/orc"
"""Program in the shipped units, in the place of the installed one."""
BOOTED: Final = Path("/run/systemd/system")
"""Exists while systemd runs as the service manager; see sd_booted(3)."""
HIDDEN: Final = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108 - names only
"""Folders that the sandbox of the units hides (`ProtectHome`, `PrivateTmp`)."""
_DIGEST: Final = "# Written by `orc service install`; a local change belongs in a drop-in (systemctl edit). sha256="
_TIMEOUT_S: Final = 10.0
_PROPERTIES: Final = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "StatusText",
    "NRestarts",
    "StateChangeTimestamp",
)


@dataclass(frozen=True, slots=True)
class UnitFile:
    """One shipped file.

    Attributes:
        name: what `orc service print` calls it.
        file: in the folder `systemd`.
        installed: where it is installed, below the root folder.
        optional: installed only on request.
    """

    name: str
    file: str
    installed: str
    optional: bool = False


UNIT_FILES: Final = (
    UnitFile("supervisor", "orchestrator-supervisor.service", "etc/systemd/system/orchestrator-supervisor.service"),
    UnitFile("worker", "orchestrator-worker@.service", "etc/systemd/system/orchestrator-worker@.service"),
    UnitFile("redis", "orchestrator-redis.service", "etc/systemd/system/orchestrator-redis.service", optional=True),
    UnitFile("target", "orchestrator.target", "etc/systemd/system/orchestrator.target"),
    UnitFile("sysusers", "orchestrator.sysusers.conf", "etc/sysusers.d/orchestrator.conf"),
    UnitFile("tmpfiles", "orchestrator.tmpfiles.conf", "etc/tmpfiles.d/orchestrator.conf"),
)
SERVICES: Final = ("orchestrator-redis.service", "orchestrator-supervisor.service", "orchestrator-worker@*.service")


class FileChange(Enum):
    """Effect of an installation on one file."""

    WRITE = "write"
    REPLACE = "replace"
    UNCHANGED = "unchanged"
    EDITED = "edited"
    """It differs, and not because an older version wrote it."""


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """One file of an installation."""

    path: Path
    text: str
    change: FileChange


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The state of one unit, in words."""

    unit: str
    state: str
    doing: str
    restarts: int
    since: datetime | None


# ---------------------------------------------------------------------------------------------------------------- texts


def find_unit(name: str) -> UnitFile:
    """Return the shipped file with a name, or with the name of its file.

    Raises:
        InvalidInput: there is none.
    """
    for unit in UNIT_FILES:
        if name in {unit.name, unit.file}:
            return unit
    raise InvalidInput(f"no unit {name!r}; there are {', '.join(unit.name for unit in UNIT_FILES)}")


def unit_text(unit: UnitFile) -> str:
    """Return the text of a shipped file, with the path of the installed program."""
    shipped = files("orchestrator") / "systemd"
    # A wheel has the folder in the package, a checkout at its top.
    folder = shipped if shipped.is_dir() else Path(__file__).parents[2] / "systemd"
    return (folder / unit.file).read_text(encoding="utf-8").replace(PLACEHOLDER, program())


def program() -> str:
    """Return the command of the installed `orc`, as a unit file has it.

    Raises:
        ConfigError: a unit file cannot have its path.
    """
    # The one beside this interpreter: another one on the path may be of another version.
    script = Path(sys.executable).with_name("orc")
    words = [str(script)] if os.access(script, os.X_OK) else [sys.executable, "-P", "-m", "orchestrator"]
    for word in words:
        if any(character in word for character in "\"'\\%$ \n"):
            raise ConfigError(
                f"the path {word!r} has characters that a unit file cannot hold; install into another folder"
            )
    return " ".join(words)


def hidden_folder(command: str) -> str | None:
    """Return the folder that holds the program and that the units hide, if any."""
    script = command.split(maxsplit=1)[0]
    places = {script, os.path.realpath(script), os.path.realpath(sys.executable)}
    found = [folder for folder in HIDDEN for place in places if place.startswith(f"{folder}/")]
    return found[0] if found else None


# --------------------------------------------------------------------------------------------------------- installation


def plan_installation(root: Path, *, redis: bool) -> list[PlannedFile]:
    """Compare the files below a root folder with those of this version.

    Args:
        root: `/`, or the root folder of an image.
        redis: also the unit of the embedded Redis.

    Raises:
        ConfigError: a file cannot be read.
    """
    planned: list[PlannedFile] = []
    for unit in UNIT_FILES:
        if unit.optional and not redis:
            continue
        body, path = unit_text(unit), root / unit.installed
        text = f"{_DIGEST}{_digest(body)}\n{body}"
        planned.append(PlannedFile(path, text, _change(path, text)))
    return planned


def _change(path: Path, text: str) -> FileChange:
    try:
        found = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return FileChange.WRITE
    except (OSError, UnicodeDecodeError) as failed:
        raise ConfigError(f"{path} cannot be read: {failed}") from None
    if found == text:
        return FileChange.UNCHANGED
    head, _, body = found.partition("\n")
    return FileChange.REPLACE if head == f"{_DIGEST}{_digest(body)}" else FileChange.EDITED


def write_file(planned: PlannedFile) -> None:
    """Write one file as a whole, readable by all.

    Raises:
        ConfigError: it cannot be written.
    """
    beside = planned.path.with_name(f".{planned.path.name}.new")
    try:
        planned.path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(planned.text, encoding="utf-8")
        beside.chmod(0o644)
        beside.replace(planned.path)
    except OSError as failed:
        raise ConfigError(f"{planned.path} cannot be written: {failed.strerror}; run this as root") from None


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


# ---------------------------------------------------------------------------------------------------------------- state


def read_states() -> list[ServiceState]:
    """Ask systemd for the state of the services.

    Raises:
        ServerUnavailable: systemd does not run, or does not answer.
    """
    if not BOOTED.is_dir():
        raise ServerUnavailable("systemd does not run on this machine; `orc status` shows what runs in the pool")
    command = ["systemctl", "show", "--timestamp=unix", f"--property={','.join(_PROPERTIES)}", "--", *SERVICES]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)  # noqa: S603 - no words of others
    except (OSError, subprocess.TimeoutExpired) as failed:
        raise ServerUnavailable(f"`{shlex.join(command[:2])}` failed: {failed}") from None
    if done.returncode != 0:
        raise ServerUnavailable(f"systemd does not answer: {done.stderr.strip()}")
    return parse_states(done.stdout)


def parse_states(shown: str) -> list[ServiceState]:
    """Read the output of `systemctl show`: a block of NAME=value lines per unit, an empty line between two."""
    return [_state_of(dict(_pairs(block.splitlines()))) for block in shown.split("\n\n") if block.strip()]


def _pairs(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        name, _, value = line.partition("=")
        yield name, value


def _state_of(shown: Mapping[str, str]) -> ServiceState:
    since = shown.get("StateChangeTimestamp", "").removeprefix("@")
    return ServiceState(
        unit=shown.get("Id", ""),
        state=_in_words(shown),
        doing=shown.get("StatusText", ""),
        restarts=int(shown.get("NRestarts") or 0),
        since=datetime.fromtimestamp(int(since), UTC) if since.isdecimal() and since != "0" else None,
    )


def _in_words(shown: Mapping[str, str]) -> str:
    if shown.get("LoadState") == "not-found":
        return "not installed"
    if shown.get("LoadState") not in {"loaded", None}:
        return f"cannot be loaded ({shown['LoadState']})"
    result = shown.get("Result", "success")
    failure = _FAILURES.get(result, result)
    match shown.get("ActiveState"), shown.get("SubState"):
        case "active", _:
            return "runs"
        case "activating", "auto-restart":
            return f"restarts soon: {failure}"
        case "activating", _:
            return "starts"
        case "reloading", _:
            return "reloads its settings"
        case "deactivating", _:
            return "stops"
        case "failed", _:
            return f"failed: {failure}"
        case _:
            return "stopped"


_FAILURES: Final = {
    "success": "it ended",
    "exit-code": "it ended with an error; see journalctl -u UNIT",
    "signal": "a signal ended it",
    "core-dump": "it crashed",
    "watchdog": "the watchdog ended it, because a loop did not turn",
    "timeout": "it did not start or stop in time",
    "start-limit-hit": "it was started too often; see journalctl -u UNIT",
    "oom-kill": "the kernel ended it for its memory",
    "resources": "the system lacks a resource or a file",
}
