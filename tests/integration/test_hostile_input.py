"""Hostile text typed at the command line, in files, in settings and in names of modules: equal, or a sentence."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio.to_thread
import pytest

from orchestrator.core.bounded_files import BODY_BYTES, CONFIGURATION_BYTES
from orchestrator.core.errors import ConfigError
from orchestrator.core.settings_sources import load_settings
from orchestrator.core.strict_json import load_strict
from tests.helpers.audit import NEVER, audited, write_canary
from tests.helpers.corpus import CANARY, JSON_TEXTS, TEXTS
from tests.helpers.json_values import alike
from tests.helpers.terminal import Done, Terminal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from tests.helpers.local_team import LocalTeam

    Orc = Callable[..., Awaitable[Done]]

CONTROL: Final = re.compile(
    r"[^\n\t -~\x80-\U0010ffff]|[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff]"
)
"""Characters that command a terminal, hide, or turn text around."""
LINE: Final = 20_000
pytestmark = pytest.mark.timeout(240)
TYPED: Final = {
    name: TEXTS[name]
    for name in (
        "expression", "shell", "format string", "dotted name", "path", "file of an argument", "hash tag", "html",
        "ansi", "osc", "c1", "crlf", "direction", "invisible", "surrogate", "surrogate inside", "empty", "257 bytes",
    )
}  # fmt: skip
"""Texts that can be arguments of a program, one or two of a sort: a command takes longer than a call."""


def complaint(done: Done) -> str:
    """Return what is wrong with the end of a command, or "" if it did what it was told or says why not."""
    if CONTROL.search(done.err):
        return f"standard error has {CONTROL.findall(done.err)!r}"
    if done.code and "error: " not in done.err:
        return f"code {done.code} without a sentence: {done.err[:80]!r}"
    if "this is a bug" in done.err or "Traceback" in done.err or len(done.err) > LINE:
        return done.err[:200]
    return ""


@pytest.fixture
def terminal(team: LocalTeam, tmp_path: Path) -> Terminal:
    """A terminal beside a pool."""
    url = team.settings.redis.url
    assert url is not None
    return Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)


@pytest.fixture
def orc(terminal: Terminal) -> Orc:
    """Runs a command in a thread, while the team goes on."""

    async def typed(*words: str, stdin: str = "") -> Done:
        return await anyio.to_thread.run_sync(partial(terminal.orc, *words, stdin=stdin))

    return typed


async def test_texts_as_arguments(orc: Orc, tmp_path: Path) -> None:
    """Each place for a text of the user takes it, or refuses it with a sentence; none imports or starts anything."""
    mark, wrong = write_canary(tmp_path), []
    places = (
        lambda text: ("tasks", "submit", "echo", "-a", f"value={text}"),
        lambda text: (
            "tasks",
            "submit",
            f"--key={text}",
            f"--session={text}",
            f"--lane={text}",
            f"--tag={text}",
            "echo",
        ),
        lambda text: ("tasks", "submit", "--", text),
        lambda text: ("tasks", "show", "--", text),
        lambda text: ("tasks", "list", f"--reason-contains={text}"),
        lambda text: ("agents", "pause", "ghost", f"--reason={text}"),
        lambda text: ("workspace", "set", "--", "s", "path", text),
        lambda text: ("workspace", "get", "--", text),
        lambda text: ("chat", "append", "--", "s", text),
        lambda text: ("memory", "list", "--", text),
        lambda text: ("config", "publish", "--", text, "1"),
        lambda text: ("schedules", "add", f"--cron={text}", "--", "x", "echo"),
    )
    with audited() as found:
        for place in places:
            for name, text in TYPED.items():
                words = place(text)
                if reason := complaint(await orc(*words)):
                    wrong.append(f"orc {' '.join(words[:2])}, {name}: {reason}")
    assert not wrong, "\n".join(wrong)
    assert found == []
    assert not mark.exists()


async def test_json_as_arguments(orc: Orc) -> None:
    """JSON is taken whole, refused, or, where text is allowed, kept as text; a name that occurs twice never is."""
    wrong = []
    for name, text in JSON_TEXTS.items():
        for words in (
            ("tasks", "submit", "echo", text),
            ("tasks", "submit", "echo", "-a", f"value={text}"),
            ("tasks", "submit", "echo", "@-"),
            ("schedules", "add", "--every=1h", "--replace", "s", "echo", text),
            ("schedules", "add", "--every=1h", "--replace", "s", "echo", "-a", f"value={text}"),
            ("workspace", "set", "s", "path", text),
            ("workspace", "set", "s", "path", "@-"),
            ("config", "publish", "--no-wait", "key", text),
        ):
            done = await orc(*words, stdin=text)
            if reason := complaint(done):
                wrong.append(f"{name}, {words[:2]}: {reason}")
            if name.startswith("twin") and (done.code == 0 or "occurs twice" not in done.err):
                wrong.append(f"{name}, {words[:2]}: {done}")
            if done.code == 0 and words[0] == "workspace":
                back = json.loads((await orc("workspace", "get", "s", "path", "-o", "json")).out)["items"][0]["value"]
                if not alike(back, text):
                    wrong += [] if alike(back, load_strict(text)) else [f"{name}: came back as {back!r:.80}"]
    assert not wrong, "\n".join(wrong)


# ------------------------------------------------------------------------------------------------------------- files


def hostile_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Files that have no end, are too long, or are none."""
    huge = folder / "huge"
    with huge.open("wb") as file:
        file.truncate(1 << 40)
    yield "device", folder.__class__("/dev/zero")
    yield "directory", folder
    yield "huge", huge
    yield "missing", folder / "missing"
    yield "name", folder / "\x1b[31m\udc80"


