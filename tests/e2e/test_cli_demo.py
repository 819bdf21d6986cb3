"""`orc demo` runs a real team on a planted tree, tells what it did, and leaves nothing running."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.terminal import ORC, Terminal, processes_with

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

PLANTED = {
    "shop/__init__.py": '"""A shop."""\n',
    "shop/orders.py": (
        '"""Orders."""\n\nfrom shop import stock\n\n\ndef place(count: int) -> int:\n    return stock.take(count)\n'
    ),
    "shop/stock.py": (
        '"""Stock."""\n\nimport shop.orders\n\n\n'
        "def take(count: int) -> int:\n"
        '    """Take some."""\n'
        "    total = 0\n"
        "    for number in range(count):\n"
        + "".join(f"        if number == {step}:\n            total += {step}\n" for step in range(11))
        + "    return total\n"
    ),
}

IN_CONTROL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Makes the terminal at standard input the one whose Ctrl-C we get, as a shell does, and becomes the command."""


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    """A terminal that knows no data directory, and marks what is started in it; `shop/` lies in its folder."""
    terminal = Terminal(tmp_path, TEST_OF_DEMO=str(tmp_path))
    del terminal.environ["ORC_DATA_DIR"]
    for name, text in PLANTED.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return terminal


def left_running(terminal: Terminal) -> dict[int, str]:
    """What was started in the terminal and still lives."""
    return processes_with({"TEST_OF_DEMO": terminal.environ["TEST_OF_DEMO"]})


def test_demo_on_planted_tree(terminal: Terminal) -> None:
    """The report names the planted cycle, complexity and missing docstring; one attempt failed and was repeated."""
    done = terminal.process("demo", "tree", "--out", "audit", "--processes", "2", "-o", "json", timeout_s=40)
    assert done.code == 0, done
    told = done.json()
    assert (told["files"], told["cycles"], told["retries"], told["dead"]) == (3, 1, 1, 0)
    assert told["attempts"] == told["tasks"] + 1
    assert told["tasks_per_second"] > 0
    report = Path(told["markdown"]).read_text()
    assert Path(told["markdown"]).parent == terminal.folder / "audit"
    assert "shop.orders" in report
    assert "shop.stock" in report
    assert "13" in report  # complexity of `take`: one, a loop, eleven decisions
    assert "place" in report  # the function without a docstring
    assert "<svg" in Path(told["html"]).read_text()
    assert "tasks done" in done.err
    assert "warning" not in done.err.lower()
    assert not left_running(terminal)
    assert not (terminal.folder / ".orc").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["missing"], 2, "does not exist"),
        (["my_agents.py"], 2, "is a file"),
        (["empty"], 3, "no Python files"),
        (["tree", "--out", "my_agents.py"], 2, "--out"),
        (["tree", "--processes", "0"], 2, "--processes"),
    ],
)
def test_wrong_tree(terminal: Terminal, arguments: list[str], code: int, said: str) -> None:
    """What cannot be audited is refused in one line before anything is started."""
    (terminal.folder / "empty").mkdir()
    done = terminal.process("demo", *arguments)
    assert (done.code, done.out) == (code, ""), done
    assert done.err.startswith("error: ")
    assert said in done.err
    assert done.err.count("\n") == 1
    assert not left_running(terminal)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user(terminal: Terminal) -> None:
    """Its owner may have put a link in place of a file, which the demo would write through."""
    (terminal.folder / "orc-demo").mkdir()
    target = terminal.folder / "mine"
    target.write_text("kept")
    (terminal.folder / "orc-demo" / "demo.log").symlink_to(target)
    os.chown(terminal.folder / "orc-demo", 65534, 65534)
    done = terminal.process("demo", "tree")
    assert (done.code, done.out) == (2, ""), done
    assert "belongs to another user" in done.err
    assert target.read_text() == "kept"


@pytest.mark.slow
def test_interrupted_demo(terminal: Terminal) -> None:
    """Ctrl-C on a terminal: exit code 130, and nothing is left running. Until then the team is shown at work."""
    screen, keyboard = pty.openpty()
    demo = subprocess.Popen(
        [sys.executable, "-c", IN_CONTROL, ORC, "demo", "--out", "audit"],
        cwd=terminal.folder,
        env={**terminal.environ, "TERM": "xterm"},
        stdin=keyboard,
        stdout=keyboard,
        stderr=keyboard,
    )
    os.close(keyboard)
    try:
        shown = _read_until(screen, "analyst", 20.0)
        os.write(screen, b"\x03")
        shown += _read_until(screen, "SIGINT", 10.0)
        assert "tasks done" in shown
        assert "Traceback" not in shown + _read_until(screen, None, 15.0)
        assert demo.wait(10) == 130
    finally:
        demo.kill()
        demo.wait()
        os.close(screen)
    assert not left_running(terminal)


@pytest.mark.slow
def test_demo_on_given_server(terminal: Terminal) -> None:
    """With a data directory or URL the demo keeps to keys of its own."""
    terminal.environ["ORC_DATA_DIR"] = str(terminal.folder / "data")
    with terminal.start("redis", "run") as redis:
        redis.wait_output("Ctrl-C stops it")
        done = terminal.process("demo", "tree", "--out", "audit", "--processes", "1", timeout_s=40)
        assert done.code == 0, done
        assert "report" in done.out
        assert terminal.orc("tasks", "list", "-o", "id").out == ""
        redis.signal(signal.SIGINT)
        assert redis.wait_exit() == 0, subprocess.list2cmdline(left_running(terminal).values())
    assert not left_running(terminal)


def _read_until(screen: int, text: str | None, timeout_s: float) -> str:
    """Read what a terminal shows until a text comes, or its program ends."""
    shown, deadline_s = "", time.monotonic() + timeout_s
    while text is None or text not in shown:
        left_s = deadline_s - time.monotonic()
        assert left_s > 0, f"waited in vain for {text!r}; the terminal shows:\n{shown[-2000:]}"
        if select.select([screen], [], [], left_s)[0]:
            try:
                piece = os.read(screen, 65536)
            except OSError:  # how Linux says that the other side is closed
                piece = b""
            if not piece:
                break
            shown += piece.decode(errors="replace")
    return shown
