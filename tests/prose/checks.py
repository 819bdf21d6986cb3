"""Finds prose in Python, Lua and Markdown and holds it against the word list."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.prose.words import OPENINGS, WORDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

FOLDERS = ("orchestrator", "workers", "lua", "docs", "examples", "config")
PAGES = ("README.md", "CONTRIBUTING.md")
SUFFIXES = frozenset({".py", ".lua", ".md", ".toml"})
HISTORY = ("docs/internals/adr/",)
"""Decision records are history: they quote the terms of their time."""

_WORDS = [(re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), instead) for pattern, instead in WORDS.items()]
_OPENING = re.compile(rf"(?:{'|'.join(OPENINGS)})\b")
_CODE = re.compile(r"`[^`\n]*`|\]\([^)]*\)|<[^>\n]*>|https?://\S+|\$\w+")


@dataclass(frozen=True, slots=True)
class Finding:
    """One word or opening to replace."""

    path: str
    line: int
    problem: str


@dataclass(frozen=True, slots=True)
class Passage:
    """A run of prose that begins at `line`; `docstring` of a function, class or module."""

    line: int
    text: str
    docstring: bool = False


def findings(root: Path, only: Sequence[Path] = ()) -> Iterator[Finding]:
    """Check the files named, or every file that the rule covers."""
    for path in _files(root, only):
        name = path.resolve().relative_to(root).as_posix()
        for passage in _passages(path):
            for line, problem in _problems(passage):
                yield Finding(name, line, problem)


def _files(root: Path, only: Sequence[Path]) -> Iterator[Path]:
    starts = list(only) or [root / name for name in (*FOLDERS, *PAGES)]
    for start in starts:
        for path in sorted(start.rglob("*")) if start.is_dir() else [start]:
            name = path.resolve().relative_to(root).as_posix()
            if path.suffix in SUFFIXES and not name.startswith(HISTORY) and not path.is_symlink():
                yield path


def _passages(path: Path) -> Iterator[Passage]:
    text = path.read_text(encoding="utf-8")
    match path.suffix:
        case ".py":
            yield from _python(text)
        case ".md":
            yield from _markdown(text)
        case ".lua":
            yield from _commented(text, "--")
        case ".toml":
            yield from _commented(text, "#")


def _python(text: str) -> Iterator[Passage]:
    tree = ast.parse(text)
    docstrings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                docstrings.add(id(first.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield Passage(node.lineno, node.value, id(node) in docstrings)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield Passage(token.start[0], token.string)


def _markdown(text: str) -> Iterator[Passage]:
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield Passage(number, line)


def _commented(text: str, mark: str) -> Iterator[Passage]:
    for number, line in enumerate(text.splitlines(), 1):
        _, found, comment = line.partition(mark)
        if found:
            yield Passage(number, comment)


def _problems(passage: Passage) -> Iterator[tuple[int, str]]:
    if passage.docstring and (opening := _OPENING.match(passage.text.lstrip())):
        yield passage.line, f"docstring opens with {opening[0]!r}; begin with a verb or the noun itself"
    prose = _CODE.sub(lambda code: " " * len(code[0]), passage.text)
    for pattern, instead in _WORDS:
        for hit in pattern.finditer(prose):
            yield passage.line + prose.count("\n", 0, hit.start()), f"{hit[0]!r}: {instead}"
