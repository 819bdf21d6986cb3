"""Arguments and results of the demo's agents, small enough for a task record."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

When = Literal["import", "lazy", "typing"]
"""Time at which an import statement runs: with the module, inside a function, or never (for type checkers)."""


class Value(BaseModel):
    """Base of all values: frozen, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Span(Value):
    """Times the last attempt of one task.

    Attributes:
        started, ended: seconds since the epoch.
        joins: the task mostly waited for its children.
        repeated: workspace changes that an earlier attempt had made already.
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
    """A path that was not audited, and the reason."""

    path: str
    reason: str


class Tree(Value):
    """The Python files below one folder, in path order.

    Attributes:
        package: dotted name of the folder; empty if it is no package.
        files: paths below the root, with forward slashes.
        skipped: paths that were not audited, 100 at most.
        truncated: a limit was reached, and later files are missing.
    """

    root: str
    package: str
    files: tuple[str, ...]
    skipped: tuple[Skipped, ...] = ()
    truncated: bool = False

    def batches(self, size: int) -> list[tuple[str, ...]]:
        """Split the files into batches."""
        return [self.files[start : start + size] for start in range(0, len(self.files), size)]


class Found(Value):
    """Result of `scan`."""

    tree: Tree
    span: Span


# -------------------------------------------------------------------------------------------------------- analyst


class FunctionMeasure(Value):
    """Measure of one function or method.

    Attributes:
        name: qualified inside its module.
        complexity: McCabe's number.
        parameters: all that a caller may pass, without `self` and `cls`.
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
    """Measure of one file. Lists are cut; counts include everything.

    Attributes:
        problem: reason why the file could not be measured, or empty.
        code_lines: lines that are neither blank nor comment nor docstring.
        complexity: sum over all functions, and over code outside functions that has branches.
        histogram: number of functions by complexity.
        worst: the functions that lead in complexity, nesting, length or parameters, most complex first.
        public: public modules, classes and functions, which should have a docstring.
        undocumented: the first public names without a docstring; `undocumented_count` counts all.
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
        """Number of functions."""
        return sum(self.histogram.values())

    @property
    def complexity_max(self) -> int:
        """Complexity of the most complex function."""
        return max(self.histogram, default=0)


class Surveyed(Value):
    """Result of `survey`: the time spans of one batch, and the files whose task failed."""

    unmeasured: tuple[FileMeasure, ...] = ()
    spans: tuple[Span, ...]


# --------------------------------------------------------------------------------------------------------- linker


class Import(Value):
    """One import statement.

    Attributes:
        target: `a.b` of `import a.b` and of `from a.b import c`; relative ones keep their dots.
        names: names after `from … import`; empty for a plain `import`.
    """

    target: str
    names: tuple[str, ...] = ()
    line: int
    when: When = "import"


class ImportList(Value):
    """The imports of one file; empty if it cannot be parsed."""

    path: str
    imports: tuple[Import, ...] = ()


class Listed(Value):
    """Result of `list_imports`: the imports of one batch."""

    files: tuple[ImportList, ...]
    span: Span


class Edge(NamedTuple):
    """One module imports another; both are positions in `ImportGraph.modules`. A tuple, to stay short as JSON."""

    importer: int
    imported: int
    line: int
    when: When


class Module(NamedTuple):
    """A node of the import graph."""

    name: str
    path: str


class Cycle(Value):
    """Modules that import each other.

    Attributes:
        members: all modules of the group.
        loop: a shortest cycle, edge by edge.
        deferred: the cycle needs imports inside functions or under TYPE_CHECKING, so importing is safe.
    """

    members: tuple[int, ...]
    loop: tuple[Edge, ...]
    deferred: bool = False


class Loop(Value):
    """An import cycle that starts at one module, with the line of that module's import."""

    names: tuple[str, ...]
    line: int


class ImportGraph(Value):
    """The imports inside the tree, one edge between two modules: the import that runs first.

    Attributes:
        edges_left_out: edges that were cut to keep the result small; cycles include them.
    """

    modules: tuple[Module, ...]
    edges: tuple[Edge, ...]
    cycles: tuple[Cycle, ...] = ()
    edges_left_out: int = 0

    def loop_names(self, cycle: Cycle) -> list[str]:
        """Return the loop as names; the first is repeated at the end."""
        return [self.modules[edge.importer].name for edge in (*cycle.loop, cycle.loop[0])]

    def loops(self) -> dict[str, Loop]:
        """Return the import-time loop of each file that is on one."""
        seen: dict[str, Loop] = {}
        for cycle in self.cycles:
            names = self.loop_names(cycle)[:-1]
            for at, edge in enumerate(cycle.loop):
                if not cycle.deferred:
                    turned = (*names[at:], *names[: at + 1])
                    seen.setdefault(self.modules[edge.importer].path, Loop(names=turned, line=edge.line))
        return seen


class GraphSummary(Value):
    """Counts of an import graph."""

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
    """One sentence of the review, with its place and its measured number."""

    path: str
    line: int
    rule: str
    measured: int
    limit: int
    text: str


# --------------------------------------------------------------------------------------------------------- editor


class ChangeLogRow(Value):
    """One change of the workspace.

    Attributes:
        revision: revision of the whole workspace.
        at: seconds since the epoch.
        kind: kind of the event: `append`, `patch`, `transition`.
        name: log, path or state machine.
        version: its version after the change; for a log, the number of its newest entry.
    """

    revision: int
    at: float
    agent: str
    kind: str
    name: str
    version: int
    description: str


class ChangeCount(Value):
    """Number of changes of one kind by one agent to one part of the workspace."""

    agent: str
    kind: str
    name: str
    changes: int


class ChangeLog(Value):
    """The events of a session's workspace.

    Attributes:
        changes: number of all events.
        counters: numbers in the document, by path.
        rows: the first and the last events, oldest first.
        left_out: number of events between those.
    """

    session: str
    changes: int
    counters: dict[str, int]
    rows: tuple[ChangeLogRow, ...]
    left_out: int
    change_counts: tuple[ChangeCount, ...]


class Audit(Value):
    """All inputs of the report.

    Attributes:
        reviewed: reviewed files, the worst first.
        review_rate: rate limit of the reviewer.
        planted: agent that fails once on purpose; empty if none does.
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
    """Result of `audit`, the root task."""

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
