"""Writes the types of the blocking client, `orchestrator/sync/__init__.pyi`, from the asynchronous classes."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.sync.blocking import INTERNAL, RENAMED, WORKER_TYPE, WRAPPED, blocking_doc

if TYPE_CHECKING:
    from collections.abc import Iterator

TARGET: Final = Path(__file__).parents[1] / "orchestrator" / "sync" / "__init__.pyi"
HEAD: Final = "# Generated from the asynchronous classes by `make generate`; do not edit.\n"
TYPES: Final = {"AsyncIterator": "Iterator", "AsyncGenerator": "Iterator", "WriteGuard": "Lease"}
SHOWN: Final = frozenset({"__init__", "__aenter__", "__aexit__"})


def rendered() -> str:
    """Return the text of the stub."""
    classes = [_class_of(each) for each in WRAPPED]
    own = {each.__name__ for each in WRAPPED}
    used = {node.id for each in classes for node in ast.walk(each) if isinstance(node, ast.Name)}
    imports: dict[str, str] = {}
    for each in WRAPPED:
        imports |= _imports(each.__module__)
    lines = [imports[name] for name in sorted(used & imports.keys() - own)]
    lines += [
        "from collections.abc import Iterator",
        "from contextlib import AbstractContextManager",
        "from typing import TypeVar",
    ]
    variables = map(ast.unparse, _variables(used))
    exported = f"__all__ = {sorted(own)}"
    parts = [HEAD, *lines, *variables, exported, *map(ast.unparse, classes)]
    return _formatted("\n".join(parts))


def _tree(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(importlib.import_module(module)))


def _imports(module: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            names = {each.asname or each.name: ast.unparse(each) for each in node.names}
            found |= {name: f"from {node.module} import {imported}" for name, imported in names.items()}
    return found | _own_names(module)


def _own_names(module: str) -> dict[str, str]:
    bound: list[str] = []
    for node in _tree(module).body:
        if isinstance(node, ast.ClassDef):
            bound.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            is_variable = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "TypeVar"
            bound += [target.id for target in targets if isinstance(target, ast.Name) and not is_variable]
    return {name: f"from {module} import {name}" for name in bound if not name.startswith("_")}


def _variables(used: set[str]) -> Iterator[ast.Assign]:
    seen: set[str] = set()
    for each in WRAPPED:
        for node in _tree(each.__module__).body:
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Call)
                and isinstance(node.targets[0], ast.Name)
            ):
                name = node.targets[0].id
                if ast.unparse(node.value.func) == "TypeVar" and name in used - seen:
                    seen.add(name)
                    yield node


def _class_of(public: type) -> ast.ClassDef:
    (found,) = [
        node
        for node in _tree(public.__module__).body
        if isinstance(node, ast.ClassDef) and node.name == public.__name__
    ]
    body: list[ast.stmt] = [ast.Expr(ast.Constant(blocking_doc(ast.get_docstring(found, clean=False) or "")))]
    for node in found.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_public(node.target.id):
            body.append(_attribute(node.target.id, node.annotation))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name == "__init__":
                body += _attributes(node)
            if _is_public(node.name) or (node.name in SHOWN and public.__name__ == "Orchestrator"):
                body.append(_method(node))
    overloaded = {node.name: node for node in body if isinstance(node, ast.FunctionDef) and _is_overload(node)}
    for node in [each for each in body if isinstance(each, ast.FunctionDef) and not _is_overload(each)]:
        if node.name in overloaded:
            body.remove(node)
            overloaded[node.name].body = node.body
    return ast.ClassDef(name=found.name, bases=found.bases, keywords=[], body=body, decorator_list=[])


def _is_overload(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(each) == "overload" for each in node.decorator_list)


def _is_public(name: str) -> bool:
    return not name.startswith("_") and name not in INTERNAL


def _attributes(init: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.stmt]:
    for node in ast.walk(init):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute) and _is_public(node.target.attr):
            yield _attribute(node.target.attr, node.annotation)


def _attribute(name: str, annotation: ast.expr) -> ast.stmt:
    return ast.parse(f"@property\ndef {name}(self) -> {ast.unparse(annotation)}: ...").body[0]


def _method(node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.FunctionDef:
    decorators = {ast.unparse(each) for each in node.decorator_list}
    returns = node.returns
    assert returns is not None
    if "asynccontextmanager" in decorators:
        assert isinstance(returns, ast.Subscript)
        returns = ast.Subscript(ast.Name("AbstractContextManager"), returns.slice)
    annotations = [each.annotation for each in (*node.args.args, *node.args.kwonlyargs) if each.annotation]
    for part in (part for each in (returns, *annotations) for part in ast.walk(each)):
        if isinstance(part, ast.Name):
            part.id = TYPES.get(part.id, part.id)
    arguments = node.args
    kept = [each for each in arguments.args if not _is_for_workers(each)]
    dropped = len(arguments.args) - len(kept)
    arguments.args = kept
    if dropped:
        del arguments.defaults[-dropped:]
    only = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    shown = [(each, default) for each, default in only if not _is_for_workers(each)]
    arguments.kwonlyargs, arguments.kw_defaults = [each for each, _ in shown], [default for _, default in shown]
    arguments.defaults = [_default(each) for each in arguments.defaults]
    arguments.kw_defaults = [each and _default(each) for each in arguments.kw_defaults]
    text = ast.get_docstring(node, clean=False)
    body: list[ast.stmt] = [ast.Expr(ast.Constant(blocking_doc(text)))] if text else []
    return ast.FunctionDef(
        name=RENAMED.get(node.name, node.name),
        args=arguments,
        body=[*body, ast.Expr(ast.Constant(...))] if not text else body,
        decorator_list=[each for each in node.decorator_list if ast.unparse(each) in {"property", "overload"}],
        returns=returns,
        lineno=0,
    )


def _is_for_workers(argument: ast.arg) -> bool:
    return argument.annotation is not None and ast.unparse(argument.annotation) == WORKER_TYPE


def _default(value: ast.expr) -> ast.expr:
    return value if isinstance(value, ast.Constant) else ast.Constant(...)


def _formatted(source: str) -> str:
    for arguments in (["check", "--fix-only", "--quiet", "--select", "I,F401"], ["format"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(TARGET), "-"]
        source = subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
    return source


if __name__ == "__main__":
    TARGET.write_text(rendered(), encoding="utf-8")
