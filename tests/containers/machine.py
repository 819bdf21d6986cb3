"""Does what the commands of docs/guides/containers.md ask an engine or a cluster for, with real processes.

All containers are in one network namespace, each at a loopback address of its own, and find `redis` by its name. A
redis-server runs in place of the image of Redis, with the command, files and health check of that container.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import urllib.parse
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import yaml

from orchestrator.embedded.server_binary import find_server_binary
from orchestrator.testing.waiting import wait_until
from tests.containers.images import ROOT, Container, MountedImage, in_network
from tests.faultkit.processes import ActorProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HEALTH: Final = ("ORC_SUPERVISOR__HEALTH", "ORC_WORKER__HEALTH")
_LOOPBACK_UP: Final = (
    "from tests.containers.first_process import loopback_up; loopback_up(); print('up', flush=True); input()"
)


@dataclass(frozen=True, slots=True)
class Workload:
    """What a command or a file says about a container.

    Attributes:
        command: in place of the image's.
        volumes: files and folders by their path in the container.
        grace_s: time to end after the stop signal.
        health: command of its health check, in place of the image's.
        ready: path and port of its readiness probe.
    """

    name: str
    image: str
    command: Sequence[str]
    environ: Mapping[str, str] = field(default_factory=dict)
    volumes: Mapping[str, Path] = field(default_factory=dict)
    grace_s: float = 10.0
    replicas: int = 1
    health: Sequence[str] = ()
    ready: tuple[str, int] | None = None


class Server:
    """A redis-server in place of the image of Redis."""

    def __init__(self, workload: Workload, network: Sequence[str], folder: Path) -> None:
        self.workload, self._network = workload, network
        program, *arguments = workload.command
        assert program == "redis-server"
        command = [*network, str(find_server_binary().path), *map(self.mapped, arguments)]
        self.actor = ActorProcess(command, name=workload.name, cwd=folder)

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.enter_context(self.actor)
            if self.workload.health:
                wait_until(self.is_healthy, lambda: self.actor.describe("health"), 15, poll_s=0.1)
            else:
                self.actor.wait_output("Ready to accept connections")
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.actor.close()

    def mapped(self, text: str) -> str:
        """Replace paths of the container by those of its volumes."""
        for path, source in self.workload.volumes.items():
            text = re.sub(rf"(?<![\w/]){re.escape(path)}(?![\w.-])", str(source), text)
        return text

    def is_healthy(self) -> bool:
        """Run the health check once."""
        command = [*self._network, *map(self.mapped, self.workload.health)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def stop(self, timeout_s: float) -> int:
        """Send SIGTERM and return the exit status."""
        self.actor.terminate()
        return self.actor.wait_exit(timeout_s)


class Machine:
    """Runs commands of the page in a folder; use it in a `with` block.

    Args:
        project: has what a checkout has, as far as the commands need it.
    """

    def __init__(self, image: MountedImage, project: Path) -> None:
        self.image, self.project = image, project
        self.running: dict[str, tuple[Workload, Container | Server]] = {}
        self.objects: dict[str, Path] = {}
        self._stack = ExitStack()
        self._addresses = iter(range(1, 255))

    def __enter__(self) -> Self:
        command = (
            "unshare",
            "--net",
            sys.executable,
            "-P",
            "-c",
            f"import sys; sys.path.append({str(ROOT)!r}); {_LOOPBACK_UP}",
        )
        # Its input stays open and empty.
        holder = ActorProcess(("sh", "-c", 'sleep infinity | "$@"', "sh", *command), name="network")
        self._stack.enter_context(holder)
        holder.wait_output("up")
        self._network = Path(f"/proc/{self._netns_of(holder.pid)}/ns/net")
        hosts = self.project / "hosts"
        hosts.write_text("127.0.0.1 localhost redis\n", encoding="utf-8")
        hosts.chmod(0o444)
        self._hosts = hosts
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @staticmethod
    def _netns_of(leader: int) -> int:
        ours = Path("/proc/self/ns/net").readlink()
        members = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        found = [pid for pid in members if _session(pid) == leader and Path(f"/proc/{pid}/ns/net").readlink() != ours]
        return found[0]

    # ------------------------------------------------------------------------------------------------------ containers

    def start(self, workload: Workload) -> None:
        """Start the containers of a workload."""
        for replica in range(workload.replicas):
            name = workload.name if workload.replicas == 1 else f"{workload.name}-{replica + 1}"
            started: Container | Server
            if workload.image.startswith("redis:"):
                started = self._stack.enter_context(Server(workload, in_network(self._network), self.project))
            else:
                assert workload.image.partition(":")[0] == self.image.name, workload.image
                started = self._stack.enter_context(
                    Container(
                        self.image,
                        *workload.command,
                        environ=self._with_address(workload.environ),
                        volumes={**workload.volumes, "/etc/hosts": self._hosts},
                        network=self._network,
                    )
                )
            self.running[name] = (workload, started)

    def _with_address(self, environ: Mapping[str, str]) -> dict[str, str]:
        variables = dict(variable.split("=", 1) for variable in self.image.config["Env"]) | dict(environ)
        address = f"127.0.1.{next(self._addresses)}"
        ports = {name: variables[name].rpartition(":")[2] for name in HEALTH if name in variables}
        return {**environ, **{name: f"{address}:{port}" for name, port in ports.items()}}

    def find(self, name: str) -> Container:
        """The container of a name, or the first of a service or deployment."""
        found = next(started for running, (_, started) in self.running.items() if running in {name, f"{name}-1"})
        assert isinstance(found, Container)
        return found

    def stop(self, names: Sequence[str], grace_s: float | None = None) -> None:
        """Send the stop signal to containers, and fail if they do not end in their time."""
        for name in names:
            workload, started = self.running.pop(name)
            allowed_s = workload.grace_s if grace_s is None else grace_s
            assert started.stop(allowed_s) == 0, f"{name}: {started.actor.output}"

    def describe(self) -> str:
        """The last output of all containers."""
        return "\n".join(started.actor.describe(name) for name, (_, started) in self.running.items())

    # -------------------------------------------------------------------------------------------------------- commands

    def run(self, command: str) -> str:  # noqa: C901, PLR0912 - one table of commands
        """Run one command of the page and return what it prints."""
        words = shlex.split(command.replace("$PWD", str(self.project)))
        match words:
            case ["docker", "network", *_] | ["docker", "rm", *_]:
                pass
            case ["docker", "run", *rest]:
                return self._docker_run(rest)
            case ["docker", "exec", name, *rest]:
                return self._execute(name, rest)
            case ["docker", "stop", "--time", seconds, *names]:
                self.stop(names, float(seconds))
            case ["docker", "stop", *names]:
                self.stop(names)
            case ["docker", "compose", "up", "--detach", "--build", "--scale", scale]:
                service, _, count = scale.partition("=")
                for workload in compose_workloads(self.project / "compose.yaml", {service: int(count)}):
                    self.start(workload)
            case ["docker", "compose", "exec", service, *rest]:
                return self._execute(service, rest)
            case ["docker", "compose", "down"] | ["kubectl", "delete", *_]:
                self.stop(list(reversed(self.running)))
            case ["kubectl", "create", *rest]:
                return self._create(rest)
            case ["kubectl", "apply", "-f", folder]:
                for workload in kubernetes_workloads(self.project / folder, self.objects, self.project / "kubernetes"):
                    self.start(workload)
            case ["kubectl", "rollout", "status", _]:
                wait_until(lambda: all(self.is_ready(name) for name in self.running), self.describe, 40, poll_s=0.1)
            case ["kubectl", "exec", deployment, "--", *rest]:
                return self._execute(deployment.partition("/")[2], rest)
            case _:
                raise AssertionError(f"the test cannot do: {command}")
        return ""

    def is_ready(self, name: str) -> bool:
        """Ask the readiness probe of a container."""
        workload, started = self.running[name]
        if workload.ready is None or not isinstance(started, Container):
            return True
        path, port = workload.ready
        (address,) = {started.environ[variable].rpartition(":")[0] for variable in HEALTH}
        url = urllib.parse.urlunsplit(("http", f"{address}:{port}", path, "", ""))
        code = f"import urllib.request; urllib.request.urlopen({url!r}, timeout=3)"
        return started.run("python", "-c", code).returncode == 0

    def _execute(self, name: str, command: Sequence[str]) -> str:
        done = self.find(name).run(*command, timeout_s=60)
        assert done.returncode == 0, done.stderr + self.describe()
        return done.stdout

    def _docker_run(self, words: Sequence[str]) -> str:
        rest, name, environ, volumes, strict = list(words), "", {}, {}, set()
        while rest[0].startswith("--"):
            match rest.pop(0):
                case "--detach":
                    pass
                case "--read-only":
                    strict.add("read-only")
                case "--name":
                    name = rest.pop(0)
                case "--cap-drop" | "--security-opt" | "--network":
                    strict.add(rest.pop(0))
                case "--env":
                    variable, _, value = rest.pop(0).partition("=")
                    environ[variable] = value
                case "--volume":
                    source, target, mode = rest.pop(0).split(":")
                    assert mode == "ro"
                    volumes[target] = Path(source)
                case option:
                    raise AssertionError(f"the test does not know {option}")
        image, *command = rest
        if not image.startswith("redis:"):
            assert {"read-only", "ALL", "no-new-privileges"} <= strict  # as `Container` runs everything
        self.start(Workload(name, image, command, environ, volumes))
        return ""

    def _create(self, words: Sequence[str]) -> str:
        kind, *rest = words
        name = rest[1] if kind == "secret" else rest[0]
        files = [self.project / word.removeprefix("--from-file=") for word in rest if word.startswith("--from-file=")]
        content = {file.name: file.read_text(encoding="utf-8") for file in files}
        self.objects[f"{kind}/{name}"] = projected(self.project / "kubernetes" / f"{kind}-{name}", content)
        return ""


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def projected(folder: Path, content: Mapping[str, str]) -> Path:
    """Write files as a kubelet does: links to a folder that it replaces as a whole."""
    data = folder / "..2026_01_01"
    data.mkdir(parents=True)
    (folder / "..data").symlink_to(data.name)
    for name, text in content.items():
        (data / name).write_text(text, encoding="utf-8")
        (folder / name).symlink_to(f"..data/{name}")
    for path in (folder, data):
        path.chmod(0o755)
    return folder


def compose_workloads(file: Path, scale: Mapping[str, int]) -> Iterator[Workload]:
    """The services of a compose file without a profile, those first that others depend on."""
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    services = {name: service for name, service in document["services"].items() if "profiles" not in service}
    for name, service in sorted(services.items(), key=lambda item: len(item[1].get("depends_on", ()))):
        volumes = {}
        for volume in service.get("volumes", ()):
            source, target, *_ = volume.split(":")
            place = file.parent / source if source.startswith(".") else file.parent / "volumes" / source
            if not source.startswith("."):
                place.mkdir(parents=True)
            volumes[target] = place.resolve()
        for secret in service.get("secrets", ()):
            volumes[f"/run/secrets/{secret}"] = (file.parent / document["secrets"][secret]["file"]).resolve()
        check = service.get("healthcheck", {}).get("test", [])
        yield Workload(
            name,
            service["image"],
            [text.replace("$$", "$") for text in service["command"]],
            service.get("environment", {}),
            volumes,
            grace_s=float(service["stop_grace_period"].removesuffix("s")),
            replicas=scale.get(name, service.get("deploy", {}).get("replicas", 1)),
            health=["sh", "-c", check[1].replace("$$", "$")] if check else (),
        )


def kubernetes_objects(folder: Path) -> list[dict[str, Any]]:
    """All objects of the manifests of a folder."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.yaml"))]
    return [document for text in texts for document in yaml.safe_load_all(text)]


