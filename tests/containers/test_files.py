"""compose.yaml and the manifests of Kubernetes fit the program, and each other."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml

from orchestrator.cli.app import program
from orchestrator.core.errors import ConfigError
from orchestrator.core.settings_sources import load_settings
from orchestrator.monitoring.catalogue import METRICS
from orchestrator.workers.runtime.host import GRACE_S
from tests.containers.images import ROOT, why_not
from tests.containers.machine import kubernetes_objects
from tests.docs.pages import blocks
from tests.faultkit.processes import ActorProcess

if TYPE_CHECKING:
    from pathlib import Path

MANIFESTS: Final = ROOT / "config" / "kubernetes"
OURS: Final = ("supervisor", "worker")
USER: Final = 65532
MARGIN_S: Final = 30
"""Time after the drain: the host's own grace, and as much again for the engine."""


@cache
def compose() -> dict[str, Any]:
    """The compose file."""
    document: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    return document


def objects(*kinds: str) -> dict[str, dict[str, Any]]:
    """The objects of these kinds, by name."""
    found = {obj["metadata"]["name"]: obj for obj in kubernetes_objects(MANIFESTS) if obj["kind"] in kinds}
    assert found
    return found


@cache
def pods() -> dict[str, dict[str, Any]]:
    """The pods of our own image and that of Redis, by the name of what makes them."""
    return {name: obj["spec"]["template"] for name, obj in objects("Deployment", "StatefulSet").items()}


