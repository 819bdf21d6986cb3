"""The systemd units are valid, their sandbox is tight, their times fit the program; `orc service` installs them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.cli.app import main
from orchestrator.cli.service_units import UNIT_FILES, parse_states, plan_installation, program, unit_text, write_file
from orchestrator.core.settings import Settings
from orchestrator.core.turns import SILENT_AFTER_S
from orchestrator.workers.runtime.host import GRACE_S, LAST_TRY_S

UNITS = Path(__file__).parents[2] / "systemd"
WORST_EXPOSURE = {"supervisor": 1.5, "worker": 2.0, "redis": 1.5}
TEXTS = {unit.name: unit_text(unit) for unit in UNIT_FILES}
needs_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (package systemd)"
)


def option(unit: str, name: str) -> str:
    """The one value of an option of a unit."""
    (value,) = re.findall(rf"^{name}=(.*)$", TEXTS[unit], re.MULTILINE)
    return str(value)


def run(*command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a program of systemd."""
    return subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root folder with all files."""
    root = tmp_path_factory.mktemp("root")
    for planned in plan_installation(root, redis=True):
        write_file(planned)
    return root


def test_every_shipped_file_is_declared() -> None:
    """A unit that `orc service` does not know would not be installed."""
    assert {path.name for path in UNITS.iterdir()} == {unit.file for unit in UNIT_FILES}


@needs_analyze
def test_units_are_valid(installed: Path, tmp_path: Path) -> None:
    """`systemd-analyze verify` has nothing to say of the installed units, with the path of this installation."""
    folder = Path(shutil.copytree(installed / "etc" / "systemd" / "system", tmp_path / "units"))
    shutil.copy(folder / "orchestrator-worker@.service", folder / "orchestrator-worker@writers.service")
    paths = sorted(str(path) for path in folder.iterdir())
    done = run("systemd-analyze", "verify", *paths, SYSTEMD_UNIT_PATH=f"{folder}:")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    broken = folder / "orchestrator-supervisor.service"
    broken.write_text(broken.read_text().replace("WatchdogSec=30", "WatchdogSec=often"))
    twin = run("systemd-analyze", "verify", str(broken), SYSTEMD_UNIT_PATH=f"{folder}:")
    assert "Failed to parse sec value" in twin.stderr, "verify does not look at what it is given"


@needs_analyze
@pytest.mark.parametrize("unit", WORST_EXPOSURE)
def test_sandbox_is_tight(unit: str) -> None:
    """The exposure that systemd counts is at most what the project promises; 9.6 is none at all, 0 the best."""
    path = next(each.file for each in UNIT_FILES if each.name == unit)
    limit = round(WORST_EXPOSURE[unit] * 10)
    done = run("systemd-analyze", "security", "--offline=true", f"--threshold={limit}", str(UNITS / path))
    assert done.returncode == 0, done.stdout.splitlines()[-1]


def test_times_of_the_units_fit_the_program() -> None:
    """A drain of the default length ends before systemd kills the workers; a watchdog is no stricter than the loops."""
    settings = Settings()
    assert int(option("worker", "TimeoutStopSec")) >= settings.worker.drain_s + GRACE_S + LAST_TRY_S
    assert int(option("worker", "WatchdogSec")) > settings.worker.heartbeat_s
    assert int(option("supervisor", "WatchdogSec")) <= SILENT_AFTER_S
    assert int(option("supervisor", "TimeoutStopSec")) > settings.supervisor.leader_lease_s


@pytest.mark.parametrize("unit", ["supervisor", "worker", "redis"])
def test_services_are_told_and_stopped_in_order(unit: str) -> None:
    """Only the main process speaks; mistakes of usage and configuration are not repeated; secrets come as files."""
    assert (option(unit, "Type"), option(unit, "NotifyAccess")) == ("notify", "main")
    assert option(unit, "RestartPreventExitStatus") == "2 78"
    assert option(unit, "ExecStart").startswith(f"{program()} ")
    assert option(unit, "PartOf") == "orchestrator.target"
    # A login that Redis refuses for a minute is repaired without an operator; each try is a few lines of the journal.
    assert option(unit, "StartLimitIntervalSec") == "0"
    assert int(option(unit, "RestartSec")) >= 5
    if unit != "redis":
        reload = re.findall("^ExecReload=(.*)$", TEXTS[unit], re.MULTILINE)
        assert reload == [f"{program()} config validate", "/bin/kill -HUP $MAINPID"]
    # The guardian of the embedded Redis must get SIGTERM too; workers must not, because their host drains them.
    assert option(unit, "KillMode") == ("control-group" if unit == "redis" else "mixed")
    secrets = re.findall(r"^LoadCredential=(\w+):(.*)$", TEXTS[unit], re.MULTILINE)
    if unit != "redis":
        # A relative name is looked up in /etc/credstore, and may be missing (systemd.exec(5)).
        assert secrets == [(name, f"orchestrator.{name}") for name in ("ORC_REDIS__URL", "ORC_CONTROL__SECRET")]


def test_documented_sockets_lie_in_folders_of_the_units() -> None:
    """`ProtectSystem=strict` forbids a socket in any other folder of /run."""
    folders = [
        re.escape(option(unit, "RuntimeDirectory")).replace("%i", r"[\w-]+") for unit in ("supervisor", "worker")
    ]
    root = UNITS.parent
    texts = {
        path: path.read_text()
        for top in ("docs", "orchestrator")
        for path in (root / top).rglob("*.*")
        if path.suffix in {".md", ".py", ".toml"}
    }
    found = {(path.name, name) for path, text in texts.items() for name in re.findall(r"unix:/run/([\w/.-]+)", text)}
    assert len(found) >= 3
    assert [one for one in found if not re.fullmatch(rf"({'|'.join(folders)})/[\w.-]+", one[1])] == []


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("systemd-sysusers") is None, reason="needs root and systemd")
def test_user_and_folders_are_made(installed: Path) -> None:
    """systemd-sysusers makes the user, and systemd-tmpfiles the folders, below a root folder."""
    assert run("systemd-sysusers", f"--root={installed}", "orchestrator.conf").returncode == 0
    assert "orchestrator:x:" in (installed / "etc/passwd").read_text()
    done = run("systemd-tmpfiles", f"--root={installed}", "--create", "orchestrator.conf")
    assert done.returncode == 0, done.stderr
    assert (installed / "etc/orchestrator").stat().st_mode & 0o777 == 0o750
    assert (installed / "etc/credstore").stat().st_mode & 0o777 == 0o700


# ------------------------------------------------------------------------------------------------------- orc service


def test_printed_unit_runs_this_installation(capsys: pytest.CaptureFixture[str]) -> None:
    """The text is that of the repository, with the path of the installed program."""
    assert main(["service", "print", "worker"]) == 0
    printed = capsys.readouterr().out
    assert printed == (UNITS / "orchestrator-worker@.service").read_text().replace("/usr/bin/orc", program())
    assert "\nExecStart=/" in printed
    assert main(["service", "print", "nothing"]) == 2


def test_installation_keeps_edited_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run writes nothing. A later version replaces the files of an earlier one, and no file that was edited."""
    install = ["service", "install", "--root", str(tmp_path), "-o", "jsonl"]
    supervisor = tmp_path / "etc/systemd/system/orchestrator-supervisor.service"
    worker = tmp_path / "etc/systemd/system/orchestrator-worker@.service"

    assert main([*install, "--dry-run"]) == 0
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr().out.count('"would be written"') == 5

    assert main(install) == 0
    assert capsys.readouterr().out.count('"written"') == 5
    assert supervisor.read_text().endswith(TEXTS["supervisor"])
    assert main(install) == 0
    assert capsys.readouterr().out.count('"unchanged"') == 5

    write_as_older_version(worker)
    supervisor.write_text(supervisor.read_text().replace("WatchdogSec=30", "WatchdogSec=60"))
    assert main(install) == 4
    printed = capsys.readouterr().out
    assert (printed.count('"replaced"'), printed.count("was edited")) == (1, 1)
    assert "WatchdogSec=60" in supervisor.read_text()
    assert worker.read_text().endswith(TEXTS["worker"])

    assert main([*install, "--force"]) == 0
    assert "WatchdogSec=30" in supervisor.read_text()


