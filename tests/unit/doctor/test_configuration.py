"""What `orc doctor` says of settings: wrong ones, changed ones, and passwords that too many can read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.core.settings_sources import load_with_places
from orchestrator.doctor import configuration
from orchestrator.doctor.findings import Severity
from orchestrator.doctor.runner import run_machine_checks

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.core.settings_sources import LoadedSettings
    from orchestrator.doctor.findings import DoctorFinding

SECRET = "canary-of-the-control-secret"
SECRET_URL = "redis://:hunter2@db.example:6379/0"


def loaded(tmp_path: Path, toml: str = "", url: str | None = None, **environ: str) -> LoadedSettings:
    """Settings from a file, an option and variables."""
    file = tmp_path / "orc.toml"
    file.write_text(toml)
    return load_with_places(file, {"redis.url": url}, environ)


def only(findings: list[DoctorFinding]) -> DoctorFinding:
    """The one finding of a check."""
    (found,) = findings
    return found


def test_changed_settings_and_where_they_come_from(tmp_path: Path) -> None:
    """Every setting that is not the default is shown with its place; the password is not."""
    settings = loaded(tmp_path, "[worker]\nprocesses = 3\n", ORC_POOL="mail", ORC_REDIS__URL=SECRET_URL)
    found = only(configuration.check_settings(settings))
    assert f"worker.processes = 3 (file {tmp_path}/orc.toml)" in found.found
    assert "pool = mail (environment ORC_POOL)" in found.found
    assert "hunter2" not in found.found
    assert only(configuration.check_settings(loaded(tmp_path))).found == "all have their defaults"


def test_wrong_settings_end_the_examination(tmp_path: Path) -> None:
    """Each wrong value is a problem of its own, with its place, and no server is asked."""
    toml = "[worker]\nprocesses = 0\n[results]\nttl_s = 1\n"
    findings, settings = run_machine_checks(lambda: loaded(tmp_path, toml))
    wrong = [finding for finding in findings if finding.code == "settings"]
    assert settings is None
    assert [finding.severity for finding in wrong] == [Severity.PROBLEM, Severity.PROBLEM]
    assert "worker.processes" in wrong[0].found + wrong[1].found
    assert "orc.toml" in wrong[0].found
    assert "`orc config validate`" in wrong[0].fix


def test_an_unknown_name(tmp_path: Path) -> None:
    """A misspelt variable is a problem that names the right one."""
    findings, settings = run_machine_checks(lambda: loaded(tmp_path, ORC_POOOL="x"))
    assert settings is None
    assert "ORC_POOL?" in findings[-1].found


def test_variable_that_overrides_a_secret_file(tmp_path: Path) -> None:
    """It is a warning that names both, whatever their values; a file that is used is none."""
    (tmp_path / "ORC_REDIS__URL").write_text(SECRET_URL)
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert configuration.check_shadowed_files(loaded(tmp_path, **environ)) == []
    findings, _ = run_machine_checks(lambda: loaded(tmp_path, **environ, ORC_REDIS__URL="redis://localhost:6379/0"))
    (found,) = [one for one in findings if "overrides" in one.found]
    assert found.severity is Severity.WARNING
    assert found.found == (
        f"secret file {tmp_path}/ORC_REDIS__URL is not used, because environment ORC_REDIS__URL overrides it"
    )


def test_a_file_with_a_password_that_everybody_may_read(tmp_path: Path) -> None:
    """It is a warning with the command that ends it; without a password nobody minds."""
    settings = loaded(tmp_path, f'[redis]\nurl = "{SECRET_URL}"\n')
    file = tmp_path / "orc.toml"
    file.chmod(0o644)
    found = only(configuration.check_secret_files(settings))
    assert (found.severity, found.fix) == (Severity.WARNING, f"`chmod 600 {file}`")
    file.chmod(0o660)
    assert "lets its group use it" in only(configuration.check_secret_files(settings)).found
    file.chmod(0o640)
    assert only(configuration.check_secret_files(settings)).severity is Severity.OK
    file.chmod(0o644)
    settings = loaded(tmp_path, '[redis]\nurl = "redis://db.example:6379/0"\n')
    assert only(configuration.check_secret_files(settings)).severity is Severity.OK


def test_a_secret_file(tmp_path: Path) -> None:
    """A file of the secrets directory is looked at in the same way."""
    secret = tmp_path / "ORC_REDIS__URL"
    secret.write_text(SECRET_URL)
    secret.chmod(0o644)
    settings = loaded(tmp_path, CREDENTIALS_DIRECTORY=str(tmp_path))
    found = only(configuration.check_secret_files(settings))
    assert (found.severity, found.fix) == (Severity.WARNING, f"`chmod 600 {secret}`")


@pytest.mark.parametrize(
    ("url", "severity"),
    [
        (SECRET_URL, "warning"),
        ("rediss://:hunter2@db.example:6379/0", "ok"),
        ("redis://:hunter2@localhost:6379/0", "ok"),
        ("redis://db.example:6379/0", "warning"),
        ("unix://user:hunter2@/run/redis.sock", "ok"),
        ("redis+sentinel://:hunter2@a.example,b.example:1/group", "warning"),
        ("redis+sentinel://localhost,b.example:1/group?sentinel_password=hunter2", "warning"),
        ("rediss+sentinel://:hunter2@a.example,b.example:1/group", "ok"),
        ("redis+cluster://:hunter2@a.example,[::2]:1", "warning"),
        ("redis+cluster://:hunter2@localhost:1,[::1]:2", "ok"),
    ],
)
def test_clear_text(tmp_path: Path, url: str, severity: str) -> None:
    """What leaves the machine without TLS is a warning; the password is never shown."""
    found = only(configuration.check_url(loaded(tmp_path, ORC_REDIS__URL=url)))
    assert found.severity.value == severity
    assert "hunter2" not in found.found + found.fix
    assert severity == "ok" or url.partition(":")[0].replace("redis", "rediss") + "://" in found.fix


@pytest.mark.parametrize(("verify", "told"), [("full", None), ("ca", "the name of the host"), ("none", "nothing")])
def test_what_is_not_checked_of_a_certificate(tmp_path: Path, verify: str, told: str | None) -> None:
    """Less than everything is a warning."""
    settings = loaded(tmp_path, ORC_REDIS__URL="rediss://db.example:6379/0", ORC_REDIS__TLS_VERIFY=verify)
    found = only(configuration.check_url(settings))
    assert found.severity.value == ("ok" if told is None else "warning")
    assert told is None or told in found.found


def test_a_password_as_an_option(tmp_path: Path) -> None:
    """Options are seen by every user of the machine."""
    found = only(configuration.check_url(loaded(tmp_path, url="redis://:hunter2@localhost:6379/0")))
    assert found.severity is Severity.WARNING
    assert "ORC_REDIS__URL" in found.fix


def test_a_control_secret_is_no_password(tmp_path: Path) -> None:
    """What signs commands does not cross the network, but the file that holds it is looked at."""
    toml = f'[redis]\nurl = "redis://db.example:6379/0"\n[control]\nsecret = "{SECRET}"\n'
    settings = loaded(tmp_path, toml)
    assert "password" not in only(configuration.check_url(settings)).found
    (tmp_path / "orc.toml").chmod(0o644)
    found = only(configuration.check_secret_files(settings))
    assert found.severity is Severity.WARNING
    assert "the control secret" in found.found
    assert SECRET not in only(configuration.check_settings(settings)).found + found.found


@pytest.mark.parametrize(
    ("url", "secret", "severity"),
    [
        ("redis://db.example:6379/0", None, "warning"),
        ("rediss://:hunter2@db.example:6379/0", None, "warning"),
        ("redis://db.example:6379/0", SECRET, "ok"),
        ("redis://127.0.0.1:6379/0", None, "ok"),
        ("unix:///run/redis.sock", None, "ok"),
        (None, None, "ok"),
    ],
)
def test_unsigned_commands(tmp_path: Path, url: str | None, secret: str | None, severity: str) -> None:
    """They are a warning where others than this machine's users reach Redis."""
    given = {"ORC_REDIS__URL": url, "ORC_CONTROL__SECRET": secret}
    found = only(
        configuration.check_control_secret(loaded(tmp_path, **{name: text for name, text in given.items() if text}))
    )
    assert found.severity.value == severity
    assert "hunter2" not in found.found + found.fix
    assert SECRET not in found.found + found.fix
