"""Reads import statements and resolves them to files of the tree, which gives the import graph.

Resolution is by path, as Python does it: a package wins over a module of the same name. Imports from outside the tree
have no edge. Imports through `importlib` or `__import__` with a computed name are not seen.
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Final

from orchestrator.workers.demo.cycles import find_cycles
from orchestrator.workers.demo.models import Edge, Import, ImportGraph, Module, When

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.workers.demo.models import ImportList, Tree

MAX_LIST_BYTES: Final = 16_000
"""Limit of the imports of one file, because the lists of a batch must fit into one result (1 MiB)."""
MAX_EDGES: Final = 20_000
RANK: Final[dict[When, int]] = {"import": 0, "lazy": 1, "typing": 2}

# --------------------------------------------------------------------------------------------------------- reading


def read_imports(module: ast.Module) -> tuple[Import, ...]:
    """Return the import statements of a module in line order, each with the time at which it runs."""
    found: list[Import] = []
    stack: list[tuple[ast.AST, When]] = [(module, "import")]
    while stack:
        node, when = stack.pop()
        match node:
            case ast.Import():
                found.extend(Import(target=name.name, line=node.lineno, when=when) for name in node.names)
            case ast.ImportFrom():
                names = tuple(name.name for name in node.names)
                target = "." * node.level + (node.module or "")
                found.append(Import(target=target, names=names, line=node.lineno, when=when))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                stack.extend((child, _later(when)) for child in node.body)
            case ast.If():
                inside, otherwise = _branches(node.test, when)
                stack.extend((child, inside) for child in node.body)
                stack.extend((child, otherwise) for child in node.orelse)
            case ast.stmt() | ast.ExceptHandler() | ast.match_case() | ast.Module():
                stack.extend((child, when) for child in ast.iter_child_nodes(node))
    found.sort(key=lambda item: (item.line, item.target))
    sizes = accumulate(len(item.model_dump_json()) for item in found)
    return tuple(item for item, size in zip(found, sizes, strict=True) if size <= MAX_LIST_BYTES)


def _later(when: When) -> When:
    return "lazy" if when == "import" else when


def _branches(test: ast.expr, when: When) -> tuple[When, When]:
    """Return when each branch of an `if` runs."""
    match test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return "typing", when
        case ast.UnaryOp(op=ast.Not(), operand=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            return when, "typing"
        case ast.Compare(left=ast.Name(id="__name__"), comparators=[ast.Constant(value="__main__")]):
            return _later(when), when  # runs as a script only
    return when, when


# ------------------------------------------------------------------------------------------------------- resolving


@dataclass(frozen=True, slots=True)
class Layout:
    """Finds modules in a tree.

    Attributes:
        package: dotted name of the tree's folder, in parts; empty if it is no package.
        files: paths of all files.
        roots: folders that hold top-level packages.
    """

    package: tuple[str, ...]
    files: frozenset[str]
    roots: tuple[str, ...]

    @classmethod
    def of(cls, tree: Tree) -> Layout:
        """Index a tree."""
        files = frozenset(tree.files)
        roots = {root for path in tree.files if (root := _root_of(path, files)) is not None}
        return cls(tuple(part for part in tree.package.split(".") if part), files, tuple(sorted(roots)))

    def module_name(self, path: str) -> str:
        """Return the dotted name under which the file is imported."""
        parts = path.removesuffix(".py").split("/")
        if parts[-1] == "__init__":
            parts.pop()
        root = _root_of(path, self.files)
        if root is None:
            return ".".join([*self.package, *parts]) or path
        return ".".join(parts[len(_parts(root)) :]) or path

    def targets(self, path: str, statement: Import) -> list[str]:
        """Return the files that a statement in `path` imports: submodules that it names, else the module itself."""
        for parts in self._places(path, statement.target):
            found = [file for name in statement.names if (file := self._file([*parts, name]))]
            whole = self._file(parts)
            if whole and len(found) < max(1, len(statement.names)):
                found.append(whole)
            if found:
                return list(dict.fromkeys(found))
        return []

    def _places(self, path: str, target: str) -> Iterator[list[str]]:
        """Yield the possible paths of a target, the most likely first."""
        level = sum(1 for _ in takewhile(lambda c: c == ".", target))
        dotted = _parts(target[level:], ".")
        folder = path.split("/")[:-1]
        if level:
            if level - 1 <= len(folder):
                yield [*folder[: len(folder) - level + 1], *dotted]
            return
        root = _root_of(path, self.files)
        if self.package:
            if tuple(dotted[: len(self.package)]) == self.package:
                yield dotted[len(self.package) :]
        elif root == "" and not self._in_package(folder):
            yield [*folder, *dotted]  # a script finds its neighbours first
        if root is not None:
            yield [*_parts(root), *dotted]
        yield from self._only_place(dotted)

    def _only_place(self, dotted: list[str]) -> Iterator[list[str]]:
        """Yield the path of a top-level name that exists below exactly one root, such as a package under `src`."""
        places = [[*_parts(root), *dotted] for root in self.roots]
        known = [place for place in places if self._file(place)]
        if len(known) == 1:
            yield known[0]

    def _in_package(self, folder: list[str]) -> bool:
        return "/".join([*folder, "__init__.py"]) in self.files

    def _file(self, parts: list[str]) -> str | None:
        package, module = "/".join([*parts, "__init__.py"]), "/".join(parts) + ".py"
        return package if package in self.files else module if module in self.files else None


def _root_of(path: str, files: frozenset[str]) -> str | None:
    """Return the folder above the topmost package that holds `path`, or None if it lies above the tree."""
    if "__init__.py" in files:
        return None
    folder = path.split("/")[:-1]
    for depth in range(1, len(folder) + 1):
        if "/".join([*folder[:depth], "__init__.py"]) in files:
            return "/".join(folder[: depth - 1])
    return ""


def _parts(text: str, separator: str = "/") -> list[str]:
    return text.split(separator) if text else []


# ----------------------------------------------------------------------------------------------------------- graph


def build_graph(tree: Tree, lists: Sequence[ImportList]) -> ImportGraph:
    """Resolve all imports, keep the one that runs first between two modules, and find the cycles."""
    layout = Layout.of(tree)
    position = {path: number for number, path in enumerate(tree.files)}
    first: dict[tuple[int, int], Edge] = {}
    for listed in lists:
        importer = position[listed.path]
        for statement in listed.imports:
            for path in layout.targets(listed.path, statement):
                edge = Edge(importer, position[path], statement.line, statement.when)
                known = first.get((edge.importer, edge.imported))
                if edge.importer != edge.imported and (known is None or _sooner(edge) < _sooner(known)):
                    first[edge.importer, edge.imported] = edge
    edges = sorted(first.values(), key=lambda edge: (RANK[edge.when], edge.importer, edge.imported))
    names = [layout.module_name(path) for path in tree.files]
    uses = Counter(names)
    return ImportGraph(
        modules=tuple(
            Module(name if uses[name] == 1 else path, path) for name, path in zip(names, tree.files, strict=True)
        ),
        edges=tuple(edges[:MAX_EDGES]),
        cycles=tuple(find_cycles(edges)),
        edges_left_out=max(0, len(edges) - MAX_EDGES),
    )


def _sooner(edge: Edge) -> tuple[int, int]:
    return RANK[edge.when], edge.line
