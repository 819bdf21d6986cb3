"""A sample call of every script wrapper, made from the types of its parameters: a new script needs none of its own."""

from __future__ import annotations

import ast
import inspect
import types
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

import orchestrator
from orchestrator.agents.model import AgentSpec, SkillTerms, SkillVersion
from orchestrator.chat import scripts as chat_scripts
from orchestrator.chat.scripts import ChatCall
from orchestrator.core.rates import Rate
from orchestrator.core.settings import MemorySettings, Settings, WorkspaceSettings
from orchestrator.locks.fenced_writer import CallerRow
from orchestrator.memory.scripts import MemoryChange
from orchestrator.memory.scripts import pack_limits as pack_memory_limits
from orchestrator.store.calls import Call, opaque
from orchestrator.store.keys import PoolKeys, ProviderKeys, ScopeKeys
from orchestrator.tasks.model import Verdict, VerdictKind
from orchestrator.tasks.scripts import SubmitRow, UnusualRow
from orchestrator.workspace.scripts import ChangeCall, pack_limits

if TYPE_CHECKING:
    from collections.abc import Callable

KEYS: Final = PoolKeys("a:b:c", "p")
SCOPE: Final = ScopeKeys("a:b:c", "session", "s")
_VALUES: Final[dict[Any, Any]] = {
    PoolKeys: KEYS,
    ProviderKeys: KEYS,
    ScopeKeys: SCOPE,
    str: "7",
    int: 7,
    float: 7.0,
    bool: True,
    bytes: b"\xff",
    msgspec.Raw: opaque(b"\xff"),
    AgentSpec: AgentSpec(
        "ed", frozenset({"s"}), rate=Rate(1, 2), terms={"s": SkillTerms(3, 2)}, versions={"s": SkillVersion("d")}
    ),
    ChangeCall: ChangeCall(SCOPE, CallerRow("o", "exec:t", "1:t:1:0", "ed"), pack_limits(WorkspaceSettings())),
    MemoryChange: MemoryChange(
        ScopeKeys("a:b:c", "agent", "ed"),
        CallerRow("o", "exec:t", "1:t:1:0", "ed"),
        pack_memory_limits(MemorySettings()),
    ),
    ChatCall: ChatCall(
        SCOPE, CallerRow("o", "exec:t", "1:t:1:0", "ed"), chat_scripts.pack_limits(Settings()), source="main"
    ),
    Verdict: Verdict(
        VerdictKind.INVALID, b"\xff", reason="r", version="d", names=("n",), began_ago_ms=7, timed_out=True, apart=True
    ),
}
_SUBCLASSES: Final[dict[Any, Any]] = {SubmitRow: UnusualRow}
"""Rows that fill every column."""
_ARGUMENTS: Final[dict[str, Any]] = {"plan": b"{}"}
"""Values by the parameter's name, where its type alone is not enough."""


def wrappers() -> list[Callable[..., Call[Any]]]:
    """Every public function of the `scripts` modules that makes a call."""
    found: list[Callable[..., Call[Any]]] = []
    for path in sorted(Path(orchestrator.__file__).parent.glob("*/scripts.py")):
        module = import_module(f"orchestrator.{path.parent.name}.scripts")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            returns = str(function.__annotations__.get("return"))
            if function.__module__ == module.__name__ and not name.startswith("_") and returns.startswith("Call["):
                found.append(function)
    return found


def sample_call(function: Callable[..., Call[Any]]) -> Call[Any]:
    """A call with a value for every parameter but the test clock."""
    hints = _hints(function)
    names = [name for name in inspect.signature(function).parameters if name != "now_us"]
    return function(**{name: _ARGUMENTS.get(name) or _value(hints[name]) for name in names})


def _value(kind: Any) -> Any:
    kind = _SUBCLASSES.get(kind, kind)
    if kind in _VALUES:
        return _VALUES[kind]
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _value(next(arg for arg in args if arg is not type(None)))
    if origin is Literal:
        return args[0]
    if origin is tuple:
        return tuple(_value(arg) for arg in args if arg is not ...)
    if origin is not None and len(args) == 2:
        return {_value(args[0]): _value(args[1])}
    if origin is not None:
        return [_value(args[0])]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    hints = _hints(kind)
    names = [field.name for field in fields(kind) if field.init] if is_dataclass(kind) else list(hints)
    return kind(**{name: _value(hints[name]) for name in names})


def _hints(annotated: Any) -> dict[str, Any]:
    """Types of parameters or fields, some of which their module imports for type checkers alone."""
    module = inspect.getmodule(annotated)
    assert module is not None
    namespace = dict(vars(module))
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            exec(compile(ast.Module(node.body, []), module.__name__, "exec"), namespace)
    return get_type_hints(annotated, namespace)


WRAPPED: Final = [(function.__name__, sample_call(function)) for function in wrappers()]
"""The name of each wrapper, and a call that it made."""
SAMPLES: Final = {call.script: call for _, call in WRAPPED}
