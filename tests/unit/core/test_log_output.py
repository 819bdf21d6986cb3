"""A log line never stops a process, and the journal gets priorities and fields."""

from __future__ import annotations

import contextvars
import json
import logging
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import structlog

from orchestrator.core import log_output
from orchestrator.core.log import bind_context, configure_logging, get_logger, set_level
from orchestrator.core.log_output import MAX_PENDING_BYTES, JournalOutput, LineWriter, journal_fields
from tests.helpers.cases import each_case

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

JOURNALD = "/lib/systemd/systemd-journald"
LINES = 10_000


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for added in [added for added in root.handlers if added not in handlers]:
        added.close()
    root.handlers[:] = handlers
    structlog.reset_defaults()


# ----------------------------------------------------------------------------- a reader that stops, a disk that is full

FLOOD = """
import io, logging, os, sys, time
from orchestrator.core.log import configure_logging, get_logger
configure_logging("info", "json", io.StringIO())
get_logger("x").info("first")  # imports all that another user cannot read
{before}
configure_logging("info", "json")
log, longest_s, began_s = get_logger("x"), 0.0, time.monotonic()
for number in range({lines}):
    at_s = time.monotonic()
    log.info("counted", number=number, text="x" * 100)
    longest_s = max(longest_s, time.monotonic() - at_s)
print(longest_s, time.monotonic() - began_s, flush=True)
sys.stdin.read()
log.info("again", number=-1)
log.info("again", number=-1)
"""
PLAIN = """logging.basicConfig(level="INFO")
for number in range({lines}): logging.info("x" * 100)
print("written", flush=True)
"""


def _flood(error: Any, *, before: str = "") -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", FLOOD.format(lines=LINES, before=before)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=error,
    )


def _all_there(read: Callable[[], bytes]) -> Iterator[bytes]:
    """Yield what a file without blocking reads has now."""
    with suppress(BlockingIOError):
        while True:
            yield read()


def _durations(process: subprocess.Popen[bytes]) -> tuple[float, float]:
    assert process.stdout is not None
    longest, total = process.stdout.readline().split()
    return float(longest), float(total)


ANOTHER_USER: Final = "os.setuid(65534)" if os.getuid() == 0 else ""
"""The process may then not open the pipe again, which is how it otherwise writes without waiting."""


@each_case("kind,before", [("pipe", ""), ("socket", ""), ("pipe", ANOTHER_USER)])
def test_a_reader_that_stops_does_not_stop_the_process(kind: str, before: str) -> None:
    """A full pipe costs one short wait; lines that found no room are counted, and later ones follow whole."""
    read, write = os.pipe() if kind == "pipe" else [end.detach() for end in socket.socketpair()]
    with _flood(write, before=before) as process:
        os.close(write)
        longest_s, total_s = _durations(process)
        assert longest_s < 1.0
        assert total_s < 10.0
        assert process.stdin is not None
        os.set_blocking(read, False)
        # The pipe is read empty while the process waits, and then until it ends.
        data = b"".join(_all_there(lambda: os.read(read, 65536)))
        process.stdin.close()
        os.set_blocking(read, True)
        while chunk := os.read(read, 65536):
            data += chunk
    os.close(read)
    assert process.returncode == 0
    lines = [json.loads(line) for line in data.splitlines()]
    written = [line["number"] for line in lines if line["event"] == "counted"]
    assert written == list(range(len(written)))
    assert len(data) > MAX_PENDING_BYTES // 2
    (lost,) = [line["count"] for line in lines if line["event"] == "log_lines_dropped"]
    assert lost + len(written) == LINES
    assert lines[-1]["number"] == -1


def test_a_plain_handler_would_stop() -> None:
    """The twin: the handler of the standard library waits for the reader."""
    read, write = os.pipe()
    script = "import logging\n" + PLAIN.format(lines=LINES)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=write) as process:
        os.close(write)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.kill()
    os.close(read)


