"""Each command of the program on terminals of 80 and 120 columns: its help, what it prints, and without a server."""

from __future__ import annotations

import re
import shlex
import socket
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import pytest

from orchestrator.cli.app import program
from orchestrator.cli.terminal import output
from tests.helpers.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.cli.terminal.parsing import Commands
    from tests.helpers.terminal import Done

COMMANDS: Final[dict[str, tuple[str, ...] | None]] = {
    "demo": None,
    "up": None,
    "web": None,
    "top": None,
    "web login": ("",),
    "web user add": ("ada --role admin",),
    "web user list": ("",),
    "web user remove": ("ada --yes",),
    "web token make": ("ci --role operator --days 90",),
    "web token list": ("",),
    "web token revoke": ("ci",),
    "status": ("",),
    "doctor": ("", "--all"),
    "stop": (
        "--agent nobody --reason a-long-reason-that-has-more-letters-than-a-line-of-a-terminal-can-show-and-a-few-more",
    ),
    "start": ("--agent nobody",),
    "control log-level": ("info", "--reset"),
    "control renew": ("--yes",),
    "control list": ("",),
    "control show": ("COMMAND",),
    "tasks submit": ("greet -a name=Ada", "misspelt"),
    "tasks effects": ("TASK",),
    "tasks list": ("", "--session 101", "--state dead"),
    "tasks show": ("TASK", "DEAD", "TASK --tree"),
    "tasks result": ("TASK", "DEAD"),
    "tasks wait": ("TASK", "DEAD"),
    "tasks watch": ("TASK",),
    "tasks why": ("TASK", "DEAD"),
    "tasks cancel": ("TASK",),
    "tasks retry": ("TASK",),
    "tasks delete": ("--state dead --dry-run",),
    "tasks answer": ("TASK yes",),
    "events": ("",),
    "sessions list": ("",),
    "sessions show": ("101",),
    "sessions events": ("101",),
    "sessions delete": ("nothing --yes",),
    "dead list": ("",),
    "dead show": ("DEAD",),
    "dead retry": ("--all --dry-run",),
    "dead export": ("--all",),
    "dead delete": ("--all --dry-run",),
    "agents pause": ("nobody",),
    "agents hold": ("nobody 60s",),
    "agents resume": ("nobody",),
    "agents list": ("",),
    "agents show": ("greeter",),
    "agents top": ("",),
    "agents limit": ("nobody 10/min",),
    "skills list": ("",),
    "skills show": ("greet",),
    "stats": ("",),
    "limits hold": ("model:gpt 60s",),
    "limits set": ("model:gpt 30/min",),
    "limits reset": ("model:gpt",),
    "limits clear": ("model:gpt",),
    "limits list": ("",),
    "workers drain": ("nobody",),
    "workers resume": ("nobody",),
    "workers stop": ("nobody",),
    "workers list": ("",),
    "workers show": ("WORKER",),
    "queues pause": ("skill:nothing",),
    "queues drain": ("skill:nothing",),
    "queues resume": ("skill:nothing",),
    "queues list": ("",),
    "queues purge": ("skill:nothing --yes --reason test",),
    "schedules list": ("",),
    "schedules show": ("nightly",),
    "schedules next": ("", "nightly"),
    "schedules add": ("hourly greet --every 1h",),
    "schedules pause": ("nightly",),
    "schedules resume": ("nightly",),
    "schedules trigger": ("nightly",),
    "schedules delete": ("hourly --yes",),
    "locks list": ("session:101",),
    "locks release": ("session:101 nothing --yes",),
    "chat show": ("101",),
    "chat append": ("101 more",),
    "chat extract": ("101 --agent greeter",),
    "chat export": ("101",),
    "chat clear": ("102 --yes",),
    "memory list": ("greeter",),
    "memory show": ("greeter nothing",),
    "memory export": ("greeter",),
    "memory forget": ("greeter --kind note --yes",),
    "erase": ("somebody --asked-by test --yes",),
    "workspace get": ("101",),
    "workspace set": ("101 title 1",),
    "workspace log": ("101 findings",),
    "workspace events": ("101",),
    "workspace export": ("101",),
    "keys check": ("",),
    "keys rebuild": ("--yes",),
    "keys report": ("",),
    "backup": ("FOLDER/pool.backup",),
    "restore": ("FOLDER/missing.backup",),
    "upgrade status": ("",),
    "upgrade finish": ("--yes",),
    "upgrade load": ("",),
    "auth acl": ("", "worker=adam"),
    "budgets set": ("run-7 --usd 2 --per day",),
    "budgets list": ("",),
    "budgets show": ("run-7",),
    "budgets delete": ("run-7",),
    "shares set": ("acme --weight 3",),
    "shares list": ("",),
    "shares delete": ("acme",),
    "supervisor run": None,
    "worker run": None,
    "redis run": None,
    "redis info": ("",),
    "service print": ("supervisor",),
    "service install": None,
    "service status": None,
    "bench": None,
    "config publish": ("routing.model large",),
    "config withdraw": ("routing.model",),
    "config show": ("", "--sources"),
    "config diff": ("",),
    "config validate": ("",),
    "config schema": ("",),
    "config published": ("",),
    "completion": ("bash",),
    "version": ("",),
}
"""Arguments with which each command is typed; None: it runs programs, fills the screen, or asks systemd."""
LOCAL: Final = {
    "auth acl", "completion", "config diff", "config schema", "config show", "config validate", "redis info",
    "service print",
    "version",
}  # fmt: skip
"""They need no server."""
WIDTHS: Final = (80, 120)
_LEAKS: Final = re.compile(
    r"<class '|<function |<[a-z_.]+ object at 0x|\bAnnotated\[|typing\.|\bTaskState\.|\bNone\b|\bTrue\b|\bFalse\b|"
    r"datetime\.|Traceback|this is a bug"
)
"""Texts of Python that nobody typed."""


