"""The probe answers with its exit status and loads next to nothing."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from orchestrator.core.errors import ConfigError
from orchestrator.core.health_address import parse_health_address
from orchestrator.core.settings_sources import load_settings
from orchestrator.monitoring import probe
from tests.helpers.cases import each_case

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAVY = "anyio asyncio dataclasses h11 http msgspec prometheus_client pydantic redis structlog"


def test_addresses() -> None:
    """An address is host and port, a port, or an absolute path."""
    assert parse_health_address("127.0.0.1:9471") == ("127.0.0.1", 9471)
    assert parse_health_address("9471") == ("127.0.0.1", 9471)
    assert parse_health_address("[::1]:80") == ("::1", 80)
    assert parse_health_address("unix:/run/orc/health.sock") == "/run/orc/health.sock"
    assert parse_health_address("unix:///run/orc/health.sock") == "/run/orc/health.sock"


@each_case(
    "text",
    [
        "",
        ":",
        ":80",
        "host",
        "host:",
        "host:0",
        "host:65536",
        "::1:80",
        "[::1]",
        "unix:",
        "unix:run/x",
        "http://host:80",
        "a b:80",
        "host:٣",
        f"unix:/{'x' * 107}",
    ],
)
def test_invalid_addresses(text: str) -> None:
    """What is no address is refused, in the settings too."""
    with pytest.raises(ValueError, match=r"must be|needs"):
        parse_health_address(text)
    with pytest.raises(ConfigError, match=r"worker.health"):
        load_settings(overrides={"worker.health": text}, environ={})


def test_a_port_may_be_a_number() -> None:
    """A TOML file may have a bare port."""
    assert load_settings(overrides={"supervisor.health": 9471}, environ={}).supervisor.health == "9471"


def test_loads_next_to_nothing() -> None:
    """The command loads no module of the application and none that is slow to load."""
    source = f"""
import runpy, sys
sys.argv = ["probe", "live", "--address", "unix:/nonexistent"]
try:
    runpy.run_module("orchestrator.monitoring.probe", run_name="__main__")
except SystemExit as end:
    ours = {{name for name in sys.modules if name.startswith("orchestrator")}}
    print(end.code, *sorted(ours), *(name for name in {HEAVY.split()} if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-I", "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [
        "1",
        "orchestrator",
        "orchestrator.core",
        "orchestrator.core.health_address",
        "orchestrator.monitoring",
    ]
    assert done.stderr == "error: no answer from unix:/nonexistent: [Errno 2] No such file or directory\n"


@each_case(
    "arguments",
    [
        [],
        ["alive"],
        ["live", "ready"],
        ["live", "--address"],
        ["live", "--address=nowhere"],
        ["live", "--timeout", "x"],
    ],
)
def test_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong arguments exit with 1, as Docker keeps 2 for itself."""
    assert probe.main(arguments, {}) == 1
    assert capsys.readouterr().err.startswith("error: ")


def test_address_of_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    """The settings of a supervisor and of a worker may hold one address."""
    same = dict.fromkeys(probe.VARIABLES, "unix:/nonexistent")
    assert probe.main(["live"], same) == 1
    assert capsys.readouterr().err.count("no answer from unix:/nonexistent") == 1


@pytest.mark.parametrize("variable", probe.VARIABLES)
def test_one_address_of_the_image_is_overridden(
    variable: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A container of the image serves at the address that was set, not at the image's; a frozen one is no answer."""
    dockerfile = (Path(__file__).parents[3] / "Dockerfile").read_text(encoding="utf-8")
    image = dict(re.findall(r"^ +(ORC_\w+__HEALTH)=(\S+?)(?: \\)?$", dockerfile, re.MULTILINE))
    assert image.keys() == {*probe.VARIABLES}
    # Free ports in place of the image's, which another process of this machine may have.
    environ = dict.fromkeys(image, f"unix:{tmp_path}/none.sock") | {variable: f"unix:{tmp_path}/health.sock"}
    for status, code in ((200, 0), (503, 1)):
        with _serving(tmp_path / "health.sock", f"HTTP/1.1 {status} X\r\n\r\nloops: {status}\n"):
            assert probe.main(["live"], environ) == code
        output = capsys.readouterr()
        assert f"loops: {status}" in (output.out if code == 0 else output.err)
    assert probe.main(["live"], environ) == 1
    assert capsys.readouterr().err.count("no answer from") == 2
    (tmp_path / "health.sock").unlink()
    with _serving(tmp_path / "none.sock", "HTTP/1.1 200 OK\r\n\r\nother\n"), _serving(tmp_path / "health.sock", None):
        assert probe.main(["live", "--timeout", "0.1"], environ) == 1, "another container's answer counts for it"


@contextmanager
def _serving(path: Path, answer: str | None) -> Iterator[None]:
    """Answer one connection, or none."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            # A program that does not ask leaves it to the end of the listener.
            with suppress(OSError), listener.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall((answer or "").encode())

        thread = Thread(target=serve, daemon=True)
        if answer is not None:
            thread.start()
        yield
        if answer is not None:
            thread.join(5)
