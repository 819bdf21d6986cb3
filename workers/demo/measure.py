"""Measures one file from its syntax tree: size, complexity, nesting, docstrings. Never runs or imports the file.

Complexity is McCabe's number: 1 for a function, and 1 more for each `if`, `elif`, `for`, `while`, `except`, `case` (but
`case _`), conditional expression, further operand of `and` / `or`, and `for` and `if` of a comprehension. A nested
function is measured separately; a lambda belongs to the enclosing function.
"""

from __future__ import annotations

import ast
import threading
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from orchestrator.workers.demo.models import FileMeasure, FunctionMeasure, Undocumented

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULE: Final = "<module>"
MAX_NAMED: Final = 20
"""Limit of functions and of missing docstrings that a measure names; the counts include all."""
MAX_NAME: Final = 80
MAX_PROBLEM: Final = 200

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | Function
BLOCKS: Final = (ast.For, ast.AsyncFor, ast.While, ast.Try, ast.TryStar, ast.With, ast.AsyncWith, ast.Match)

_one_at_a_time = threading.Lock()
"""Protects the warning filters, which belong to the whole process."""


class Unparsable(Exception):
    """Text that this interpreter cannot parse; the message names the line if there is one."""


def parse(text: str) -> ast.Module:
    """Parse source text.

    Raises:
        Unparsable: a syntax error, or nesting too deep for the parser.
    """
    try:
        with _one_at_a_time, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about the audited file are not ours
            return ast.parse(text)
    except SyntaxError as wrong:
        raise Unparsable(f"line {wrong.lineno or 1}: {wrong.msg}") from None
    except ValueError as wrong:
        raise Unparsable(str(wrong)) from None
    except (RecursionError, MemoryError):
        raise Unparsable("nested too deeply for the parser") from None


def measure_text(path: str, text: str) -> FileMeasure:
    """Measure the text of one file. A text that cannot be parsed keeps its size and the reason."""
    lines = text.split("\n")
    count = len(lines) - (not lines[-1])
    try:
        module = parse(text)
    except Unparsable as wrong:
        return FileMeasure(path=path, problem=str(wrong)[:MAX_PROBLEM], lines=count)
    reading = _Reading()
    reading.read(module)
    functions = sorted(reading.measures(), key=lambda f: (-f.complexity, f.line))
    missing = sorted(reading.undocumented, key=lambda item: item.line)
    return FileMeasure(
        path=path,
        lines=count,
        code_lines=_code_lines(lines, reading),
        complexity=sum(function.complexity for function in functions),
        histogram=dict(sorted(Counter(function.complexity for function in functions).items())),
        nesting=max((function.nesting for function in functions), default=0),
        worst=_worst(functions),
        public=reading.public,
        undocumented=tuple(missing[:MAX_NAMED]),
        undocumented_count=len(missing),
        imports=reading.imports,
    )


