"""The command line reads nothing itself, and views format nothing."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orchestrator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT: Final = Path(orchestrator.__file__).parent
READING: Final = {"store", "keys", "endpoint", "execute", "pipeline"}
"""Attributes that lead to Redis; `keys()` of a mapping takes no argument."""
PRINTING: Final = {"print", "input", "open"}
FORMATTING: Final = {"strftime", "isoformat", "ljust", "rjust", "center", "expandtabs", "write", "writelines"}


def _reads(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield each use of a store or of keys, and each imported function that takes one."""
    mappings = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call) and not node.args}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if name in READING and not (name == "keys" and id(node) in mappings):
                yield node.lineno, ast.unparse(node)
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("orchestrator"):
                for alias in names:
                    found = getattr(importlib.import_module(module), alias.name, None)
                    if inspect.isfunction(found) and {"store", "keys"} & set(inspect.signature(found).parameters):
                        yield node.lineno, f"{module}.{alias.name}"


def _formats(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield each print, and each text that is padded or has a number or a time in a format."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in PRINTING:
                yield node.lineno, ast.unparse(node)
            case ast.Attribute(attr=name) if name in FORMATTING:
                yield node.lineno, ast.unparse(node)
            case ast.FormattedValue(format_spec=ast.JoinedStr()):
                yield node.lineno, ast.unparse(node)


def _found(package: str, check: Callable[[ast.Module], Iterator[tuple[int, str]]]) -> list[str]:
    return [
        f"{path.relative_to(ROOT.parent)}:{line}: {text}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, text in check(ast.parse(path.read_text(encoding="utf-8")))
    ]


def test_the_command_line_reads_nothing() -> None:
    """No module of the command line has a store, keys, or a function that takes them."""
    assert _found("cli", _reads) == []


def test_views_format_nothing() -> None:
    """No view prints, pads a text or writes a number or a time in a format."""
    assert _found("views", _formats) == []


def test_the_checks_find_them() -> None:
    """The checks find what they are for."""
    reads = (
        "a = services.store; b = orc.services.store.execute('PING'); c = services.keys.leader; "
        "from orchestrator.control.receipts import poll; from orchestrator.tasks.selecting import TaskFilter, select"
    )
    assert {line for line, _ in _reads(ast.parse(reads.replace("; ", "\n")))} == {1, 2, 3, 4, 5}
    formats = "print(x); f'{x:.1f}'; at.strftime('%H'); name.ljust(3); sys.stdout.write(x)"
    assert {line for line, _ in _formats(ast.parse(formats.replace("; ", "\n")))} == {1, 2, 3, 4, 5}
    fine = "a = f'{x} {y!r}'; b = {}.keys(); from orchestrator.tasks.selecting import TaskFilter"
    assert [*_reads(ast.parse(fine)), *_formats(ast.parse(fine))] == []
