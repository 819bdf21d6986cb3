"""Builds the image over a base that debootstrap makes, and runs containers of it without a container engine.

Debian's Python is that of the default base, so that the locked libraries of the image are the ones that users get. What
takes long to make is kept in build/image.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from orchestrator.testing.waiting import wait_until
from tests.faultkit.processes import ActorProcess
from tests.helpers.subprocesses import children_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT: Final = Path(__file__).parents[2]
KEPT: Final = ROOT / "build" / "image"
SUITE: Final = "trixie"
PYTHON: Final = "3.13"
BASE: Final = f"localhost/base:{SUITE}"
NAME: Final = "redis-orchestrator"
SOURCE: Final = "https://example.org/redis-orchestrator"
FIRST_PROCESS: Final = Path(__file__).with_name("first_process.py")
NAMESPACES: Final = ("unshare", "--pid", "--mount", "--ipc", "--uts", "--fork", "--kill-child")


def in_network(network: Path) -> Sequence[str]:
    """The beginning of a command that runs in a network namespace."""
    return ("nsenter", f"--net={network}")


def why_not() -> str:
    """The reason why no image can be built or run here; empty if there is none."""
    missing = [name for name in ("buildah", "debootstrap", "unshare", "nsenter", "make") if not shutil.which(name)]
    if missing:
        return f"needs {', '.join(missing)}"
    if os.getuid() != 0 or subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False).returncode:
        return "needs root with the right to make namespaces"
    return ""


class NoBase(Exception):
    """The base cannot be made: there is no mirror of Debian to be had, or it lacks the suite."""


class ImageStore:
    """Calls buildah with images of its own, beside those of the machine."""

    def __init__(self, folder: Path = KEPT) -> None:
        self.folder = folder
        self.command = ("buildah", "--root", str(folder / "storage"), "--runroot", str(folder / "run"))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the store alone, so that several test processes build once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def call(self, *arguments: str) -> str:
        """Run one command of buildah and return what it prints."""
        return run(*self.command, *arguments).strip()

    def make_base(self) -> None:
        """Make the base image if there is none yet."""
        if BASE in self.call("images", "--format", "{{.Name}}:{{.Tag}}").split():
            return
        tree = self.folder / "base"
        shutil.rmtree(tree, ignore_errors=True)
        try:
            run("debootstrap", "--variant=minbase", "--include=python3,python3-venv", SUITE, str(tree))
        except AssertionError as failed:
            raise NoBase(f"debootstrap makes no base here: {str(failed).strip().splitlines()[-1]}") from None
        for folder in ("var/cache/apt/archives", "var/lib/apt/lists"):
            shutil.rmtree(tree / folder)
        container = self.call("from", "scratch")
        self.call("add", container, str(tree), "/")
        self.call("commit", "--quiet", "--rm", container, BASE)
        shutil.rmtree(tree)

    def fetch_wheels(self) -> Path:
        """Download what the locks name for the Python of the base, with the machine's own configuration of pip."""
        locks = [ROOT / f"requirements/{name}.txt" for name in ("image", "build")]
        digest = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()
        wheels = self.folder / f"wheels-{digest[:16]}"
        if (wheels / "complete").exists():
            return wheels
        for lock in locks:
            options = ("--quiet", "--require-hashes", "--no-deps", "--only-binary=:all:", "--python-version", PYTHON)
            source = ("--dest", str(wheels), "-r", str(lock))
            run(sys.executable, "-m", "pip", "download", "--disable-pip-version-check", *options, *source)
        (wheels / "complete").touch()
        return wheels

    def pip_conf(self) -> Path:
        """Write the configuration with which pip finds the wheels at /wheels, and nothing else."""
        file = self.folder / "pip.conf"
        file.write_text("[global]\nno-index = true\nfind-links = /wheels\n", encoding="utf-8")
        return file

    def build(self, source: Path = ROOT, name: str = NAME) -> str:
        """Build the image of a source tree as `make image` does; return what that printed."""
        with self.locked():
            self.make_base()
            wheels = self.fetch_wheels()
            # The health check is no part of OCI's format. Without an engine, a chroot isolates the steps.
            options = (
                *("--isolation", "chroot", "--format", "docker", "--layers"),
                *(
                    "--build-arg",
                    f"BASE={BASE}",
                    "--secret",
                    f"id=pip,src={self.pip_conf()}",
                    "--volume",
                    f"{wheels}:/wheels:ro",
                ),
            )
            engine = " ".join(self.command)
            return run(
                *("make", "--no-print-directory", "-C", str(source), "image"),
                *(f"ENGINE={engine}", f"SOURCE={SOURCE}", f"IMAGE={name}", f"ARGS={' '.join(options)}"),
            )

    def image(self, name: str = NAME) -> Image:
        """Look at an image."""
        return Image(name, json.loads(self.call("inspect", "--type", "image", name))["Docker"])

    @contextmanager
    def mounted(self, name: str = NAME) -> Iterator[MountedImage]:
        """Mount an image."""
        with self.locked():
            container = self.call("from", name)
            root = Path(self.call("mount", container))
        try:
            yield MountedImage(name, self.image(name).document, root)
        finally:
            with self.locked():
                self.call("rm", container)


