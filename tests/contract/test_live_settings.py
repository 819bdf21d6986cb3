"""No part of a program keeps the value of a setting that a reload changes: it reads it at each use."""

from __future__ import annotations

import ast
from pathlib import Path

from orchestrator.core.live_settings import LiveSettings
from orchestrator.core.settings import Settings, leaves
from orchestrator.core.settings_reload import merge_live, pack_settings, unpack_settings

ROOT = Path(__file__).parents[2]
PROGRAMS = ("orchestrator/supervisor", "orchestrator/schedules", "orchestrator/client", "orchestrator/locks",
            "orchestrator/tasks", "orchestrator/monitoring", "orchestrator/store", "workers/runtime")  # fmt: skip
LIVE = {leaf.path for leaf in leaves() if leaf.live}
SECTIONS = {path[0] for path in LIVE}
AT_MOST = {"queue.max_depth", "supervisor.batch", "workspace.max_parts"}
"""Settings whose default has no room above it."""
REFRESHED = {
    # Compares the whole settings before each use.
    "orchestrator/tasks/submission.py:_use",
}


def captures(source: str) -> list[str]:
    """Find functions that read a live setting once for many uses: a constructor, or in front of an endless loop."""
    found: list[str] = []
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            loops = [node for node in ast.walk(function) if isinstance(node, ast.While) and _is_endless(node)]
            inside = {id(node) for loop in loops for node in ast.walk(loop)}
            lambdas = {id(one) for node in ast.walk(function) if isinstance(node, ast.Lambda) for one in ast.walk(node)}
            for node in ast.walk(function):
                once = function.name in {"__init__", "_use"} or (loops and id(node) not in inside)
                if once and id(node) not in lambdas and _reads_live(node):
                    found.append(f"{function.name}: {ast.unparse(node)}")
    return found


def _is_endless(loop: ast.While) -> bool:
    return isinstance(loop.test, ast.Constant) and loop.test.value is True


def _reads_live(node: ast.AST) -> bool:
    """Return whether a node reads `settings.SECTION`, unless it reads a setting of it that needs a restart."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Attribute | ast.Name):
        return False
    holder = node.value.attr if isinstance(node.value, ast.Attribute) else node.value.id
    if holder in {"settings", "current"}:
        return (node.attr,) in LIVE
    if isinstance(node.value, ast.Attribute) and node.value.attr in SECTIONS:
        return (node.value.attr, node.attr) in LIVE
    return False


def test_no_part_keeps_a_live_setting() -> None:
    """A copy of a value would silently ignore a reload."""
    found = [
        f"{name}: {capture}"
        for folder in PROGRAMS
        for path in (ROOT / folder).rglob("*.py")
        for capture in captures(path.read_text(encoding="utf-8"))
        if f"{(name := path.relative_to(ROOT).as_posix())}:{capture.partition(':')[0]}" not in REFRESHED
    ]
    assert found == []


def test_copies_are_found() -> None:
    """The twin: both forms of a copy are found, a setting that needs a restart is none."""
    source = """
class Part:
    def __init__(self, services):
        self.batch = services.settings.supervisor.batch
        self.lease_s = services.settings.supervisor.leader_lease_s
    async def run(self):
        sweep_s = self.services.settings.supervisor.sweep_s
        while True:
            self.read(self.services.settings.supervisor.batch)
"""
    assert captures(source) == [
        "__init__: services.settings.supervisor.batch",
        "run: self.services.settings.supervisor.sweep_s",
    ]


def test_merge_takes_exactly_the_live_settings() -> None:
    """Every live setting that differs is taken, every other one stays, and a worker gets the same over its pipe."""
    changed = _changed()
    merged = merge_live(Settings(), changed)
    for leaf in leaves():
        assert leaf.of(changed) != leaf.of(Settings()), leaf.name
        assert leaf.of(merged) == leaf.of(changed if leaf.live else Settings()), leaf.name
    assert unpack_settings(pack_settings(merged)) == merged
    live = LiveSettings(Settings())
    live.replace(merged, generation=2)
    assert live.current is merged
    live.replace(Settings(), generation=3)


def _changed() -> Settings:
    """Settings of which each one differs from its default."""
    tree: dict[str, object] = {}
    for leaf in leaves():
        default = leaf.default
        value: object
        if leaf.name == "redis.url":
            value = "rediss://localhost"
        elif leaf.examples:
            value = leaf.examples[-1]
        elif isinstance(default, bool):
            value = not default
        elif isinstance(default, int | float):
            value = (
                default - 1
                if leaf.name in {"queue.max_depth", "supervisor.batch", "workspace.max_parts"}
                else default + 1
            )
        else:
            value = {
                "prefix": "a:b:c", "pool": "mail", "level": "error", "format": "json", "durability": "fsync",
                "relation": "parent", "store": "file:///payloads",
                "endpoint": "https://s3.example.com", "region": "eu-central-1",
                "compression": "zstd", "vector_rung": "exact", "vector_delete": "mark", "views": "replica",
                "tls_verify": "ca", "host": "::1", "hosts": ["orc.example.com"],
                "proxies": ["10.0.0.1"], "agents": ["my_agents:agent"],
            }[leaf.path[-1]]  # fmt: skip
        node = tree
        for part in leaf.path[:-1]:
            node = node.setdefault(part, {})  # type: ignore[assignment]
        node[leaf.path[-1]] = value
    return Settings(**tree)  # type: ignore[arg-type]
