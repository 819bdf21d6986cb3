"""`orc config diff`: what differs from the defaults, what another file would change, and how each change is applied."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.helpers.terminal import Terminal

if TYPE_CHECKING:
    from pathlib import Path


def differing(terminal: Terminal, *arguments: str) -> list[dict[str, Any]]:
    """The differences that the command prints."""
    done = terminal.orc("config", "diff", *arguments, "-o", "jsonl")
    assert done.code == 0, done
    return [json.loads(line) for line in done.out.splitlines()]


def test_from_the_defaults(tmp_path: Path) -> None:
    """Each setting that has another value than its default, from every source; secrets are masked."""
    terminal = Terminal(tmp_path, CREDENTIALS_DIRECTORY=str(tmp_path), ORC_POOL="mail")
    (tmp_path / "ORC_CONTROL__SECRET").write_text("marker-0123456789abcdef")
    assert differing(terminal) == [
        {"name": "pool", "old": "default", "new": "mail", "changes with": "restart"},
        {"name": "control.secret", "old": None, "new": "********", "changes with": "SIGHUP"},
    ]
    plain = Terminal(tmp_path, CREDENTIALS_DIRECTORY=str(tmp_path / "none"))
    assert "all settings have their defaults" in plain.orc("config", "diff").err


def test_with_another_file(tmp_path: Path) -> None:
    """What a new file would change, entry by entry of a table, before it is put in place."""
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    old.write_text('[limits]\nslow = "1/min"\nfast = "9/s"\n[worker]\ndrain_s = 20\n')
    new.write_text('[limits]\nslow = "2/min"\n[worker]\nprocesses = 4\ndrain_s = 20\n')
    terminal = Terminal(tmp_path, CREDENTIALS_DIRECTORY=str(tmp_path / "none"), ORC_CONFIG=str(old))
    assert differing(terminal, str(new)) == [
        {"name": "limits.slow", "old": "1/min", "new": "2/min", "changes with": "SIGHUP"},
        {"name": "limits.fast", "old": "9/s", "new": None, "changes with": "SIGHUP"},
        {"name": "worker.processes", "old": 1, "new": 4, "changes with": "restart"},
    ]
    assert differing(terminal, str(old)) == []
    new.write_text("[worker]\nproceses = 4\n")
    assert terminal.orc("config", "diff", str(new)).code == 78
