"""`orc` without a server: help, version, usage, settings; quick, quiet, and with the right exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.faultkit.servers import RedisServer
from tests.helpers.terminal import ORC, Terminal

if TYPE_CHECKING:
    from pathlib import Path

LIBRARIES = ("anyio", "hiredis", "msgspec", "pydantic", "pydantic_settings", "redis", "structlog", "tenacity")
HEAVY = (*LIBRARIES, "orchestrator.workers")


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    """A terminal in a folder where nothing runs."""
    return Terminal(tmp_path)


def loaded_modules(*arguments: str) -> set[str]:
    """The modules that a command loads."""
    code = (
        "import sys; from orchestrator.cli.app import main; code = main(sys.argv[1:]); "
        "sys.stderr.write(' '.join(sys.modules)); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize("arguments", [["--help"], ["version"], ["--version"], ["tasks", "submit", "--help"]])
def test_loads_little(arguments: list[str]) -> None:
    """Help and version load nothing heavy; the version not even what lays out help."""
    heavy = set(HEAVY) if "--help" in arguments else {*HEAVY, "rich"}
    assert not loaded_modules(*arguments) & heavy


NOT_FOR_LISTS = {
    "cyclopts", "opentelemetry.metrics._internal", "orchestrator.boards.boards", "orchestrator.chat.chat",
    "orchestrator.cli.terminal.help", "orchestrator.control.commands", "orchestrator.embedded.guardian",
    "orchestrator.core.settings", "orchestrator.locks.named", "orchestrator.memory.memory",
    "orchestrator.workspace.workspace", "pydantic", "pydantic_settings", "redis.client", "redis.cluster", "rich",
    "structlog", "tenacity",
}  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "more"),
    [
        ("status", ()),
        ("tasks list", ("orchestrator.client.client", "orchestrator.why.explanation")),
        ("tasks submit greet", ("orchestrator.doctor.runner", "orchestrator.why.explanation")),
        ("doctor", ("orchestrator.client.client",)),
    ],
)
def test_common_commands_import_little(terminal: Terminal, typed: str, more: tuple[str, ...]) -> None:
    """The program imports neither the features that a command does not use nor all of redis-py."""
    with RedisServer() as server:
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "orchestrator", *typed.split()],
            cwd=terminal.folder,
            env={**terminal.environ, "ORC_REDIS__URL": server.url},
            capture_output=True,
            text=True,
            check=False,
        )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert {"redis.connection", "orchestrator.store.store"} <= imported, done.stderr
    assert imported & (NOT_FOR_LISTS | set(more)) == set()


def test_the_deferred_packages_are_whole() -> None:
    """A name of redis-py that no connection needs is there when it is used; the import is that of redis-py."""
    code = (
        "from orchestrator.cli.imports import quicken; quicken(); import redis.connection, redis, sys; "
        "assert 'redis.client' not in sys.modules; assert redis.Redis.__module__ == 'redis.client'; "
        "import redis.asyncio; assert redis.asyncio.Redis is not redis.Redis; assert 'redis.cluster' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_quick_end_runs_exit_handlers() -> None:
    """The log writes what waits, and handlers of other libraries run, without the interpreter's own end."""
    code = (
        "import atexit, logging; from orchestrator.cli import app; "
        "kept = logging.Handler(); kept.close = lambda: print('written'); atexit.register(print, 'called'); app._end(3)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "called\nwritten\n")


def test_a_server_that_does_not_answer_is_named(terminal: Terminal) -> None:
    """The error has the URL that was tried, without the password, the reason, and what to do."""
    done = terminal.orc("status", ORC_REDIS__URL="redis://ada:hunter2@127.0.0.1:1/3")
    assert done.code == 69
    assert "no answer from Redis at redis://127.0.0.1:1/3 to " in done.err
    assert "(connection refused); start it, or name the server with --url or ORC_REDIS__URL\n" in done.err


def test_public_names_are_lazy() -> None:
    """Importing the package loads nothing heavy, and every public name is there when asked for."""
    code = (
        "import sys, orchestrator; heavy = set(sys.argv[1:]) & set(sys.modules); assert not heavy, heavy; "
        "named = {name: getattr(orchestrator, name) for name in orchestrator.__all__}; "
        "assert all(getattr(value, '__name__', name) == name for name, value in named.items())"
    )
    subprocess.run([sys.executable, "-c", code, *HEAVY], check=True)


def test_version(terminal: Terminal) -> None:
    """The version comes in every form."""
    assert terminal.process("version").out.startswith("orc ")
    assert terminal.orc("-o", "json", "version").json()["version"] == terminal.orc("version", "-o", "id").out.strip()


def test_usage_error(terminal: Terminal) -> None:
    """What cannot be meant is refused with one line and exit code 2."""
    done = terminal.process("tasks", "sbmit")
    assert (done.code, done.out) == (2, "")
    assert done.err == "error: unknown command 'sbmit'; did you mean `orc tasks submit`?\n"
    assert terminal.orc("xyzzy").err == "error: unknown command 'xyzzy'; `orc --help` lists the commands\n"


@pytest.mark.parametrize("typed", ["status", "tasks submit x", "redis info"])
def test_nobody_answers(terminal: Terminal, typed: str) -> None:
    """Without a server: exit code 69, one line with the sentence to type, and no folder is made."""
    done = terminal.orc(*typed.split())
    assert done.code == 69, done
    assert "orc up" in done.err
    assert done.err.count("\n") == 1
    assert not (terminal.folder / "data").exists()


def test_unreachable_url(terminal: Terminal) -> None:
    """A server that is named and does not answer: exit code 69, from `up` too, and the password stays secret."""
    for typed in ("status", "up my_agents:agent", "demo ."):
        done = terminal.process(*typed.split(), ORC_REDIS__URL="redis://:hunter2@127.0.0.1:1/0")
        assert done.code == 69, done
        assert done.err.count("error: ") == 1
        assert "hunter2" not in done.err
        assert "Traceback" not in done.err


def test_debug_shows_traceback(terminal: Terminal) -> None:
    """With --debug an error says where it came from."""
    assert "Traceback" in terminal.orc("status", "--debug").err


# ------------------------------------------------------------------------------------------------------------ settings


def test_config_show(terminal: Terminal) -> None:
    """Every setting is listed with its value and its origin; secrets are masked."""
    (terminal.folder / "orc.toml").write_text("[worker]\nprocesses = 3\n")
    done = terminal.orc(
        *("config", "show", "--sources", "-o", "json", "--config", "orc.toml", "--pool", "mine"),
        ORC_REDIS__URL="redis://:hunter2@localhost/0",
    )
    rows = {row["name"]: row for row in done.json()["items"]}
    assert rows["worker.processes"]["value"] == 3
    assert "orc.toml" in rows["worker.processes"]["source"]
    assert (rows["pool"]["value"], rows["pool"]["source"]) == ("mine", "option")
    assert rows["redis.url"]["source"] == "environment ORC_REDIS__URL"
    shown = terminal.orc(
        "config", "show", ORC_REDIS__URL="redis://:hunter2@h/0", ORC_WORKERS='{"x":{"agents":["a:b"]}}'
    ).out
    assert "hunter2" not in done.out + shown
    assert '{"x":{"agents":["a:b"]}} ' in shown


@pytest.mark.parametrize(
    ("toml", "code", "said"),
    [
        ("[worker]\nprocesses = 3\n", 0, "valid"),
        ("[worker]\nprocesess = 3\n", 78, "did you mean worker.processes?"),
        ("[worker]\nprocesses = 0\n", 78, "worker.processes"),
        ("[worker", 78, "not valid TOML"),
        (None, 78, "cannot be read"),
    ],
)
def test_config_validate(terminal: Terminal, toml: str | None, code: int, said: str) -> None:
    """A file is checked as a whole; what is wrong is named with exit code 78."""
    if toml is not None:
        (terminal.folder / "orc.toml").write_text(toml)
    done = terminal.orc("config", "validate", "orc.toml")
    assert done.code == code, done
    assert said in done.err
    assert not done.out


def test_unknown_variable(terminal: Terminal) -> None:
    """A misspelt variable stops every command with exit code 78 and the right name."""
    done = terminal.orc("status", ORC_POOOL="x")
    assert done.code == 78
    assert "ORC_POOL" in done.err


# -------------------------------------------------------------------------------------------------------------- output


def test_closed_pipe(terminal: Terminal) -> None:
    """A reader that goes away ends the command without a word."""
    with subprocess.Popen(
        [ORC, "config", "show", "-o", "json"], env=terminal.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.close()
        assert command.stderr.read() == b""
    assert command.returncode == 141


def test_full_disk(terminal: Terminal) -> None:
    """Output that cannot be written is a failure that says so."""
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - not a file one would make
        done = subprocess.run([ORC, "version"], env=terminal.environ, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert done.stderr.decode().startswith("error: cannot write standard output")


def test_no_standard_streams(terminal: Terminal) -> None:
    """A command works with its standard streams closed."""
    for closed in (">&-", "2>&-", "<&-", "<&- >&- 2>&-"):
        done = subprocess.run(["/bin/sh", "-c", f"{ORC} version {closed}"], env=terminal.environ, check=False)
        assert done.returncode == 0


def test_json_is_one_document(terminal: Terminal) -> None:
    """`-o json` prints one document, `-o jsonl` one object a line, `-o id` bare names."""
    names = [row["name"] for row in terminal.orc("config", "show", "-o", "json").json()["items"]]
    lines = terminal.orc("config", "show", "-o", "jsonl").out.splitlines()
    assert [json.loads(line)["name"] for line in lines] == names
    assert terminal.orc("config", "show", "-o", "id").out.split() == names


def test_python_m(terminal: Terminal) -> None:
    """`python -m orchestrator` is the same program, also where files have the names of ours."""
    (terminal.folder / "orchestrator.py").write_text("raise RuntimeError('not ours')")
    command = [sys.executable, "-P", "-m", "orchestrator", "version"]
    done = subprocess.run(command, cwd=terminal.folder, env=os.environ, capture_output=True, text=True, check=True)
    assert done.stdout == terminal.orc("version").out
