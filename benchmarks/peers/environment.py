"""Environments for peers: each peer is installed beside ours, with the interpreter that it needs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent.parent
_ENVIRONMENTS = _ROOT / "build" / "peers"
_NEWEST_FIRST = ("python3.13", "python3.12")


class PeerMissingError(RuntimeError):
    """A peer cannot be measured here; the message says what is missing."""


def peer_python(requirement: str) -> Path:
    """Return the interpreter of an environment that holds the requirement; made at the first use.

    Raises:
        PeerMissingError: no interpreter that is new enough, or the package cannot be installed.
    """
    folder = _ENVIRONMENTS / requirement
    python = folder / "bin" / "python"
    if not python.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        _run([_newest_python(), "-m", "venv", str(folder)])
        try:
            _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement])
        except PeerMissingError:
            shutil.rmtree(folder)
            raise
    return python


def _newest_python() -> str:
    for name in _NEWEST_FIRST:
        # A version shim may exist without an interpreter behind it.
        if shutil.which(name) and subprocess.run([name, "-c", ""], capture_output=True, check=False).returncode == 0:
            return name
    raise PeerMissingError(f"none of {', '.join(_NEWEST_FIRST)} is on the PATH")


def _run(command: list[str]) -> None:
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise PeerMissingError(f"`{' '.join(command)}` failed: {finished.stderr.strip()[-500:]}")
