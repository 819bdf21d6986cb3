"""Secrets leave the environment of a process, and its own settings still have them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from orchestrator.core.secret_environment import secrets_in
from tests.helpers.cases import each_case

if TYPE_CHECKING:
    from collections.abc import Mapping

SCRIPT = """
import json, os, subprocess, sys
from pathlib import Path
from orchestrator.core.secret_environment import agents_environ, settings_environ, take_secrets
from orchestrator.core.settings_sources import load_settings
os.environ["ORC_CONTROL__PREVIOUS_SECRET"] = "canary-previous-" + "x" * 40
hidden = agents_environ()
take_secrets()
settings = load_settings()
print(json.dumps({
    "proc": Path("/proc/self/environ").read_bytes().decode(),
    "child": subprocess.run(["env"], capture_output=True, text=True).stdout,
    "hidden": list(hidden.values()),
    "settings": [*settings.secrets],
    "environ": settings_environ(),
}))
"""


def test_secrets_are_taken() -> None:
    """Neither a child nor `/proc/PID/environ` has them, whether they were inherited or set; settings do."""
    environ = {
        "ORC_REDIS__URL": "redis://:canary-password@h/0",
        "ORC_CONTROL__SECRET": "canary-secret-" + "x" * 40,
        "ORC_PREFIX": "a:b:c",
        "PATH": "/usr/bin:/bin",
    }
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environ, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert "canary" not in found["proc"] + found["child"] + "".join(found["hidden"])
    assert "ORC_PREFIX=a:b:c" in found["child"]
    assert sorted(secret.split("-x")[0] for secret in found["settings"]) == [
        "canary-password", "canary-previous", "canary-secret",
    ]  # fmt: skip
    assert environ.items() <= found["environ"].items()


@each_case(
    "environ,names",
    [
        ({"ORC_REDIS__URL": "redis://h/0", "REDIS_URL": "redis://:p@h/0"}, set()),
        ({"ORC_REDIS__URL": "redis://:p@h/0"}, {"ORC_REDIS__URL"}),
        ({"orc_redis__url": "unix://:p@/run/redis.sock"}, {"orc_redis__url"}),
        ({"ORC_CONTROL__SECRET": "s", "ORC_CONTROL__PER_MINUTE": "5"}, {"ORC_CONTROL__SECRET"}),
        (
            {"ORC_CONTROL__SECRET": "https://vault/s", "ORC_CONTROL__PREVIOUS_SECRET": "a://b"},
            {
                "ORC_CONTROL__SECRET",
                "ORC_CONTROL__PREVIOUS_SECRET",
            },
        ),
        ({"ORC_CONTROL": '{"secret": "https://vault/s"}', "ORC_REDIS": '{"url": "redis://h/0"}'}, {"ORC_CONTROL"}),
        ({"ORC_CONTROL": '{"secret": "s"}', "ORC_CONFIG": "/etc/x"}, {"ORC_CONTROL"}),
    ],
)
def test_which_variables_hold_a_secret(environ: Mapping[str, str], names: set[str]) -> None:
    """Signing secrets, and addresses with a password, by their own names or by that of their section."""
    assert set(secrets_in(environ)) == names
