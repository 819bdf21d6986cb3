"""Installs each peer into its own environment, with an interpreter that it supports."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peer import InstalledPeer, MissingPeer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from benchmarks.peer import Package, Peer

_ENVIRONMENTS = Path(__file__).resolve().parent.parent.parent / "build" / "peers"
_INSTALL_TIMEOUT_S = 300.0
_REASON_CHARACTERS = 300


class PeerMissingError(RuntimeError):
    """A peer cannot be measured; the message names the reason."""


def install_all(
    peers: Iterable[Peer], environments: Path = _ENVIRONMENTS
) -> tuple[list[InstalledPeer], list[MissingPeer]]:
    """Create the missing environments; returns the installed peers, and the missing ones with reasons."""
    installed: list[InstalledPeer] = []
    missing: list[MissingPeer] = []
    for peer in peers:
        try:
            installed.append(InstalledPeer(peer, environment_of(peer, environments)))
        except PeerMissingError as error:
            missing.append(MissingPeer(peer.name, str(error)))
    return installed, missing


def environment_of(peer: Package, environments: Path = _ENVIRONMENTS) -> Path:
    """Return the interpreter of the peer's environment, created at the first use and after a change of requirements.

    Raises:
        PeerMissingError: no supported interpreter, or the packages cannot be installed.
    """
    digest = hashlib.sha256(peer.requirements.read_bytes()).hexdigest()[:8]
    folder = environments / f"{peer.name}-{digest}"
    python, stamp = folder / "bin" / "python", folder / ".installed"
    if not (stamp.exists() and python.exists()):
        base = first_that_starts(peer.pythons) if peer.pythons else sys.executable
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        _run([base, "-m", "venv", str(folder)])
        _run([str(python), "-m", "pip", "install", "--disable-pip-version-check", "-r", str(peer.requirements)])
        stamp.touch()
    return python


def first_that_starts(names: Sequence[str]) -> str:
    """Return the first interpreter of these names that starts.

    Raises:
        PeerMissingError: none starts.
    """
    for name in names:
        for candidate in _candidates(name):
            # A version shim may exist without an interpreter.
            if subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
                return candidate
    raise PeerMissingError(f"needs {' or '.join(names)}, and none that starts was found on the PATH or under pyenv")


def _candidates(name: str) -> Iterator[str]:
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if found := shutil.which(name, path=folder):
            yield found
    # Interpreters that pyenv has installed but not activated: its shims on the PATH refuse to start them.
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(root.glob(f"versions/{name.removeprefix('python')}.*/bin/{name}"), reverse=True))


def _run(command: list[str]) -> None:
    words = " ".join(command[1:3])
    try:
        finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_INSTALL_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise PeerMissingError(f"`{words} …` took longer than {error.timeout:.0f} s") from error
    if finished.returncode:
        lines = finished.stderr.strip().splitlines() or ["no message"]
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
        raise PeerMissingError(f"`{words} …` failed: {' '.join(errors)[:_REASON_CHARACTERS]}")
