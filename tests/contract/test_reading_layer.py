"""Stored data is decoded in `orchestrator/core/reading.py` alone: elsewhere a damaged value would end a process."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]
NOT_FROM_REDIS: Final = (
    "orchestrator/backup/checks.py",
    "orchestrator/backup/restoring.py",
    "orchestrator/backup/rows.py",
    "orchestrator/backup/scripts.py",
    "orchestrator/bench/",
    "orchestrator/cli/",
    "orchestrator/core/",
    "orchestrator/doctor/known_faults.py",
    "orchestrator/doctor/machine.py",
    "orchestrator/doctor/sentinels.py",
    "orchestrator/doctor/server.py",
    "orchestrator/embedded/",
    "orchestrator/embedding/",
    "orchestrator/integrations/",
    "orchestrator/monitoring/exposition.py",
    "orchestrator/monitoring/probe.py",
    "orchestrator/secondary/",
    "orchestrator/store/",
    "orchestrator/testing/",
    "orchestrator/tracing/",
    "orchestrator/vectors/",
    "workers/bench.py",
    "workers/demo/",
    "workers/runtime/",
    "workers/testing/",
)
"""Read no values that programs store, but backups, settings, pipes of handlers, and what the server tells of itself."""
READS_AS_WELL: Final = (
    "workers/runtime/control_reader.py",
    "workers/runtime/executor.py",
    "workers/runtime/fetcher.py",
    "workers/runtime/inbox_reader.py",
    "workers/runtime/listener.py",
    "workers/runtime/receipts.py",
    "orchestrator/store/following.py",
    "orchestrator/store/paging.py",
    "orchestrator/store/durable.py",
)
"""Modules of those folders that read stored values."""
EXEMPT: Final = frozenset(
    {
        "orchestrator/agents/scripts.py: int(redact)",
        "orchestrator/chat/model.py: msgspec.json.Decoder(StoredMessage)",
        "orchestrator/chat/model.py: msgspec.json.Decoder(tuple[StoredMessage, ...])",
        "orchestrator/client/session_actions.py: int(self.workspace)",
        "orchestrator/extraction/storing.py: msgspec.json.decode(msgspec.json.encode(provenance))",
        "orchestrator/memory/encoding.py: float(header.x)",
        "orchestrator/memory/encoding.py: float(header.y)",
        "orchestrator/memory/encoding.py: float(value)",
        "orchestrator/memory/encoding.py: int(version)",
        "orchestrator/memory/queries.py: int(limit)",
        "orchestrator/memory/queries.py: int(step)",
        "orchestrator/memory/scripts.py: int(indexed)",
        "orchestrator/memory/scripts.py: int(repair)",
        "orchestrator/memory/states.py: int(record.stored.timestamp())",
        "orchestrator/memory/tiers.py: float(header.x)",
        "orchestrator/memory/tiers.py: float(header.y)",
        "orchestrator/schedules/model.py: json.loads(bytes(plan.args))",
        "orchestrator/schedules/model.py: json.loads(encode_plan(plan))",
        "orchestrator/schedules/model.py: msgspec.json.Decoder(_StoredPlan)",
        "orchestrator/schedules/plans.py: json.loads(bytes(plan.args))",
        "orchestrator/simulations/simulation.py: float(step)",
        "orchestrator/tasks/ends.py: int(found[3])",
        "orchestrator/tasks/output.py: int(found[1])",
        "orchestrator/tasks/output.py: int(found[2])",
        "orchestrator/tasks/selecting.py: TaskState(state)",
        "orchestrator/tasks/walking.py: float(score)",
        "orchestrator/tasks/walking.py: float(text)",
        "orchestrator/tasks/walking.py: int(await store.execute('ZCOUNT', self.key, *limits))",
        "orchestrator/tasks/walking.py: int(index)",
        "orchestrator/tasks/walking.py: urlsafe_b64encode(msgspec.json.encode(self)).decode()",
        "orchestrator/workspace/scripts.py: int(events)",
        "orchestrator/workspace/scripts.py: int(settings.json_projection)",
        "workers/runtime/fetcher.py: float(await server_ms(self._services.store))",
        "workers/runtime/inbox_reader.py: int(await self._link.execute('CLIENT', 'ID'))",
    }
)
"""Expressions of values that no stored data can reach, or that were checked before, by module."""
CATCHES: Final = frozenset({"ValueError", "UnicodeDecodeError", "Exception", "DecodeError"})
COMPUTED: Final = (ast.BinOp, ast.BoolOp, ast.Compare, ast.Constant, ast.UnaryOp)
"""Arguments of `int` and `float` that are numbers already."""


def _product() -> Iterator[tuple[str, ast.Module]]:
    for root in ("orchestrator", "workers"):
        for path in sorted((ROOT / root).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            # Links to the other two roots.
            if not name.startswith(("orchestrator/workers/", "orchestrator/lua/")):
                yield name, ast.parse(path.read_text())


def _reads(name: str) -> bool:
    return name in READS_AS_WELL or not name.startswith(NOT_FROM_REDIS)


def _enumerations(modules: list[tuple[str, ast.Module]]) -> frozenset[str]:
    return frozenset(
        node.name
        for _, tree in modules
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("Enum") for base in node.bases)
    )


def _caught(tree: ast.Module) -> set[ast.AST]:
    """Return the nodes inside a `try` that handles values of another form."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any(
            handler.type is None or any(word in ast.unparse(handler.type) for word in CATCHES)
            for handler in node.handlers
        ):
            found.update(inner for statement in node.body for inner in ast.walk(statement))
    return found


def _strict(tree: ast.Module, enumerations: frozenset[str]) -> Iterator[ast.Call]:
    """Yield the calls that raise for a value of another form."""
    caught = _caught(tree)
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or call in caught:
            continue
        function = ast.unparse(call.func)
        last = function.rpartition(".")[2]
        if last == "decode" and isinstance(call.func, ast.Attribute):
            made_here = isinstance(call.func.value, ast.Call) and "encode" in ast.unparse(call.func.value.func)
            if "msgspec" in function or not (call.args or call.keywords or made_here):
                yield call
        elif (
            last in {"loads", "Decoder"}
            or (call.args and function in {"int", "float"} and not isinstance(call.args[0], COMPUTED))
            or (call.args and last in enumerations and not isinstance(call.args[0], ast.Constant))
        ):
            yield call


def test_stored_data_is_read_in_one_place() -> None:
    """No strict decode, number or member of an enumeration outside of the reading layer."""
    modules = list(_product())
    enumerations = _enumerations(modules)
    found = {
        f"{name}: {ast.unparse(call)}" for name, tree in modules if _reads(name) for call in _strict(tree, enumerations)
    }
    assert sorted(found - EXEMPT) == [], "read it with a function of orchestrator/core/reading.py"
    assert sorted(EXEMPT - found) == [], "exempt and not there"


@pytest.mark.parametrize(
    "source",
    [
        "stored.decode()",
        "int(stored)",
        "float(stored)",
        "State(stored)",
        "msgspec.json.decode(stored)",
        "loads(stored)",
    ],
)
def test_strict_reads_are_found(source: str) -> None:
    """Each kind of strict read is found, and not if its error is handled."""
    enumerations = frozenset({"State"})
    assert list(_strict(ast.parse(source), enumerations))
    handled = f"try:\n    {source}\nexcept ValueError:\n    pass"
    assert not list(_strict(ast.parse(handled), enumerations))
