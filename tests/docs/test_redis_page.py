"""The steps of docs/guides/redis.md, followed literally: both files, a password, a server on TCP, `orc doctor`."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import redis

from orchestrator.embedded.server_binary import find_server_binary
from orchestrator.testing.waiting import wait_until
from tests.docs.pages import ROOT
from tests.faultkit.processes import ActorProcess
from tests.faultkit.servers import find_binary_of_line, free_port
from tests.helpers.terminal import ORC, Terminal

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "guides" / "redis.md"


def _blocks() -> list[str]:
    found = re.findall(r"^ *```(?:console)?\n(.*?)^ *```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in found]


@pytest.mark.parametrize("line", ["newest", pytest.param("7.", marks=pytest.mark.slow)])
def test_server_of_your_own(tmp_path: Path, line: str) -> None:
    """The server starts with the files, its users can log in with their passwords only, the doctor finds no problem."""
    binary = find_server_binary() if line == "newest" else find_binary_of_line(line)
    if binary is None:
        pytest.skip("needs a redis-server 7.x on the PATH")
    etc, data, port = tmp_path / "redis", tmp_path / "data", free_port()
    data.mkdir()
    etc.mkdir()
    shutil.copy(ROOT / "config" / "redis.conf", etc)

    def here(text: str) -> str:
        return text.replace("/etc/redis", str(etc)).replace("/var/lib/redis", str(data))

    passwords, configuration, *_ = _blocks()
    (tmp_path / "passwords").write_text("worker pw-worker\noperator pw-operator\n")
    script = here(passwords.removeprefix("$ ")).replace("orc ", f"{ORC} ", 1)
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, check=True)
    assert "pw-" not in (etc / "acl.conf").read_text()
    own = etc / "orchestrator.conf"
    own.write_text(here(configuration).replace("6379", str(port)).replace(" 10.0.0.5", ""))
    with ActorProcess([str(binary.path), str(own)], name="redis-server") as server:

        def answers(url: str) -> Any:
            try:
                with redis.Redis.from_url(url) as client:
                    return client.ping()
            except redis.AuthenticationError as refused:
                return str(refused)
            except redis.ConnectionError:
                assert server.returncode is None, server.output
                return None

        where = f"127.0.0.1:{port}/0"
        assert (
            wait_until(lambda: answers(f"redis://worker:pw-worker@{where}"), lambda: server.describe("a start")) is True
        )
        assert "invalid username-password pair" in answers(f"redis://worker:other@{where}")
        assert "invalid username-password pair" in answers(f"redis://viewer:any@{where}")
        assert "authenticated" in answers(f"redis://{where}")
        url = f"redis://operator:pw-operator@{where}"
        terminal = Terminal(tmp_path, ORC_REDIS__URL=url, ORC_PREFIX="my:prod:pool", ORC_CONTROL__SECRET="x" * 32)
        done = terminal.orc("doctor", "--all")
        assert "problem " not in done.out, done.out
        assert "has the rights of its role" in done.out
        assert "NOPERM" not in terminal.orc("status").err


def test_every_setting_is_explained() -> None:
    """The table has each setting of redis.conf."""
    text = (ROOT / "config" / "redis.conf").read_text(encoding="utf-8")
    names = {line.split(" ")[0] for line in text.splitlines() if line and not line.startswith("#")}
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"`([a-z-]+)(\*)?[^`]*`", "".join(re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)))
    plain = {name for name, star in rows if not star}
    starred = tuple(name for name, star in rows if star)
    assert {name for name in names - plain if not name.startswith(starred)} <= {"daemonize", "always-show-logo"}
