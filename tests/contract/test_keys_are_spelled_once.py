"""Key names, suffixes, queue names and slots are built and parsed in their own modules, nowhere else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import orchestrator
from orchestrator.core import queue_name, slots
from orchestrator.store import found_keys, key_kinds, keys
from orchestrator.store.key_kinds import POOL_KEYS, SCOPE_KEYS

ROOT = Path(orchestrator.__file__).parents[1]
HOMES = {Path(str(module.__file__)) for module in (found_keys, key_kinds, keys, queue_name, slots)}
HOMES |= {ROOT / "orchestrator/control/commands.py", ROOT / "orchestrator/core/wakeups.py"}
"""Commands declare their slots as formats; a notification of the doorbell names a queue."""
OTHERS = {"agent", "skill", "session", "stop", "pause", "drain", "limit", "config", "do", "verified", "pool"}
WORDS = {
    kind.suffix.partition(":")[0] for kind in (*POOL_KEYS, *SCOPE_KEYS) if kind.suffix.rpartition(":")[2].isupper()
} | OTHERS
HEAD = re.compile(rf"(?:.*:)?(?:{'|'.join(sorted(WORDS))}):$")
"""The text in front of a name that is put in: `queue:`, `…:held:`."""
TAIL = re.compile(r"^:(?:workers|notes|waiters|wake|fence|awaited|kv)$")
SUFFIXES = {kind.suffix for kind in SCOPE_KEYS if ":" in kind.suffix and kind.suffix == kind.suffix.lower()}
NO_KEYS = {
    ("orchestrator/dashboard/identity.py", "web:"),  # the actor of a command
    ("orchestrator/schedules/plans.py", "schedule:"),  # the idempotency key that a fired task shows
    ("orchestrator/why/explanation.py", "agent:"),  # how people read an agent's own limit
    ("workers/runtime/inbox_reader.py", "inbox:"),  # a name in the server's list of clients
}
PARSERS = {"partition", "rpartition", "removeprefix", "removesuffix", "startswith", "endswith", "split"}


def test_keys_are_spelled_once() -> None:
    """No module but their own puts a key, a queue name or a slot together, or takes one apart."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text!r}"
        for folder in ("orchestrator", "workers")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path not in HOMES
        for line, text in _spelled(ast.parse(path.read_text(encoding="utf-8")))
        if (path.relative_to(ROOT).as_posix(), text) not in NO_KEYS
    ]
    assert found == []


def test_the_check_finds_them() -> None:
    """The check finds what it is for."""
    wrong = 'a = f"queue:{x}"; b = f"{root}:task:{x}"; c = x.partition(":queue:"); d = "ws:doc"; e = f"agent:{x}:kv"'
    assert {text for _, text in _spelled(ast.parse(wrong))} == {
        "queue:",
        ":task:",
        ":queue:",
        "ws:doc",
        "agent:",
        ":kv",
    }
    assert _spelled(ast.parse('f"the task: {x}"; f"{x}: {y}"; x.partition(":"); "a text"')) == []


def _spelled(tree: ast.Module) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr(values=values):
                for part, following in zip(values, [*values[1:], None], strict=True):
                    text = part.value if isinstance(part, ast.Constant) else None
                    if isinstance(text, str) and ((following and HEAD.match(text)) or TAIL.match(text)):
                        found.append((node.lineno, text))
            case ast.Call(func=ast.Attribute(attr=attr), args=[first, *_]) if attr in PARSERS:
                for constant in ast.walk(first):
                    text = constant.value if isinstance(constant, ast.Constant) else None
                    if isinstance(text, str) and HEAD.match(text):
                        found.append((node.lineno, text))
            case ast.Constant(value=str(text)) if text in SUFFIXES:
                found.append((node.lineno, text))
    return found
