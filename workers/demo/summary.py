"""Computes the totals, rankings and sentences that both reports share."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.workers.demo.text_format import count

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.workers.demo.models import Audit, Span

AGENTS = ("editor", "scanner", "analyst", "linker", "reviewer")
"""In the order of the reports."""


def colour_of(agent: str) -> str:
    """Return the style class of an agent; agents outside the team share one."""
    return f"a-{agent}" if agent in AGENTS else "a-other"


@dataclass(frozen=True, slots=True)
class AgentShare:
    """Share of one agent in the audit.

    Attributes:
        working_s: time of all its attempts, without those that waited for children.
        workers: number of worker processes that ran it.
    """

    name: str
    tasks: int
    attempts: int
    working_s: float
    workers: int


class AuditSummary:
    """Totals and rankings of an audit."""

    def __init__(self, audit: Audit) -> None:
        files, spans = audit.files, audit.spans
        self.name = audit.tree.package or audit.tree.root.rstrip("/").rpartition("/")[2] or "/"
        self.files = len(files)
        self.lines = sum(file.lines for file in files)
        self.code_lines = sum(file.code_lines for file in files)
        self.functions = sum(file.functions for file in files)
        self.histogram = sum((Counter(file.histogram) for file in files), Counter[int]())
        self.complexity_max = max(self.histogram, default=0)
        self.public = sum(file.public for file in files)
        self.documented = self.public - sum(file.undocumented_count for file in files)
        self.worst_functions = sorted(
            ((file, function) for file in files for function in file.worst),
            key=lambda pair: (-pair[1].complexity, pair[0].path, pair[1].line),
        )
        self.least_documented = sorted(
            (file for file in files if file.undocumented_count), key=lambda f: (-f.undocumented_count, f.path)
        )
        self.unmeasured = [(file.path, file.problem) for file in files if file.problem]
        self.unmeasured += [(skipped.path, f"skipped: {skipped.reason}") for skipped in audit.tree.skipped]
        if audit.tree.truncated:
            self.unmeasured.append(("…", "the tree is too large for one audit; later files were not audited"))
        self.cycles = [cycle for cycle in audit.graph.cycles if not cycle.deferred]
        self.deferred = [cycle for cycle in audit.graph.cycles if cycle.deferred]
        self.agents = _shares(spans)
        self.workers = len({span.worker for span in spans})
        self.tasks = len(spans)
        self.attempts = sum(span.attempt for span in spans)
        self.started = min((span.started for span in spans), default=0.0)
        self.seconds = max((span.ended for span in spans), default=0.0) - self.started
        self.retried = [span for span in spans if span.attempt > 1]

    @property
    def effort(self) -> str:
        """Tasks, attempts and workers, to begin a sentence with."""
        workers = count(self.workers, "worker process", "worker processes")
        return f"{count(self.tasks, 'task')} in {count(self.attempts, 'attempt')} on {workers}"

    def more_complex_than(self, limit: int) -> int:
        """Count the functions above a complexity."""
        return sum(number for complexity, number in self.histogram.items() if complexity > limit)


def _shares(spans: tuple[Span, ...]) -> list[AgentShare]:
    known = {span.agent for span in spans}
    names = [name for name in AGENTS if name in known] + sorted(known.difference(AGENTS))
    return [_share(name, [span for span in spans if span.agent == name]) for name in names]


def _share(name: str, spans: list[Span]) -> AgentShare:
    return AgentShare(
        name=name,
        tasks=len(spans),
        attempts=sum(span.attempt for span in spans),
        working_s=sum(span.ended - span.started for span in spans if not span.joins),
        workers=len({span.worker for span in spans}),
    )


def describe_retry(span: Span, *, planted: str) -> str:
    """Describe a task that took more than one attempt."""
    before = "The attempt before failed" if span.attempt == 2 else f"The {span.attempt - 1} attempts before failed"
    why = " on purpose, to show what a retry looks like (a planted failure)" if span.agent == planted else ""
    how = ", which found the finished children of the first and read nothing twice" if span.joins else ""
    return f"`{span.agent}` finished {span.what} at attempt {span.attempt}{how}. {before}{why}."


def describe_repeats(spans: Iterable[Span]) -> str:
    """Describe workspace changes that later attempts repeated."""
    again = sum(span.repeated for span in spans)
    if not again:
        return "No attempt repeated one of them."
    return f"{count(again, 'change')} were repeated by a later attempt and changed nothing."
