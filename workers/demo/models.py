"""What the demo's agents say to each other: arguments and results, small enough to travel through Redis."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

When = Literal["import", "lazy", "typing"]
"""When an import statement runs: with the module, inside a function, or never (a type checker alone reads it)."""


class Value(BaseModel):
    """Base of all that travels: frozen, nothing unknown accepted."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Span(Value):
    """The last attempt of one task: who worked on what, and when (seconds since the epoch).

    Attributes:
        joins: the task spent most of its time waiting for its children.
        repeated: changes of the workspace that an attempt before this one had made; they were not made again.
    """

    agent: str
    worker: str
    task: str
    what: str
    started: float
    ended: float
    attempt: int = 1
    joins: bool = False
    repeated: int = 0


# -------------------------------------------------------------------------------------------------------- scanner


class Skipped(Value):
    """A path that was left alone, and why."""

    path: str
    reason: str


class Tree(Value):
    """The Python files below one folder, in path order.

    Attributes:
        root: the folder.
        package: dotted name that modules directly in the folder are imported under; empty when it is no package.
        files: paths below the root, with forward slashes.
        skipped: what was left alone; at most a hundred are named.
        truncated: a cap was reached; what comes later in path order was not looked at.
    """

    root: str
    package: str
    files: tuple[str, ...]
    skipped: tuple[Skipped, ...] = ()
    truncated: bool = False

    def batches(self, size: int) -> list[tuple[str, ...]]:
        """The files in runs of at most `size`."""
        return [self.files[start : start + size] for start in range(0, len(self.files), size)]


class Found(Value):
    """Result of `scan`."""

    tree: Tree
    span: Span


# -------------------------------------------------------------------------------------------------------- analyst


class FunctionMeasure(Value):
    """One function or method; `name` is qualified inside its module, `complexity` is McCabe's number.

    Attributes:
        parameters: all that a caller may pass; `self` and `cls` are not counted.
    """

    name: str
    line: int
    lines: int
    complexity: int
    nesting: int
    parameters: int = 0


class Undocumented(Value):
    """A public module, class or function without a docstring."""

    kind: Literal["module", "class", "function"]
    name: str
    line: int


class FileMeasure(Value):
    """What one file measures. Lists are cut to the worst and the first; the counts are of everything.

    Attributes:
        problem: why nothing (or only the size) could be measured: "line 3: invalid syntax"; empty when all is well.
        lines: all lines.
        code_lines: lines that are neither blank nor comment nor docstring.
        complexity: sum over all functions; code outside functions counts as one more when it decides anything.
        histogram: how many functions have each complexity.
        nesting: deepest nesting of blocks in any function.
        worst: the functions that lead in complexity, nesting, length or parameters, most complex first.
        public: public modules, classes and functions, which should have a docstring.
        undocumented: the first of those without one; `undocumented_count` counts all.
        imports: import statements of any kind.
    """

    path: str
    problem: str = ""
    lines: int = 0
    code_lines: int = 0
    complexity: int = 0
    histogram: dict[int, int] = {}
    nesting: int = 0
    worst: tuple[FunctionMeasure, ...] = ()
    public: int = 0
    undocumented: tuple[Undocumented, ...] = ()
    undocumented_count: int = 0
    imports: int = 0

    @property
    def functions(self) -> int:
        """How many functions it has."""
        return sum(self.histogram.values())

    @property
    def complexity_max(self) -> int:
        """Complexity of its most complex function."""
        return max(self.histogram, default=0)


class Surveyed(Value):
    """Result of `survey`: one batch of files, measured but for those that are named."""

    unmeasured: tuple[FileMeasure, ...] = ()
    spans: tuple[Span, ...]


# --------------------------------------------------------------------------------------------------------- linker


class Import(Value):
    """One import statement, as written.

    Attributes:
        target: `a.b` of `import a.b` and `from a.b import c`; relative ones keep their dots.
        names: what stands after `from ... import`; empty for a plain `import`.
        line: where it stands.
        when: when it runs.
    """

    target: str
    names: tuple[str, ...] = ()
    line: int
    when: When = "import"


class ImportList(Value):
    """The imports of one file; empty when it cannot be parsed."""

    path: str
    imports: tuple[Import, ...] = ()


class Listed(Value):
    """Result of `list_imports`: one batch of files, read."""

    files: tuple[ImportList, ...]
    span: Span


class Edge(NamedTuple):
    """One module imports another; both are positions in `ImportGraph.modules`. Travels as a short list."""

    importer: int
    imported: int
    line: int
    when: When