def kubernetes_workloads(folder: Path, objects: dict[str, Path], place: Path) -> Iterator[Workload]:
    """The pods of manifests, those of Redis first.

    Args:
        folder: of the manifests.
        objects: folders of secrets and config maps, by kind and name.
        place: where the volumes go.
    """
    documents = kubernetes_objects(folder)
    for document in documents:
        if document["kind"] == "ConfigMap":
            name = document["metadata"]["name"]
            objects[f"configmap/{name}"] = projected(place / f"configmap-{name}", document["data"])
    pods = [document for document in documents if document["kind"] in {"Deployment", "StatefulSet"}]
    for document in sorted(pods, key=lambda found: found["kind"], reverse=True):
        pod = document["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        sources = {}
        for volume in pod["volumes"]:
            if "configMap" in volume:
                sources[volume["name"]] = objects[f"configmap/{volume['configMap']['name']}"]
            elif "secret" in volume:
                sources[volume["name"]] = objects[f"secret/{volume['secret']['secretName']}"]
        for claim in document["spec"].get("volumeClaimTemplates", ()):
            sources[claim["metadata"]["name"]] = place / claim["metadata"]["name"]
            sources[claim["metadata"]["name"]].mkdir()
        mounts = {
            mount["mountPath"]: sources[mount["name"]]
            for mount in container["volumeMounts"]
            if mount["name"] in sources
        }
        probe = container["readinessProbe"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        yield Workload(
            document["metadata"]["name"],
            container["image"],
            container["args"],
            {variable["name"]: variable["value"] for variable in container.get("env", ())},
            mounts,
            grace_s=float(pod["terminationGracePeriodSeconds"]),
            replicas=document["spec"]["replicas"],
            health=probe["exec"]["command"] if "exec" in probe else (),
            ready=(probe["httpGet"]["path"], ports[probe["httpGet"]["port"]]) if "httpGet" in probe else None,
        )
