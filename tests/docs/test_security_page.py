"""The steps of docs/guides/security.md, followed literally: certificates, users, secrets, and what an outsider gets."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest

from orchestrator.embedded.server_binary import find_server_binary
from tests.docs.pages import ROOT, Block, blocks
from tests.faultkit.processes import ActorProcess
from tests.faultkit.servers import find_binary_of_line, free_port
from tests.helpers.terminal import Done, Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = "docs/guides/security.md"
ROLES = ("supervisor", "worker", "client", "operator")


def shown(language: str) -> Iterator[Block]:
    """The blocks of a language, from top to bottom."""
    return (block for block in blocks(PAGE) if block.language == language)


def typed(block: Block) -> str:
    """What a console block types, as a script; it may continue a command on indented lines."""
    lines = block.text.splitlines()
    return "\n".join(
        line.removeprefix("$ ") for line in lines if line.startswith(("$ ", " ", "done")) or line == "  done"
    )


class Machine:
    """The machine of the page: its folders are in one of the test, and `redis.internal` is this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        for name in ("etc/redis", "etc/credstore", "var/lib/redis"):
            (folder / name).mkdir(parents=True)
        for name in ("redis.conf", "acl.conf"):
            shutil.copy(ROOT / "config" / name, folder / "etc" / "redis")

    def here(self, text: str) -> str:
        """Return a text of the page with the places of this machine."""
        for place in ("/etc/", "/var/lib/"):
            text = text.replace(place, f"{self.folder}{place}")
        text = text.replace("redis.internal", "localhost").replace("6379", str(self.port))
        return text.replace(" 10.0.0.5", "")

    def type(self, block: Block) -> None:
        """Type the commands of a block."""
        subprocess.run(["bash", "-euc", self.here(typed(block))], check=True, cwd=self.folder, capture_output=True)

    def orc(self, user: str, *words: str) -> Done:
        """Type an `orc` command with the secrets of a user and the settings of the page."""
        secrets = str(self.folder / "etc" / "credstore" / user)
        config = str(self.folder / "orchestrator.toml")
        return Terminal(self.folder, CREDENTIALS_DIRECTORY=secrets, ORC_CONFIG=config).orc(*words)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine without anything."""
    return Machine(tmp_path)


def test_harden_a_pool(machine: Machine) -> None:
    """The doctor finds no problem; a client gives no command, and a clear-text connection or no login gets nowhere."""
    binary = find_binary_of_line("7.") or find_server_binary()
    certificates, users, secret, folders, check = shown("console")
    machine.type(certificates)
    (server,) = shown("")
    own = machine.folder / "etc" / "redis" / "orchestrator.conf"
    own.write_text(machine.here(server.text))
    machine.type(users)
    machine.type(secret)
    machine.type(folders)
    (settings,) = shown("toml")
    (machine.folder / "orchestrator.toml").write_text(machine.here(settings.text))
    secrets = [path for path in (machine.folder / "etc" / "credstore").rglob("ORC_*") if path.is_file()]
    assert len(secrets) == 2 * len(ROLES) - 1
    keys = [machine.folder / "etc" / "redis" / name for name in ("ca.key", "server.key")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in (*secrets, *keys)} == {0o600}

    with ActorProcess([str(binary.path), str(own)], name="redis-server") as redis:
        redis.wait_output("Ready to accept connections", timeout_s=20)
        doctor, stop = typed(check).splitlines()
        assert [line.partition(" orc ")[2].split()[0] for line in (doctor, stop)] == ["doctor", "stop"]
        found = machine.orc("operator", "doctor", "--all")
        assert "problem " not in found.out, found.out
        for name in ("redis-url", "control-secret", "rights", "secret-files"):
            assert f"ok       {name}" in found.out, found.out
        refused = machine.orc("client", "stop", "--reason", "an outsider")
        assert refused.code != 0
        assert refused.err.startswith("error: ")
        assert "see `orc auth acl --help`" in refused.err
        assert "NOPERM" in refused.err or "may not" in refused.err or "refused" in refused.err, refused.err
        assert machine.orc("operator", "stop", "--reason", "an operator", "--no-wait").code == 0
        for user in ROLES:
            assert machine.orc(user, "tasks", "list").code == 0, user

        url = f"//localhost:{machine.port}/0"
        certificate = str(machine.folder / "etc" / "redis" / "ca.crt")
        for outsider, code in (
            ({"ORC_REDIS__URL": f"redis:{url}"}, 69),
            ({"ORC_REDIS__URL": f"rediss:{url}"}, 78),
            ({"ORC_REDIS__URL": f"rediss:{url}", "ORC_REDIS__TLS_CA": certificate}, 1),
        ):
            done = Terminal(machine.folder, ORC_CONFIG=os.devnull, **outsider).orc("tasks", "list")
            assert (done.code, done.err[:7]) == (code, "error: "), done


def test_units_and_containers_are_as_the_page_says() -> None:
    """Step 6 names boundaries that other tests measure."""
    step = next(line for line in (ROOT / PAGE).read_text(encoding="utf-8").splitlines() if line.startswith("**6."))
    assert "systemd units" in step
    assert "USER 65532" in (ROOT / "Dockerfile").read_text(encoding="utf-8")
    for unit in (ROOT / "systemd").glob("orchestrator-*.service"):
        text = unit.read_text(encoding="utf-8")
        assert "NoNewPrivileges=yes" in text, unit
        assert "ProtectSystem=strict" in text, unit