class Module(NamedTuple):
    """A node of the import graph."""

    name: str
    path: str


class Cycle(Value):
    """Modules that import each other, all of them at import time unless `deferred`.

    Attributes:
        members: every module of the knot.
        loop: a shortest way round, edge by edge.
        deferred: the loop closes only through imports inside functions or under TYPE_CHECKING: importing is safe.
    """

    members: tuple[int, ...]
    loop: tuple[Edge, ...]
    deferred: bool = False


class Loop(Value):
    """A cycle as one of its files sees it: the way round from this module, and the line that enters it."""

    names: tuple[str, ...]
    line: int


class ImportGraph(Value):
    """Who imports whom inside the tree. Between two modules there is one edge, the one that runs first.

    Attributes:
        edges_left_out: edges that were cut from `edges` to keep the result small; cycles are found over all of them.
    """

    modules: tuple[Module, ...]
    edges: tuple[Edge, ...]
    cycles: tuple[Cycle, ...] = ()
    edges_left_out: int = 0

    def loop_names(self, cycle: Cycle) -> list[str]:
        """The loop as names; the first is repeated at the end."""
        return [self.modules[edge.importer].name for edge in (*cycle.loop, cycle.loop[0])]

    def loops(self) -> dict[str, Loop]:
        """For each file on the loop of an import-time cycle, that loop seen from the file."""
        seen: dict[str, Loop] = {}
        for cycle in self.cycles:
            names = self.loop_names(cycle)[:-1]
            for at, edge in enumerate(cycle.loop):
                if not cycle.deferred:
                    turned = (*names[at:], *names[: at + 1])
                    seen.setdefault(self.modules[edge.importer].path, Loop(names=turned, line=edge.line))
        return seen


class GraphSummary(Value):
    """What an import graph comes to, in numbers."""

    modules: int
    imports: int
    cycles: int

    @classmethod
    def of(cls, graph: ImportGraph) -> GraphSummary:
        """Count."""
        return cls(
            modules=len(graph.modules),
            imports=len(graph.edges) + graph.edges_left_out,
            cycles=sum(not cycle.deferred for cycle in graph.cycles),
        )


class Linked(Value):
    """Result of `link`."""

    graph: ImportGraph
    spans: tuple[Span, ...]


# ------------------------------------------------------------------------------------------------------- reviewer


class Remark(Value):
    """One sentence of the review, the place it is about, and the number it rests on."""

    path: str
    line: int
    rule: str
    measured: int
    limit: int
    text: str


# --------------------------------------------------------------------------------------------------------- editor


class ChangeLogRow(Value):
    """One change of the workspace, as the report shows it.

    Attributes:
        revision: of the whole workspace.
        at: seconds since the epoch.
        kind: what was done, as events name it: `append`, `patch`, `transition`.
        name: of the log, path or state machine.
        version: of that, after the change; of a log the number of its newest entry.
        description: what it was changed to, for people.
    """

    revision: int
    at: float
    agent: str
    kind: str
    name: str
    version: int
    description: str


class ChangeCount(Value):
    """How often one agent has done one thing to one part of the workspace."""

    agent: str
    kind: str
    name: str
    changes: int


class ChangeLog(Value):
    """The events of a session's workspace.

    Attributes:
        changes: how many there were in all.
        counters: numbers that the document holds, by path.
        rows: the first and the last of them, oldest first.
        left_out: how many are not among the rows.
        change_counts: of all events that were kept.
    """

    session: str
    changes: int
    counters: dict[str, int]
    rows: tuple[ChangeLogRow, ...]
    left_out: int
    change_counts: tuple[ChangeCount, ...]


class Audit(Value):
    """Everything the report is made of.

    Attributes:
        reviewed: files that a reviewer looked at, the worst first.
        review_rate: how often the reviewer may start, as declared.
        planted: agent that was told to fail once; empty when none was.
        change_log: what was changed in the session's workspace, by whom.
    """

    tree: Tree
    files: tuple[FileMeasure, ...]
    graph: ImportGraph
    remarks: tuple[Remark, ...]
    reviewed: tuple[str, ...]
    review_rate: str
    planted: str
    spans: tuple[Span, ...]
    change_log: ChangeLog


class AuditResult(Value):
    """Result of `audit`, the root task: where the report is, and what it took."""

    markdown: str
    html: str
    files: int
    functions: int
    cycles: int
    remarks: int
    tasks: int
    attempts: int
    changes: int
    seconds: float