def test_a_full_disk_and_a_reader_that_is_gone(tmp_path: Path) -> None:
    """A write that fails loses its line and nothing else."""
    with Path("/dev/full").open("wb") as full, _flood(full) as process:
        _durations(process)
        process.communicate(b"")
    assert process.returncode == 0
    read, write = os.pipe()
    os.close(read)
    with _flood(write) as process:
        os.close(write)
        _durations(process)
        process.communicate(b"")
    assert process.returncode == 0
    with (tmp_path / "log").open("w+b") as file, _flood(file) as process:  # the twin: the same on a disk with room
        _durations(process)
        process.communicate(b"")
        file.seek(0)
        assert len(file.read().splitlines()) == LINES + 2


def test_closed_standard_error(tmp_path: Path) -> None:
    """Without standard error nothing is written, also not to a file that got its number."""
    script = (
        "from orchestrator.core.log import configure_logging, get_logger\n"
        f"file = open({str(tmp_path / 'data')!r}, 'wb')\n"
        "configure_logging('info'); get_logger('x').error('failed'); print(file.fileno())"
    )
    command = f'exec "{sys.executable}" -c "$SCRIPT" 2>&-'
    done = subprocess.run(
        ["/bin/sh", "-c", command], env={**os.environ, "SCRIPT": script}, stdout=subprocess.PIPE, check=True
    )
    assert done.stdout == b"2\n"
    assert (tmp_path / "data").read_bytes() == b""


def test_a_fork_does_not_write_the_lines_of_its_parent() -> None:
    """Lines that wait in memory are written once, by the process that logged them."""
    read, write = os.pipe()
    stream = os.fdopen(write, "w")
    configure_logging("info", "json", stream)
    logging.getLogger().handlers[:] = logging.getLogger().handlers[-1:]
    for number in range(2000):
        get_logger("x").info("counted", number=number, text="x" * 40)
    if (pid := os.fork()) == 0:
        os.set_blocking(read, False)
        try:
            while True:
                os.read(read, 65536)
        except BlockingIOError:
            get_logger("x").info("child")
            os.write(write, b"end\n")
        os._exit(0)
    os.waitpid(pid, 0)
    text = os.read(read, 65536).decode()
    stream.close()
    os.close(read)
    assert [line for line in text.splitlines() if "counted" in line] == []
    assert '"event":"child"' in text


def test_lines_that_waited_keep_their_order() -> None:
    """Lines that found no room are written before later ones, none in part."""
    read, write = os.pipe()
    with os.fdopen(write, "w") as stream, os.fdopen(read, "rb") as reader:
        writer = LineWriter(stream)
        lines = [f"{number}:{'x' * 5000}" for number in range(40)]
        for line in lines:
            writer.write(line + "\n")
        with ThreadPoolExecutor(1) as threads:
            got = threads.submit(reader.readlines)
            writer.write("last\n")
            writer.close()
            stream.close()
            assert [line.decode().rstrip() for line in got.result()] == [*lines, "last"]


# ---------------------------------------------------------------------------------------------------------- the journal


def _parse(data: bytes) -> dict[str, str]:
    """Read the fields of a datagram, as the journal does."""
    fields: dict[str, str] = {}
    while data:
        line, _, data = data.partition(b"\n")
        name, found, value = line.partition(b"=")
        if not found:
            size = struct.unpack("<Q", data[:8])[0]
            value, data = data[8 : 8 + size], data[9 + size :]
        fields[name.decode()] = value.decode()
    return fields


@contextmanager
def _listening() -> Iterator[tuple[socket.socket, str]]:
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.settimeout(5)
        server.bind(path := f"{directory}/socket")
        yield server, path