def _worst(functions: list[FunctionMeasure]) -> tuple[FunctionMeasure, ...]:
    chosen = {
        id(function): function
        for ranking in (
            functions[: MAX_NAMED // 2],
            sorted(functions, key=lambda f: (-f.nesting, f.line))[: MAX_NAMED // 6],
            sorted(functions, key=lambda f: (-f.lines, f.line))[: MAX_NAMED // 6],
            sorted(functions, key=lambda f: (-f.parameters, f.line))[: MAX_NAMED // 6],
        )
        for function in ranking
    }
    return tuple(sorted(chosen.values(), key=lambda f: (-f.complexity, f.line)))


def _code_lines(lines: list[str], reading: _Reading) -> int:
    def is_code(number: int, line: str) -> bool:
        stripped = line.strip()
        if not stripped or number in reading.docstring_lines:
            return False
        return number in reading.string_lines or not stripped.startswith("#")

    return sum(is_code(number, line) for number, line in enumerate(lines, 1))


# --------------------------------------------------------------------------------------------------------- reading


@dataclass(slots=True)
class _Unit:
    """Counts one function, or the module's code outside functions."""

    name: str
    line: int
    lines: int
    parameters: int = 0
    complexity: int = 1
    nesting: int = 0


@dataclass(frozen=True, slots=True)
class _Place:
    """Position in the tree: the unit that a node counts for, its depth, and if names defined here are public."""

    unit: _Unit
    prefix: str = ""
    depth: int = 0
    public: bool = True

    def deeper(self) -> _Place:
        self.unit.nesting = max(self.unit.nesting, self.depth + 1)
        return _Place(self.unit, self.prefix, self.depth + 1, self.public)


@dataclass(slots=True)
class _Reading:
    """Walks the tree with an explicit stack, because source may be nested deeper than Python can recurse."""

    units: list[_Unit] = field(default_factory=list)
    undocumented: list[Undocumented] = field(default_factory=list)
    public: int = 0
    imports: int = 0
    docstring_lines: set[int] = field(default_factory=set)
    string_lines: set[int] = field(default_factory=set)
    _stack: list[tuple[ast.AST, _Place]] = field(default_factory=list)

    def read(self, module: ast.Module) -> None:
        """Count everything in the module."""
        body = _Unit(MODULE, line=1, lines=0)
        self.units.append(body)
        if module.body:
            self._docstring(module, "module", MODULE, 1, public=True)
        self._push(ast.iter_child_nodes(module), _Place(body))
        while self._stack:
            node, place = self._stack.pop()
            self._visit(node, place)

    def measures(self) -> Iterator[FunctionMeasure]:
        """Yield all functions, and the module's own code if it has branches."""
        for unit in self.units:
            if unit.name != MODULE or unit.complexity > 1:
                yield FunctionMeasure.model_validate(unit, from_attributes=True)

    def _push(self, nodes: Iterator[ast.AST] | list[ast.AST], place: _Place) -> None:
        self._stack.extend((node, place) for node in nodes)

    def _visit(self, node: ast.AST, place: _Place) -> None:
        place.unit.complexity += _decisions(node)
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node, place)
            case ast.ClassDef():
                self._class(node, place)
            case ast.If():
                self._if(node, place)
            case _ if isinstance(node, BLOCKS):
                self._push(ast.iter_child_nodes(node), place.deeper())
            case _:
                self._leaf(node)
                self._push(ast.iter_child_nodes(node), place)

    def _function(self, node: Function, place: _Place) -> None:
        name = f"{place.prefix}{node.name}"
        public = place.public and not node.name.startswith("_") and not _is_variant(node)
        self._docstring(node, "function", name, node.lineno, public=public)
        unit = _Unit(name[:MAX_NAME], node.lineno, len(_lines_of(node)), _parameters(node.args))
        self.units.append(unit)
        # The head runs where the function is defined; only the body is the function's own.
        head: list[ast.AST] = [node.args, *node.decorator_list]
        self._push([*head, node.returns] if node.returns else head, place)
        self._push([*node.body], _Place(unit, f"{name}.", public=False))

    def _class(self, node: ast.ClassDef, place: _Place) -> None:
        name = f"{place.prefix}{node.name}"
        public = place.public and not node.name.startswith("_")
        self._docstring(node, "class", name, node.lineno, public=public)
        self._push(ast.iter_child_nodes(node), _Place(place.unit, f"{name}.", place.depth, public))

    def _if(self, node: ast.If, place: _Place) -> None:
        inside = place.deeper()
        self._push([node.test, *node.body], inside)
        is_elif = len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If) and _is_elif(node, node.orelse[0])
        self._push([*node.orelse], place if is_elif else inside)

    def _leaf(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            self.imports += 1
        elif isinstance(node, ast.JoinedStr | ast.Constant) and node.end_lineno != node.lineno:
            self.string_lines.update(_lines_of(node))

    def _docstring(
        self, node: Documented, kind: Literal["module", "class", "function"], name: str, line: int, *, public: bool
    ) -> None:
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            self.docstring_lines.update(_lines_of(first))
            self.public += public
        elif public:
            self.public += 1
            self.undocumented.append(Undocumented(kind=kind, name=name[:MAX_NAME], line=line))


def _decisions(node: ast.AST) -> int:
    match node:
        case ast.If() | ast.IfExp() | ast.For() | ast.AsyncFor() | ast.While() | ast.ExceptHandler():
            return 1
        case ast.BoolOp():
            return len(node.values) - 1
        case ast.comprehension():
            return 1 + len(node.ifs)
        case ast.match_case(pattern=ast.MatchAs(pattern=None), guard=None):
            return 0  # `case _` is the else of a match
        case ast.match_case():
            return 1
    return 0


def _parameters(arguments: ast.arguments) -> int:
    named = [*arguments.posonlyargs, *arguments.args]
    if named and named[0].arg in {"self", "cls"}:
        named.pop(0)
    return len(named) + len(arguments.kwonlyargs) + bool(arguments.vararg) + bool(arguments.kwarg)


def _is_elif(node: ast.If, inner: ast.stmt) -> bool:
    # `elif` has the column of its `if`; an `if` inside `else:` is further right.
    return inner.col_offset == node.col_offset


def _is_variant(node: Function) -> bool:
    """Return True for overloads, setters and deleters, which share the docstring of another definition."""
    for decorator in node.decorator_list:
        name = getattr(decorator, "attr", None) or getattr(decorator, "id", None)  # `@typing.overload`, `@overload`
        if name in {"overload", "setter", "deleter"}:
            return True
    return False


def _lines_of(node: ast.expr | ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)