def write_as_older_version(path: Path) -> None:
    """Write a file as a version with other units had written it."""
    from orchestrator.cli import service_units

    body = path.read_text().partition("\n")[2].replace("WatchdogSec=30", "WatchdogSec=45")
    path.write_text(f"{service_units._DIGEST}{service_units._digest(body)}\n{body}")


@pytest.mark.skipif(Path("/run/systemd/system").is_dir(), reason="needs a machine without systemd")
def test_status_without_systemd(capsys: pytest.CaptureFixture[str]) -> None:
    """The command says why it has nothing to show."""
    assert main(["service", "status"]) == 69
    assert "systemd does not run on this machine" in capsys.readouterr().err


def test_states_are_read_in_words() -> None:
    """The blocks of `systemctl show`, one per unit."""
    shown = """\
Id=orchestrator-supervisor.service
LoadState=loaded
ActiveState=active
SubState=running
Result=success
StatusText=leads
NRestarts=0
StateChangeTimestamp=@1763840000

Id=orchestrator-worker@writers.service
LoadState=loaded
ActiveState=activating
SubState=auto-restart
Result=watchdog
StatusText=
NRestarts=3
StateChangeTimestamp=@1763840010

Id=orchestrator-redis.service
LoadState=not-found
ActiveState=inactive
SubState=dead
Result=success
NRestarts=0
StateChangeTimestamp=
"""
    found = parse_states(shown)
    assert [(state.unit.partition(".")[0], state.state, state.doing, state.restarts) for state in found] == [
        ("orchestrator-supervisor", "runs", "leads", 0),
        (
            "orchestrator-worker@writers",
            "restarts soon: the watchdog ended it, because a loop did not turn",
            "",
            3,
        ),
        ("orchestrator-redis", "not installed", "", 0),
    ]
    assert found[0].since is not None
    assert found[2].since is None
