"""Every command explains itself, and refuses what cannot be meant before it asks a server."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from orchestrator.cli.app import main
from orchestrator.control.commands import KINDS

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS = (
    ["demo"],
    ["up"],
    ["status"],
    ["doctor"],
    ["control", "list"],
    ["control", "show"],
    ["tasks"],
    ["tasks", "submit"],
    ["tasks", "list"],
    ["tasks", "show"],
    ["tasks", "result"],
    ["tasks", "wait"],
    ["tasks", "watch"],
    ["tasks", "why"],
    ["tasks", "answer"],
    ["tasks", "cancel"],
    ["tasks", "retry"],
    ["tasks", "delete"],
    ["dead"],
    ["dead", "list"],
    ["dead", "show"],
    ["dead", "retry"],
    ["dead", "export"],
    ["dead", "delete"],
    ["agents", "list"],
    ["agents", "show"],
    ["agents", "top"],
    ["agents", "limit"],
    ["limits", "list"],
    ["workers", "list"],
    ["workers", "show"],
    ["queues", "list"],
    ["queues", "purge"],
    ["events"],
    ["sessions"],
    ["sessions", "list"],
    ["sessions", "show"],
    ["schedules"],
    ["schedules", "list"],
    ["schedules", "show"],
    ["schedules", "next"],
    ["schedules", "add"],
    ["schedules", "pause"],
    ["schedules", "resume"],
    ["schedules", "trigger"],
    ["schedules", "delete"],
    ["locks", "list"],
    ["locks", "release"],
    ["workspace", "get"],
    ["workspace", "set"],
    ["workspace", "log"],
    ["workspace", "events"],
    ["workspace", "export"],
    ["upgrade", "status"],
    ["upgrade", "finish"],
    ["supervisor", "run"],
    ["worker", "run"],
    ["redis", "run"],
    ["redis", "info"],
    ["config", "show"],
    ["config", "published"],
    ["config", "validate"],
    ["config", "schema"],
    ["service", "print"],
    ["service", "install"],
    ["service", "status"],
    ["bench"],
    ["completion"],
    ["version"],
    *(model.verb.split() for model in KINDS.values() if model.verb and not model.verb.endswith("--reset")),
)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Every command prints its help with examples to standard output, and nothing else."""
    for command in COMMANDS:
        assert main([*command, "--help"]) == 0, command
        printed, said = capsys.readouterr()
        assert printed.startswith(f"Usage: orc {' '.join(command)}"), command
        assert "Examples:" in printed, command
        assert not said, command


def test_group_without_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--processes 0` is refused for a worker group too; it does not mean the number of the group."""
    (tmp_path / "orchestrator.toml").write_text('[workers.writers]\nagents = ["a:b"]\nprocesses = 2\n')
    monkeypatch.setenv("ORC_CONFIG", str(tmp_path / "orchestrator.toml"))
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("the workers start"))
    assert main(["worker", "run", "--group", "writers", "--processes", "0"]) == 2
    assert "--processes 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    "typed",
    [
        "nonsense",
        "tasks sbmit",
        "tasks submit",
        "tasks submit x --nonsense",
        "tasks submit x {}  {}",
        "tasks submit x [1]",
        "tasks submit x {",
        "tasks submit x -a 5",
        "tasks submit x @missing.json",
        "tasks submit x --delay soon",
        "tasks submit x --at tomorrow",
        "tasks submit x --timeout 5s",
        "tasks submit x --max-attempts many",
        "tasks list --state lost",
        "tasks list --limit 0",
        "tasks show",
        "tasks show not-an-id",
        "tasks wait",
        "tasks why",
        "tasks answer",
        "tasks answer not-an-id yes",
        "tasks answer 0190f6e5-4d2a-7c3b-9f10-2b6c8d4e1a55",
        "tasks answer 0190f6e5-4d2a-7c3b-9f10-2b6c8d4e1a55 yes --question one",
        "tasks why not-an-id",
        "tasks cancel",
        "tasks cancel not-an-id",
        "tasks cancel 0190f6e5-4d2a-7c3b-9f10-2b6c8d4e1a55 --timeout 5s",
        "tasks cancel 0190f6e5-4d2a-7c3b-9f10-2b6c8d4e1a55 --wait --timeout soon",
        "tasks delete --yes",
        "tasks delete not-an-id --yes",
        "schedules add",
        "schedules add n",
        "schedules add n x",
        "schedules add n x --every 5m --zone Europe/Berlin",
        "schedules add n x --every soon",
        "schedules add n x --every 0.5",
        "schedules add n x --cron 5",
        "schedules add n x --every 5m --overlap drop",
        "schedules add n x --every 5m --catch-up some",
        "schedules add n x --every 5m -a 5",
        "schedules add n x --every 5m --priority urgent",
        "schedules add -n x --every 5m",
        "schedules next -n 0",
        "schedules pause",
        "schedules trigger",
        "schedules delete --yes",
        "schedules delete ! --yes",
        "workspace get",
        "workspace set 101 p",
        "workspace set 101 p 1 --delete",
        "workspace set 101 p @missing.json",
        "workspace set 101 p 1 --if-version one",
        "workspace log 101",
        "workspace log 101 l --last 0",
        "workspace events 101 --after yesterday",
        "workspace export",
        "worker run",
        "worker run a:b --processes 0",
        "worker run --group nope",
        "worker run a:b --group nope",
        "up a:b --processes x",
        "-o yaml status",
    ],
)
def test_usage_errors(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be meant is refused with one line and exit code 2, before anything is asked of a server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORC_REDIS__URL", "redis://127.0.0.1:1/0")  # asking it would be another error
    assert main(typed.split()) == 2
    printed, said = capsys.readouterr()
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert not printed