@dataclass(frozen=True, slots=True)
class Image:
    """One image of a store.

    Attributes:
        document: what buildah says of it, in Docker's format.
    """

    name: str
    document: Mapping[str, Any]

    @property
    def config(self) -> Mapping[str, Any]:
        """Command, environment, user, health check and labels."""
        config: Mapping[str, Any] = self.document["config"]
        return config

    @property
    def layers(self) -> Sequence[str]:
        """The digests of the layers, the base's first."""
        layers: Sequence[str] = self.document["rootfs"]["diff_ids"]
        return layers


@dataclass(frozen=True, slots=True)
class MountedImage(Image):
    """An image and its file system, which all containers share because they cannot write to it.

    Attributes:
        root: before a container starts, the places of its volumes are made here.
    """

    root: Path


class Container:
    """A process of an image in namespaces of its own: read-only root, no capability, no network but its loopback.

    Args:
        image: its entry point, environment, folder and user apply.
        arguments: those of the entry point, in place of the image's.
        environ: added to the environment.
        volumes: read-only, by the path in the container.
        network: a network namespace to share.
    """

    def __init__(
        self,
        image: MountedImage,
        *arguments: str,
        environ: Mapping[str, str] | None = None,
        volumes: Mapping[str, Path] | None = None,
        network: Path | None = None,
    ) -> None:
        self.config = image.config
        self._image, self._arguments, self._volumes = image, arguments, dict(volumes or {})
        self._network = ("unshare", "--net") if network is None else in_network(network)
        self._user = int(self.config["User"].partition(":")[0])
        self.environ = dict(variable.split("=", 1) for variable in self.config["Env"]) | dict(environ or {})

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            self._start(undo)
            self._undo = undo.pop_all()
        return self

    def _start(self, undo: ExitStack) -> None:
        root = self._image.root
        for path, source in self._volumes.items():  # an engine makes them too, below the read-only root
            place = Path(f"{root}{path}")
            if source.is_dir():
                place.mkdir(parents=True, exist_ok=True)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.touch()
        plan = {
            "root": str(root),
            "volumes": [(str(source), path) for path, source in self._volumes.items()],
            "folder": self.config["WorkingDir"],
            "user": self._user,
            "command": [*self.config["Entrypoint"], *(self._arguments or self.config["Cmd"])],
            "environ": self.environ,
        }
        command = [*self._network, *NAMESPACES, sys.executable, "-P", "-S", str(FIRST_PROCESS), json.dumps(plan)]
        self.actor = undo.enter_context(ActorProcess(command, name="container"))
        self.pid = wait_until(
            lambda: next(iter(children_of(self.actor.pid)), 0), lambda: self.actor.describe("its start")
        )
        # An engine returns when the command itself has been executed.
        file = Path(f"/proc/{self.pid}/cmdline")
        wait_until(
            lambda: FIRST_PROCESS.name.encode() not in file.read_bytes(), lambda: self.actor.describe("its begin")
        )

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    @property
    def status(self) -> str:
        """What the kernel says of process 1."""
        return Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")

    def run(self, *command: str, timeout_s: float = 20.0) -> subprocess.CompletedProcess[str]:
        """Run another process in the container, as its user."""
        enter = ("nsenter", "--target", str(self.pid), "--mount", "--pid", "--net", "--ipc", "--uts", "--root", "--wd")
        user = ("--setgid", str(self._user), "--setuid", str(self._user))
        return subprocess.run(
            [*enter, *user, "--", *command],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def check_health(self) -> subprocess.CompletedProcess[str]:
        """Run the health check of the image once."""
        kind, *command = self.config["Healthcheck"]["Test"]
        assert kind == "CMD"
        return self.run(*command)

    def stop(self, timeout_s: float) -> int:
        """Send the stop signal of the image to process 1 and return the exit status."""
        run("kill", "-s", self.config["StopSignal"], str(self.pid))
        return self.actor.wait_exit(timeout_s)


def run(*command: str) -> str:
    """Run a program and return its output.

    Raises:
        AssertionError: it failed; the message has its output.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("ORC_", "PYTHON", "MAKE"))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    return done.stdout
