"""Environments of peers: pinned, made once, and a reason where one cannot be made."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from benchmarks import peer as peer_module
from benchmarks.peer import Package, Peer
from benchmarks.peers.environment import PeerMissingError, environment_of, first_that_starts, install_all
from benchmarks.peers.histories import HISTORIES
from benchmarks.peers.registry import PEERS
from tests.helpers.cases import each_case

if TYPE_CHECKING:
    from pathlib import Path

# Does at once what an interpreter takes seconds for: `-m venv FOLDER` copies it there, and `-m pip` notes each call.
INTERPRETER = """#!/bin/sh
case "$2" in
venv) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
pip) echo "$@" >>"{calls}"; grep -q no-such-package "$6" && {{ echo "ERROR: no such package" >&2; exit 1; }} ;;
esac
exit 0
"""
BROKEN_SHIM = "#!/bin/sh\necho 'command not found' >&2\nexit 127\n"
SOMEONE = Peer(name="someone", worker=(), app="", remaining=lambda _: 0, result_ttl_s=60, pythons=("python3.99",))


@pytest.fixture
def requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The requirements file of SOMEONE, whose interpreter is on the PATH."""
    monkeypatch.setattr(peer_module, "_REQUIREMENTS", tmp_path)
    path = tmp_path / "someone.txt"
    path.write_text("someone==1.0\n")
    _executable(tmp_path / "bin", INTERPRETER.format(calls=tmp_path / "calls"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    return path


def _executable(folder: Path, text: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "python3.99"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def _installations(tmp_path: Path) -> int:
    return len((tmp_path / "calls").read_text().splitlines())


@each_case("peer", [*PEERS.values(), *HISTORIES.values()])
def test_everything_is_pinned(peer: Package) -> None:
    """Each requirement of a peer names one exact version, and the peer is among them."""
    lines = [line for line in peer.requirements.read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    assert f"{peer.name}=={peer.version}" in lines


def test_shims_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that does not start is none; the next one on the PATH is taken."""
    _executable(tmp_path / "shims", BROKEN_SHIM)
    real = _executable(tmp_path / "real", INTERPRETER)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "shims"), str(tmp_path / "real"), os.environ["PATH"]]))
    assert first_that_starts(["python3.99"]) == real


def test_interpreter_that_pyenv_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that pyenv has installed is found although its shim does not start."""
    _executable(tmp_path / "shims", BROKEN_SHIM)
    real = _executable(tmp_path / "versions" / "3.99.1" / "bin", INTERPRETER)
    monkeypatch.setenv("PATH", str(tmp_path / "shims"), prepend=os.pathsep)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert first_that_starts(["python3.99"]) == real


def test_no_interpreter(requirements: Path, tmp_path: Path) -> None:
    """Without an interpreter that starts a peer is missing, the reason names those that would do, and others go on."""
    lonely = replace(SOMEONE, pythons=("python3.97", "python3.98"))
    installed, missing = install_all([lonely, SOMEONE], tmp_path / "environments")
    assert [one.peer for one in installed] == [SOMEONE]
    assert [one.name for one in missing] == ["someone"]
    assert missing[0].reason.startswith("needs python3.97 or python3.98, and none that starts was found")


def test_environment_is_made_once(requirements: Path, tmp_path: Path) -> None:
    """An environment is used again as long as its requirements are the same."""
    first = environment_of(SOMEONE, tmp_path)
    assert first.exists()
    assert environment_of(SOMEONE, tmp_path) == first
    assert _installations(tmp_path) == 1
    requirements.write_text("someone==1.1\n")
    assert environment_of(SOMEONE, tmp_path) != first
    assert _installations(tmp_path) == 2


def test_failed_installation(requirements: Path, tmp_path: Path) -> None:
    """When packages cannot be installed the reason is pip's, and the next run tries again."""
    requirements.write_text("no-such-package==1.0\n")
    for _ in range(2):
        with pytest.raises(PeerMissingError, match="-m pip …` failed: ERROR: no such package"):
            environment_of(SOMEONE, tmp_path)
    assert _installations(tmp_path) == 2