def test_fields_of_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event is one datagram: text, priority, and a field per key; line breaks are kept in the binary form."""
    with _listening() as (server, path):
        monkeypatch.setattr(log_output, "JOURNAL_SOCKET", path)
        configure_logging("info", "journal", secrets=["hunter22"])
        log = get_logger("orchestrator.x")
        log.warning("attempt_failed", task="t 1", attempt=2, reason="a\nb: hunter22", where=["x", 1], none=None)
        fields = _parse(server.recv(65536))
        assert fields == {
            "MESSAGE": 'attempt_failed task="t 1" attempt=2 reason="a\\nb: ********" where=["x",1] none=null',
            "PRIORITY": "4",
            "SYSLOG_IDENTIFIER": "orchestrator",
            "LOGGER": "orchestrator.x",
            "ORC_EVENT": "attempt_failed",
            "ORC_TASK": "t 1",
            "ORC_ATTEMPT": "2",
            "ORC_REASON": "a\nb: ********",
            "ORC_WHERE": '["x",1]',
            "ORC_NONE": "null",
        }
        try:
            raise ValueError("broken")
        except ValueError:
            log.exception("task_failed", **{"odd key=\n": 1})
        fields = _parse(server.recv(65536))
        assert fields["MESSAGE"].splitlines()[1] == "Traceback (most recent call last):"
        assert fields["MESSAGE"].endswith("ValueError: broken")
        assert (fields["PRIORITY"], fields["ORC_ODD_KEY__N"]) == ("3", "1")
        for level, priority in (("debug", "7"), ("info", "6"), ("warning", "4"), ("error", "3"), ("critical", "2")):
            set_level("debug")
            getattr(logging.getLogger("lib"), level)("text")
            assert _parse(server.recv(65536))["PRIORITY"] == priority


def test_field_names() -> None:
    """A field has capitals, digits and underscores, at most 64; no key can take the place of a standard field."""
    fields = _parse(b"".join(journal_fields(20, {"event": "e", "message": "m", "priority": "0", "ä" * 80: "v"})))
    assert fields["MESSAGE"].startswith("e message=m priority=0")
    assert (fields["PRIORITY"], fields["ORC_PRIORITY"], fields["ORC_" + "_" * 60]) == ("6", "0", "v")


def test_a_journal_that_does_not_read_or_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Events wait in memory while the journal does not read, if there is room; without its socket they are lines."""
    with (tmp_path / "log").open("w+") as stream, _listening() as (server, path):
        monkeypatch.setattr(log_output, "JOURNAL_SOCKET", path)
        configure_logging("info", "journal", stream)
        began_s = time.monotonic()
        for number in range(5000):
            get_logger("x").info("counted", number=number)
        assert time.monotonic() - began_s < 5
        server.settimeout(0)
        # Each event makes room for the ones that wait: the queue of the socket is shorter than what they need.
        events: list[dict[str, str]] = []
        for _ in range(1000):
            get_logger("x").info("again")
            events += [_parse(data) for data in _all_there(lambda: server.recv(65536))]
        numbers = [int(event["ORC_NUMBER"]) for event in events if event["ORC_EVENT"] == "counted"]
        assert numbers == list(range(len(numbers))), "the order"
        assert len(numbers) > MAX_PENDING_BYTES // 200
        (report,) = [event for event in events if event["ORC_EVENT"] == "log_lines_dropped"]
        assert len(numbers) + int(report["ORC_COUNT"]) == 5000
        server.close()
        get_logger("x").error("failed", text="a\nb")
        logging.getLogger("lib").info("first\n<0>second")
        try:
            raise ValueError("x")
        except ValueError:
            get_logger("x").exception("failed")
        stream.seek(0)
        assert stream.read().splitlines()[:4] == [
            '<3>failed text="a\\nb"',
            "<6>first\\n<0>second",
            "<3>failed",
            "<3>Traceback (most recent call last):",
        ]


def test_json_in_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """An inherited JOURNAL_STREAM that names another file changes nothing."""
    monkeypatch.setenv("JOURNAL_STREAM", "8:12345")
    read, write = os.pipe()
    with os.fdopen(write, "w") as stream:
        configure_logging("info", "auto", stream)
        get_logger("x").info("started")
        assert json.loads(os.read(read, 4096))["event"] == "started"
    os.close(read)