def test_compose_gives_no_rights() -> None:
    """Every service has a read-only root and no capability, and publishes ports of the loopback address alone."""
    document = compose()
    for name, service in document["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        assert set(service.get("secrets", ())) <= document["secrets"].keys(), name
        assert all(source.endswith(":ro") for source in service.get("volumes", ()) if source.startswith("./")), name
    assert document["networks"]["data"] == {"internal": True}
    assert document["services"]["redis"]["networks"] == ["data"]
    assert "redis" in document["services"]["redis"]["user"]


def test_compose_gives_time_to_drain() -> None:
    """The engine waits for the drain and the host's grace before it kills a worker host."""
    service = compose()["services"]["worker"]
    settings = load_settings(environ=service["environment"] | {"ORC_REDIS__URL": "redis://redis:6379/0"})
    assert MARGIN_S > GRACE_S
    assert service["stop_grace_period"] == f"{settings.worker.drain_s + MARGIN_S:.0f}s"


def test_pods_are_restricted() -> None:
    """Each pod fits the restricted standard, and no token and no variables of services are put into it."""
    for name, template in pods().items():
        pod = template["spec"]
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["enableServiceLinks"] is False, name
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert name == "redis" or {security[key] for key in ("runAsUser", "runAsGroup", "fsGroup")} == {USER}, name
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
            assert {"requests", "limits"} <= container["resources"].keys(), name
            writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
            assert writable <= {"/data", "/tmp"}, name


def test_variables_of_services_would_be_refused() -> None:
    """Why pods have no service links: a Service named `orc-api` would set a variable that is no setting."""
    with pytest.raises(ConfigError, match="ORC_API_SERVICE_HOST"):
        load_settings(environ={"ORC_API_SERVICE_HOST": "10.0.0.1"})


def test_pods_have_time_to_drain(tmp_path: Path) -> None:
    """The grace period of workers is the drain of the settings that they mount, and 30 s."""
    file = tmp_path / "orchestrator.toml"
    file.write_text(objects("ConfigMap")["orc"]["data"]["orchestrator.toml"], encoding="utf-8")
    settings = load_settings(file, environ={})
    assert pods()["orc-worker"]["spec"]["terminationGracePeriodSeconds"] == settings.worker.drain_s + MARGIN_S
    assert (
        settings.worker.drain_s == load_settings(environ=compose()["services"]["worker"]["environment"]).worker.drain_s
    )


def test_commands_exist(capsys: pytest.CaptureFixture[str]) -> None:
    """What services and pods run are commands of the program, the same in both places."""
    for role in OURS:
        command = compose()["services"][role]["command"]
        (container,) = pods()[f"orc-{role}"]["spec"]["containers"]
        assert container["args"] == command
        assert not program().run([*command[:2], "--help"])
        assert f"orc {role} run" in capsys.readouterr().out
    assert pods()["redis"]["spec"]["containers"][0]["args"] == compose()["services"]["redis"]["command"]


def test_redis_is_full_before_the_kernel_kills_it() -> None:
    """`maxmemory` is 55 to 65 % of the memory limit, and a long load does not make the container unhealthy."""
    service, (container,) = compose()["services"]["redis"], pods()["redis"]["spec"]["containers"]
    limits = [
        (container["resources"]["limits"]["memory"].removesuffix("i").lower(), container["args"]),
        (service["mem_limit"], service["command"]),
    ]
    for limit, command in limits:
        share = _bytes(command[command.index("--maxmemory") + 1]) / _bytes(f"{limit}b")
        assert 0.55 <= share <= 0.65
    settings = (ROOT / "config" / "redis.conf").read_text(encoding="utf-8")
    assert "maxmemory-policy noeviction" in settings
    assert service["healthcheck"]["start_period"] == "15m"


def _bytes(text: str) -> int:
    units = {"kb": 1024, "mb": 1024**2, "gb": 1024**3}
    return int(text[:-2]) * units[text[-2:]]


def test_probes_ask_where_the_program_serves() -> None:
    """Address, port and paths of the probes are those of the health server, and the Dockerfile has the same port."""
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    for role in OURS:
        (container,) = pods()[f"orc-{role}"]["spec"]["containers"]
        variables = {variable["name"]: variable["value"] for variable in container["env"]}
        variable = f"ORC_{role.upper()}__HEALTH"
        host, _, port = variables[variable].rpartition(":")
        assert host == "0.0.0.0"
        assert f"{variable}=127.0.0.1:{port}" in dockerfile
        assert compose()["services"][role]["environment"][variable] == variables[variable]
        assert container["ports"] == [{"name": "health", "containerPort": int(port)}]
        asked = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
        assert asked == {
            "startup": {"path": "/livez", "port": "health"},
            "readiness": {"path": "/readyz", "port": "health"},
            "liveness": {"path": "/livez", "port": "health"},
        }
        assert pods()[f"orc-{role}"]["metadata"]["annotations"]["prometheus.io/port"] == port


def test_labels_select_the_pods() -> None:
    """Selectors of deployments, budgets, services, policies and spreading select the pods that they are meant for."""
    labels = {name: template["metadata"]["labels"] for name, template in pods().items()}
    for name, obj in objects("Deployment", "StatefulSet").items():
        assert obj["spec"]["selector"]["matchLabels"] == labels[name]
        for spread in obj["spec"]["template"]["spec"].get("topologySpreadConstraints", ()):
            assert spread["labelSelector"]["matchLabels"].items() <= labels[name].items()
    for name, obj in objects("PodDisruptionBudget").items():
        assert obj["spec"]["selector"]["matchLabels"] == labels[name]
    for name, obj in objects("NetworkPolicy").items():
        assert (
            obj["spec"]["podSelector"]["matchLabels"] == labels[name if name in labels else name.removeprefix("orc-")]
        )
    assert objects("Service")["redis"]["spec"]["selector"] == labels["redis"]
    assert objects("PodDisruptionBudget").keys() == {"orc-supervisor", "orc-worker"}


def test_guide_creates_what_pods_mount() -> None:
    """The guide's commands create each secret and config map that a pod mounts and no manifest has."""
    typed = "\n".join(block.text for block in blocks("docs/guides/containers.md") if block.language == "console")
    created = set(re.findall(r"kubectl create (?:secret generic|configmap) ([\w-]+)", typed))
    mounted = {
        volume.get("configMap", {}).get("name") or volume.get("secret", {}).get("secretName")
        for template in pods().values()
        for volume in template["spec"]["volumes"]
    }
    assert mounted - {None} == created | objects("ConfigMap").keys()
    examples = yaml.safe_load_all((MANIFESTS / "secret.example").read_text(encoding="utf-8"))
    assert {example["metadata"]["name"]: set(example["stringData"]) for example in examples} == {
        "orc": {"ORC_REDIS__URL", "ORC_CONTROL__SECRET"},
        "redis-password": {"redis-password.conf"},
    }


def test_manifests_name_the_version() -> None:
    """The tag of the image is the version of the project, as `make image` writes it."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    for role in OURS:
        assert pods()[f"orc-{role}"]["spec"]["containers"][0]["image"] == f"redis-orchestrator:{version}"


def scaler() -> dict[str, str]:
    """The trigger of KEDA."""
    document = yaml.safe_load((MANIFESTS / "keda" / "worker.yaml").read_text(encoding="utf-8"))
    assert document["spec"]["scaleTargetRef"]["name"] in pods()
    (trigger,) = document["spec"]["triggers"]
    metadata: dict[str, str] = trigger["metadata"]
    return metadata


def test_scaler_asks_for_exported_metrics() -> None:
    """Supervisors export each metric in the query for the pool, with the label that the query groups by."""
    exported = {metric.name: metric for metric in METRICS}
    named = set(re.findall(r"orc_\w+", scaler()["query"]))
    assert named == {"orc_slots_used", "orc_slots", "orc_pool_backlog_seconds"}
    assert {exported[name].source for name in named} == {"pool"}
    assert exported["orc_slots"].labels == exported["orc_slots_used"].labels == ("agent",)


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is missing; install the package prometheus")
def test_scaler_computes_the_formula_of_the_guide(tmp_path: Path) -> None:
    """Pods for the guide's example, for busy slots without a backlog, for the first task of all, and for none."""

    def series(used: int, slots: int, backlog_s: float) -> list[dict[str, str]]:
        # Two supervisors export the same numbers, one agent has half of the slots. Another pool has a long backlog.
        other = 'prefix="orc:staging:default",pool="default",instance="1"'
        pool = 'prefix="orc:prod:default",pool="default"'
        found = [
            (f'{name}{{{pool},agent="{agent}",instance="{instance}"}}', value / 2)
            for name, value in (("orc_slots", slots), ("orc_slots_used", used))
            for agent in "ab"
            for instance in "12"
            if slots
        ]
        found += [(f'orc_pool_backlog_seconds{{{pool},instance="{instance}"}}', backlog_s) for instance in "12"]
        found += [(f"orc_pool_backlog_seconds{{{other}}}", 900), (f'orc_slots{{{other},agent="c"}}', 70)]
        return [{"series": name, "values": str(value)} for name, value in found]

    threshold = int(scaler()["threshold"])
    waiting, running_s = 600, 4.0
    tests = [
        {
            "interval": "1m",
            "input_series": series(used, slots, backlog_s),
            "promql_expr_test": [
                {"expr": scaler()["query"], "eval_time": "0", "exp_samples": [{"labels": "{}", "value": value}]}
            ],
        }
        for used, slots, backlog_s, value in (
            (20, 20, waiting * running_s / 20, 5 * threshold),
            (20, 20, 0, 20),
            (0, 0, 1.0, 1 / 30),
            (0, 20, 0, 0),
        )
    ]
    file = tmp_path / "tests.yml"
    file.write_text(json.dumps({"evaluation_interval": "1m", "tests": tests}), encoding="utf-8")
    command = ["promtool", "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    guide = (ROOT / "docs/guides/containers.md").read_text(encoding="utf-8")
    assert re.search(
        rf"with {threshold} slots per pod: 20 slots are busy, {waiting} tasks wait, .* takes {running_s:.0f} s", guide
    )


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is missing; install the package prometheus")
def test_prometheus_of_compose_scrapes_the_services() -> None:
    """Promtool accepts the file that the compose file names, and the targets are services with a health server."""
    command = compose()["services"]["prometheus"]["command"]
    (name,) = (word.partition("=")[2] for word in command if word.startswith("--config.file="))
    file = ROOT / "config" / "prometheus" / name.rpartition("/")[2]
    assert "./config/prometheus:/etc/prometheus:ro" in compose()["services"]["prometheus"]["volumes"]
    done = subprocess.run(["promtool", "check", "config", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (scraped,) = yaml.safe_load(file.read_text(encoding="utf-8"))["scrape_configs"]
    assert scraped["dns_sd_configs"][0]["names"] == list(OURS)
    assert {compose()["services"][role]["environment"][f"ORC_{role.upper()}__HEALTH"] for role in OURS} == {
        f"0.0.0.0:{scraped['dns_sd_configs'][0]['port']}"
    }


@pytest.mark.skipif(
    not shutil.which("prometheus") or bool(why_not()), reason="needs prometheus, and what the tests of the image need"
)
def test_prometheus_of_compose_starts(tmp_path: Path) -> None:
    """Prometheus starts with the command of the compose file, and loads the alerts."""
    folders = {"/etc/prometheus": ROOT / "config" / "prometheus", "/prometheus": tmp_path / "data"}
    command = compose()["services"]["prometheus"]["command"]
    for path, folder in folders.items():
        command = [re.sub(rf"={path}(?=/|$)", f"={folder}", word) for word in command]
    # In a network of its own the port is free.
    with ActorProcess(["unshare", "--net", "prometheus", *command], name="prometheus", cwd=tmp_path) as actor:
        actor.wait_output("Server is ready to receive web requests", timeout_s=20)
        assert "Completed loading of configuration file" in actor.output