def test_files_without_an_end(tmp_path: Path) -> None:
    """No command reads more than it can mean: as a body, as settings, as a certificate, as a backup."""
    terminal, wrong = Terminal(tmp_path, ORC_REDIS__URL="redis://127.0.0.1:1/0"), []
    for kind, path in hostile_files(tmp_path):
        name = str(path)
        for words, variables in (
            (("tasks", "submit", "echo", f"@{name}"), {}),
            (("workspace", "set", "s", "path", f"@{name}"), {}),
            (("config", "show", "--config", name), {}),
            (("config", "diff", name), {}),
            (("tasks", "list"), {"ORC_CONFIG": name}),
            (("tasks", "list"), {"ORC_REDIS__URL": "rediss://127.0.0.1:1/0", "ORC_REDIS__TLS_CA": name}),
            (("restore", name, "--into", "a:b:c", "--yes"), {}),
        ):
            done = terminal.orc(*words, **variables)
            if done.code == 0 or (reason := complaint(done)):
                wrong.append(f"{kind}, {words[:2]}: {done.code} {reason or done}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("length", [10, CONFIGURATION_BYTES + 1], ids=["short", "long"])
def test_a_pipe_as_settings(tmp_path: Path, length: int) -> None:
    """A pipe is read to its end, and no further than a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write() -> None:
        with pipe.open("wb") as file:
            try:
                file.write(b"#" * length)
            except BrokenPipeError:
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        if length < CONFIGURATION_BYTES:
            load_settings(str(pipe), environ={})
        else:
            with pytest.raises(ConfigError, match="longer than 1 MiB"):
                load_settings(str(pipe), environ={})
    finally:
        writer.join()


def test_an_endless_standard_input(tmp_path: Path) -> None:
    """`@-` takes 64 MiB at most."""
    done = Terminal(tmp_path).orc("tasks", "submit", "echo", "@-", stdin=" " * (BODY_BYTES + 1))
    assert (done.code, "longer than 64 MiB" in done.err) == (2, True)


# ---------------------------------------------------------------------------------------------------------- settings


def settings_of(name: str, value: str, folder: Path, *, how: str) -> object:
    """Load settings of which one comes from the environment, a secret file or a TOML file; return its value."""
    variable = f"ORC_{name.upper().replace('.', '__')}"
    environ = {"CREDENTIALS_DIRECTORY": str(folder)}
    config = folder / "settings.toml"
    config.write_text("")
    if how == "environment":
        environ[variable] = value
    elif how == "secret":
        (folder / variable).write_text(value, encoding="utf-8", errors="surrogateescape")
    else:
        section, _, key = name.rpartition(".")
        table = f"[{section}]\n" if section else ""
        config.write_text(f"{table}{key} = {json.dumps(value)}\n", encoding="utf-8", errors="surrogateescape")
    found: object = load_settings(str(config), environ=environ)
    for part in name.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("how", ["environment", "secret", "file"])
def test_settings(tmp_path: Path, how: str) -> None:
    """A setting has the value that was given, or is refused with a line that shows no control character."""
    wrong = []
    for name in ("prefix", "redis.tls_ca", "worker.processes", "limits"):
        for kind, text in {**TEXTS, **JSON_TEXTS}.items():
            if how == "environment" and ("\0" in text or len(text) > 100_000):
                continue
            folder = tmp_path / f"{name} {kind}"
            folder.mkdir()
            try:
                found = settings_of(name, text, folder, how=how)
            except ConfigError as refused:
                if CONTROL.search(str(refused)) or len(str(refused)) > LINE:
                    wrong.append(f"{name}, {kind}: {str(refused)[:200]!r}")
            except UnicodeEncodeError:  # a surrogate that a file cannot hold
                continue
            else:
                if isinstance(found, str) and found not in {text, text.strip()} and text.strip():
                    wrong.append(f"{name}, {kind}: came back as {found[:80]!r}")
            shutil.rmtree(folder)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", [name for name in JSON_TEXTS if name.startswith("twin")])
def test_twin_names_in_the_environment(tmp_path: Path, name: str) -> None:
    """An object with a name twice is refused, as TOML refuses it."""
    with pytest.raises(ConfigError, match="occurs twice in one object"):
        settings_of("limits", JSON_TEXTS[name], tmp_path, how="environment")


# ------------------------------------------------------------------------------------------------ in other processes

WATCH: Final = """
import os, sys

def look(event, args):
    if event in EVENTS and CANARY in repr(args)[:100_000]:
        write(event)

def write(line):
    file = os.open(PLACE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (line + " " + " ".join(sys.orig_argv)[:80].replace("\\n", " ") + "\\n").encode())
    os.close(file)

write("start")
sys.addaudithook(look)
"""
"""Each Python process of the terminal writes its start, and what it does with the canary."""
EVENTS: Final = sorted({"import", "exec", "compile", "pickle.find_class"} | NEVER)


def watched_terminal(folder: Path, **variables: str) -> tuple[Terminal, Path]:
    """Return a terminal whose processes are watched, and the file with what they did."""
    write_canary(folder)
    place = folder / "watched"
    text = f"EVENTS, CANARY, PLACE = {EVENTS!r}, {CANARY!r}, {str(place)!r}\n{WATCH}"
    (folder / "sitecustomize.py").write_text(text)
    return Terminal(folder, PYTHONPATH=str(folder), **variables), place


@pytest.mark.parametrize("kind", ["expression", "shell"])
def test_names_of_agent_modules(tmp_path: Path, kind: str) -> None:
    """What is no name of a module is refused with a sentence, and neither evaluated nor imported.

    The program may pass the words to a process of its own.
    """
    terminal, place = watched_terminal(tmp_path, ORC_REDIS__URL="redis://127.0.0.1:1/0")
    done = terminal.process("worker", "run", "--", TEXTS[kind])
    assert (done.code != 0, complaint(done)) == (True, "")
    assert {line.split(" ")[0] for line in place.read_text().splitlines()} <= {"start", "os.exec", "subprocess.Popen"}


def test_processes_of_a_team(tmp_path: Path) -> None:
    """Supervisor and workers import, run and start nothing that tasks name; a handler that does so is seen."""
    terminal, place = watched_terminal(tmp_path, ORC_WORKER__DRAIN_S="1")
    agents = tmp_path / "my_agents.py"
    hidden = f"__import__('{CANARY[:5]}' + '{CANARY[5:]}')"
    agents.write_text(agents.read_text() + f"\n\n@agent.skill\nasync def load() -> None:\n    {hidden}\n")
    with terminal.start("up", "my_agents:agent") as up:
        up.wait_output("worker_started", timeout_s=40)
        for text in (f"{CANARY}:agent", TEXTS["expression"], TEXTS["shell"], TEXTS["pickle in base64"], TEXTS["yaml"]):
            echoed = terminal.orc("tasks", "submit", "echo", "-a", f"value={text}", f"--session={text}", "--wait")
            assert (echoed.code, json.loads(echoed.out)) == (0, text)
        assert terminal.orc("tasks", "submit", f"{CANARY}.run", "--agent", "greeter").code == 0
        lines = place.read_text().splitlines()
        assert {line.split(" ")[0] for line in lines} == {"start"}
        for program in ("supervisor", "worker"):
            assert any(program in line for line in lines), lines
        assert terminal.orc("tasks", "submit", "load", "--wait").code == 0
        assert "import" in {line.split(" ")[0] for line in place.read_text().splitlines()}
        up.terminate()
        assert up.wait_exit(30) is not None