def test_every_command_is_here() -> None:
    """A new command needs its arguments above."""
    assert sorted(_declared(program())) == sorted(COMMANDS)


def _declared(commands: Commands, before: str = "") -> Iterator[str]:
    for name in commands.lazies:
        yield from _declared(commands.load(name), f"{before} {name}".strip())
    yield from (f"{before} {name}".strip() for name in commands.leaves)
    if commands.own is not None:
        yield before


def _faults(done: Done, typed: str) -> list[str]:
    """Return the texts of Python in what a command printed."""
    return [f"{typed}: {found[0]!r} in {done}" for found in _LEAKS.finditer(done.out + done.err)]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is printed goes to a terminal without colours; the lines of tables."""
    lines: list[str] = []
    make = output.table

    def record(*arguments: Any) -> str:
        text = make(*arguments)
        lines.extend(text.splitlines())
        return text

    monkeypatch.setattr(output, "is_terminal", lambda _: True)
    monkeypatch.setattr(output, "table", record)
    return lines


# ----------------------------------------------------------------------------------------------------------------- help


@pytest.mark.parametrize("width", WIDTHS)
def test_help(tmp_path_factory: pytest.TempPathFactory, tables: list[str], width: int) -> None:
    """The help of each command fits the terminal and has no text of Python."""
    terminal = Terminal(tmp_path_factory.mktemp("help"), NO_COLOR="1", COLUMNS=str(width))
    groups, faults = {name.partition(" ")[0] for name in COMMANDS if " " in name}, []
    for typed in sorted(groups | set(COMMANDS)):
        done = terminal.orc(*typed.split(), "--help")
        assert (done.code, done.err) == (0, ""), (typed, done)
        assert done.out.startswith(f"Usage: orc {typed} "), done.out
        # An example is copied, so it is one line.
        lines = [line for line in done.out.splitlines() if not line.startswith("  orc ")]
        faults += [f"{typed}: {line}" for line in lines if len(line) > width] + _faults(done, typed)
    assert not faults, "\n".join(faults)
    assert not tables


# -------------------------------------------------------------------------------------------------------------- a team


class Team:
    """What stands for the names in arguments."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.names = {"FOLDER": str(terminal.folder)}
        submitted = self._orc("tasks submit greet -a name=Ada --session 101 --wait -o json")
        self.names["TASK"] = submitted.json()["id"]
        refused = terminal.orc("tasks", "submit", "refuse", "-a", f"reason={'a long reason ' * 20}", "-o", "id")
        self.names["DEAD"] = refused.out.strip()
        self._orc(f"tasks wait {self.names['DEAD']}", code=1)
        self._orc("schedules add nightly greet --every 1h")
        self._orc("chat append 101 question")
        self._orc("chat append 102 question")
        self._orc("workspace set 101 report 1")
        self.names["COMMAND"] = self._orc("control list -o id").out.split()[0]
        self.names["WORKER"] = self._orc("workers list -o id").out.split()[0]

    def _orc(self, typed: str, code: int = 0) -> Done:
        done = self.terminal.orc(*typed.split())
        assert done.code == code, (typed, done)
        return done

    def type(self, typed: str, **variables: str) -> Done:
        """Type a command with its arguments."""
        words = [self.names.get(word, word) for word in shlex.split(typed)]
        words = [word.replace("FOLDER", self.names["FOLDER"]) for word in words]
        return self.terminal.orc(*words, **variables)


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """A team under `orc up` with a task, a dead letter, a schedule, chats and a workspace."""
    terminal = Terminal(tmp_path_factory.mktemp("walk"), ORC_WORKER__DRAIN_S="1", NO_COLOR="1")
    with terminal.start("up", "my_agents:agent") as up:
        up.wait_output("worker_started", timeout_s=60)
        up.wait_output("leadership_acquired", timeout_s=60)
        yield Team(terminal)
        up.terminate()
        up.wait_exit(20)


