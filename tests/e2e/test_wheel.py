"""The wheel in an environment of its own, beside a project with folders `workers/` and `lua/` of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.faultkit.processes import ActorProcess
from tools.vendor_assets import file_of, integrity

if TYPE_CHECKING:
    from tests.faultkit.servers import RedisServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ROOT: Final = Path(__file__).parents[2]
PROJECT: Final = {
    "lua/__init__.py": 'SIGN = "!"\n',
    "workers/__init__.py": "",
    "workers/greetings.py": """
from lua import SIGN

def greeting(name: str) -> str:
    return f"Hello, {name}{SIGN}"
""",
    "my_agents.py": """
from orchestrator import Agent
from workers.greetings import greeting

agent = Agent("greeter")

@agent.skill
async def greet(name: str) -> str:
    return greeting(name)
""",
    "test_my_agents.py": """
import pytest
from my_agents import agent, greet
from workers.greetings import greeting

@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_greet(orc_team, anyio_backend):
    async with orc_team(agent) as team:
        assert await team.run(greet, {"name": "Ada"}) == greeting("Ada")
""",
    "submit.py": """
from my_agents import greet
from orchestrator.sync import Orchestrator

with Orchestrator() as orc:
    print(orc.submit(greet, {"name": "Ada"}).result(30))
""",
}


class Installed:
    """An environment with the wheel, and the folder of the project.

    Args:
        folder: where both are made.
        wheel: what is installed; it finds the libraries that it needs in the environment of this process.
    """

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.project = folder / "project"
        for name, text in PROJECT.items():
            path = self.project / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        venv.create(folder / "env", with_pip=False, symlinks=True)
        self.bin = folder / "env" / "bin"
        pip("--python", str(self.bin / "python"), "install", "--no-index", "--no-deps", str(wheel))
        (self.packages,) = (folder / "env").glob("lib/python*/site-packages")
        (self.packages / "libraries.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")

    def start(self, *arguments: str, **variables: str) -> ActorProcess:
        """Describe an `orc` that goes on, in the folder of the project; use it in a `with` statement."""
        command = [str(self.bin / "orc"), *arguments]
        return ActorProcess(command, name=f"orc-{arguments[0]}", env=variables, cwd=self.project)

    def python(self, *arguments: str, **variables: str) -> tuple[int, str]:
        """Run the interpreter in the folder of the project; return the exit status and the output."""
        done = subprocess.run(
            [self.bin / "python", *arguments],
            cwd=self.project,
            env=_environ() | variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr


def pip(*arguments: str) -> None:
    """Run pip of this process's environment."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, env=_environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def build_wheel(source: Path, folder: Path) -> Path:
    """Build a wheel without a network, from a checkout or from a source archive."""
    pip("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(folder), str(source))
    (wheel,) = folder.glob("*.whl")
    return wheel


def _environ() -> dict[str, str]:
    ours = ("ORC_", "PYTEST", "PYTHON")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the checkout."""
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel, installed."""
    return Installed(tmp_path_factory.mktemp("installed"), wheel)


def test_wheel_adds_one_name(wheel: Path, installed: Installed) -> None:
    """The wheel holds `orchestrator` alone, with agents' code and scripts; no other name of ours can be imported."""
    names = zipfile.ZipFile(wheel).namelist()
    assert {re.split(r"[/-]", name)[0] for name in names} == {"orchestrator", "redis_orchestrator"}
    files = [path for folder in ("workers", "lua", "systemd") for path in (ROOT / folder).rglob("*") if path.is_file()]
    wanted = [path.relative_to(ROOT) for path in files if path.suffix != ".pyc"]
    assert wanted
    assert {f"orchestrator/{path}" for path in wanted} <= set(names)
    assert {path.name for path in installed.packages.iterdir() if "-" not in path.name} == {
        "libraries.pth",
        "orchestrator",
    }
    for name in ("workers", "lua"):
        code, output = installed.python("-P", "-c", f"import {name}")
        assert (code, f"No module named '{name}'" in output) == (1, True), output


def test_the_dashboard_travels_in_the_wheel(wheel: Path) -> None:
    """The wheel has every template and file of the pages; those of others have the hashes of the manifest."""
    folder = ROOT / "orchestrator" / "dashboard"
    files = [path for part in ("templates", "static") for path in (folder / part).rglob("*") if path.is_file()]
    with zipfile.ZipFile(wheel) as opened:
        assert {str(path.relative_to(ROOT)) for path in files} <= set(opened.namelist())
        manifest = tomllib.loads(opened.read("orchestrator/dashboard/vendor.toml").decode())
        hashes = {
            name: integrity(opened.read(f"orchestrator/dashboard/static/vendor/{file_of(package, name)}"))
            for package, entry in manifest.items()
            for name in entry["files"]
        }
    assert hashes == {name: digest for entry in manifest.values() for name, digest in entry["files"].items()}
    assert len(hashes) == len([path for path in files if path.parent.name == "vendor"])


def test_units_travel_in_the_wheel(installed: Installed) -> None:
    """`orc service` of an installation without a checkout prints its units, with its own path."""
    code, output = installed.python("-P", "-m", "orchestrator", "service", "print", "worker")
    assert (code, f"\nExecStart={installed.bin / 'orc'} worker run --group %i\n" in output) == (0, True), output


def test_wheel_of_a_source_archive_is_the_same(wheel: Path, tmp_path: Path) -> None:
    """A source archive has the folders of the repository; the wheel built from it equals that of the checkout."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env=_environ(), capture_output=True, check=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        folders = {"/".join(name.split("/")[1:3]) for name in opened.getnames()}
    assert {"workers/agent.py", "lua/tasks", "orchestrator/core", "tests/e2e"} <= folders
    assert not {"orchestrator/workers", "orchestrator/lua"} & folders
    assert build_wheel(archive, tmp_path / "built").read_bytes() == wheel.read_bytes()


def test_pytest_in_a_project_with_our_old_names(installed: Installed) -> None:
    """The plugin loads and runs a team although the current directory, which has `workers/`, is searched first."""
    options = ("-q", "-p", "no:cacheprovider", "-p", "anyio", "-p", "redis-orchestrator")
    code, output = installed.python("-m", "pytest", *options, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert (code, "1 passed" in output) == (0, True), output


def test_script_and_workers_in_a_project_with_our_old_names(
    installed: Installed, redis_server: RedisServer, prefix: str
) -> None:
    """`orc worker run` and a script import the project's `workers` and `lua`, and a task goes from one to the other."""
    place = {"ORC_REDIS__URL": redis_server.url, "ORC_PREFIX": prefix}
    with (
        installed.start("supervisor", "run", **place),
        installed.start("worker", "run", "my_agents:agent", **place) as worker,
    ):
        worker.wait_output("worker_started", timeout_s=30)
        assert "warning" not in worker.output
        assert installed.python("submit.py", **place) == (0, "Hello, Ada!\n")