@pytest.fixture(scope="module")
def journald() -> Iterator[tuple[Path, Path]]:
    """A journal of its own: the folder of its sockets and the folder of its files."""
    if not Path(JOURNALD).exists() or os.getuid() != 0:
        pytest.skip("needs systemd-journald and root")
    directory = Path(tempfile.mkdtemp(prefix="orc-journal-"))
    run, files = directory / "run", directory / "log"
    for one in (run, files):
        one.mkdir()
    process = subprocess.Popen(
        [JOURNALD, "orc-test"],
        env={"RUNTIME_DIRECTORY": str(run), "LOGS_DIRECTORY": str(files)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until_s = time.monotonic() + 10
        while not ((run / "socket").exists() and (run / "stdout").exists()):
            if process.poll() is not None or time.monotonic() > until_s:
                pytest.skip("systemd-journald does not run here")
            time.sleep(0.01)
        yield run, files
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(directory)


def _entries(files: Path, *matches: str, count: int) -> list[dict[str, Any]]:
    """Read entries of the journal; it writes them soon after they were sent."""
    command = ["journalctl", "--directory", str(files), "--output", "json", "--all", *matches]
    until_s = time.monotonic() + 10
    while True:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        found = [json.loads(line) for line in done.stdout.splitlines()]
        if len(found) >= count or time.monotonic() > until_s:
            return found
        time.sleep(0.02)


def test_the_real_journal(journald: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose standard error is the journal is found out, and its keys can be searched for."""
    contextvars.copy_context().run(_check_the_real_journal, *journald, monkeypatch)


def _check_the_real_journal(run: Path, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as stream:
        # What systemd does for a service: identifier, unit, priority, prefixes, three kinds of forwarding.
        stream.connect(str(run / "stdout"))
        stream.sendall(b"service\n\n6\n1\n0\n0\n0\n")
        found = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        monkeypatch.setattr(log_output, "JOURNAL_SOCKET", str(run / "socket"))
        with stream.makefile("w") as text:
            configure_logging("info", "auto", text)
            task = f"task-{os.getpid()}"
            bind_context(worker="w1")
            get_logger("x").error("task_failed", task=task, reason="a\nb", attempt=3)
            set_level("debug")  # as `orc control log-level debug` does
            get_logger("x").debug("attempt_failed", task=task)
            (failed, debug) = _entries(files, f"ORC_TASK={task}", count=2)
            assert (failed["PRIORITY"], failed["ORC_EVENT"], failed["ORC_REASON"]) == ("3", "task_failed", "a\nb")
            assert (failed["ORC_ATTEMPT"], failed["ORC_WORKER"], failed["LOGGER"]) == ("3", "w1", "x")
            assert failed["MESSAGE"] == f'task_failed task={task} reason="a\\nb" attempt=3 worker=w1'
            assert failed["_TRANSPORT"] == "journal"
            assert debug["PRIORITY"] == "7"
            # Far above the size of a datagram.
            output = JournalOutput(None, str(run / "socket"))
            output.write(20, {"event": "large", "task": "large", "text": "é" * 400_000})
            output.close()
            (large,) = _entries(files, "ORC_TASK=large", count=1)
            assert len(large["ORC_TEXT"]) == 400_000
            # Without the socket the lines have a priority, which the journal takes off.
            monkeypatch.setattr(log_output, "JOURNAL_SOCKET", str(run / "gone"))
            configure_logging("info", "auto", text)
            get_logger("x").warning("attempt_failed", task="prefixed")
            (prefixed,) = _entries(files, "SYSLOG_IDENTIFIER=service", count=1)
            assert (prefixed["MESSAGE"], prefixed["PRIORITY"]) == ("attempt_failed task=prefixed worker=w1", "4")
            assert prefixed["_TRANSPORT"] == "stdout"