def test_output(team: Team, tables: list[str]) -> None:
    """Each command prints lines that fit the terminal, without texts of Python, and none fails without advice."""
    faults: list[str] = []
    typed_ones = [f"{name} {arguments}".strip() for name, each in COMMANDS.items() for arguments in each or ()]
    for width, typed in product(WIDTHS, typed_ones):
        tables.clear()
        done = team.type(typed, COLUMNS=str(width))
        faults += [f"{typed}: {line}" for line in tables if len(line) > width] + _faults(done, typed)
        if done.code and not done.out + done.err:
            faults.append(f"{typed}: code {done.code} without a word")
    assert not faults, "\n".join(faults)


def test_without_a_server(tmp_path_factory: pytest.TempPathFactory, tables: list[str]) -> None:
    """Each command that needs Redis says which address it tried and what to do."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{closed.getsockname()[1]}"
        terminal = Terminal(
            tmp_path_factory.mktemp("away"), NO_COLOR="1", ORC_REDIS__URL=url, ORC_REDIS__COMMAND_TIMEOUT_S="0.1"
        )
        id_ = "0192f0c1-0000-7000-8000-000000000000"
        names = {"TASK": id_, "DEAD": id_, "COMMAND": id_, "WORKER": "host:1", "FOLDER/pool.backup": "pool.backup"}
        faults: list[str] = []
        for name, each in COMMANDS.items():
            if each is None or name in LOCAL or name == "restore":
                continue
            typed = [names.get(word, word) for word in f"{name} {each[0]}".split()]
            done = terminal.orc(*typed)
            text = done.out + done.err
            faults += _faults(done, name)
            if done.code not in {1, 69} or url not in text or not re.search("start|orc doctor", text):
                faults.append(f"{name}: {done}")
        assert not faults, "\n".join(faults)
