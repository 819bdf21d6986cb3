"""Draws the three pictures of the report as SVG: import graph, complexity histogram and timeline.

Each function turns values into markup without a script. Colours come from the style sheet of the page; every shape has
a title.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from orchestrator.workers.demo.layout import place
from orchestrator.workers.demo.markup import Markup, el, join, raw
from orchestrator.workers.demo.summary import colour_of
from orchestrator.workers.demo.text_format import count, seconds, shortened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.workers.demo.layout import Arrow, Placed
    from orchestrator.workers.demo.models import Edge, ImportGraph, Span

WIDTH: Final = 1080.0


def _picture(name: str, title: str, description: str, height: float, *content: Markup) -> Markup:
    return el(
        "svg",
        el("title", title, id=f"{name}-title"),
        el("desc", description, id=f"{name}-desc"),
        *content,
        class_=name,
        viewBox=f"0 0 {WIDTH:.0f} {height:.0f}",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
    )


# ---------------------------------------------------------------------------------------------------- import graph

MAX_NODES: Final = 60
NODE_HEIGHT: Final = 22.0
LABEL: Final = 28
LETTER: Final = 6.5
GAP: Final = 12.0
ROW_GAP: Final = 46.0
LINE_GAP: Final = 10.0
KNOT_GAP: Final = 26.0
KNOT_EDGE: Final = 18.0
KNOT_WIDTH: Final = 860.0


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of the drawing."""

    x: float
    y: float
    width: float
    height: float = NODE_HEIGHT

    @property
    def middle(self) -> float:
        """The horizontal centre."""
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        """The lower edge."""
        return self.y + self.height


def graph_svg(graph: ImportGraph, *, package: str) -> Markup:
    """Draw the best connected modules, each above the modules that it imports."""
    drawn = [edge for edge in graph.edges if edge.when == "import"]
    loop = {(edge.importer, edge.imported) for cycle in graph.cycles if not cycle.deferred for edge in cycle.loop}
    knotted = {member for cycle in graph.cycles if not cycle.deferred for member in cycle.members}
    shown = _best_connected(drawn, first={node for arrow in loop for node in arrow})
    edges = {(e.importer, e.imported): e for e in drawn if e.importer in shown and e.imported in shown}
    placed = place(sorted(shown), edges)
    sketch = _Sketch({node: _label(graph.modules[node].name, package) for node in shown}, loop)
    sketch.draw(placed)
    home = {node: number for number, item in enumerate(i for row in placed.rows for i in row) for node in item}
    kinds = {
        arrow: "loop" if arrow in loop else "inner" if home[arrow[0]] == home[arrow[1]] else
        "implied" if arrow in placed.implied else ""
        for arrow in edges
    }  # fmt: skip
    ordered = sorted(edges, key=lambda arrow: (kinds[arrow] == "loop", arrow))
    return _picture(
        "graph",
        "Import graph",
        f"{count(len(shown), 'module')}; a module stands above those it imports. "
        f"{count(len(knotted & shown), 'module')} belong to a cycle.",
        sketch.height,
        _hover_rules(shown),
        el("defs", _arrow_head()),
        *(_knot(box) for box in sketch.knots),
        *(_line(graph, edges[arrow], sketch.boxes, kinds[arrow]) for arrow in ordered),
        *(
            _node(graph, node, sketch.labels[node], sketch.boxes[node], knotted=node in knotted)
            for node in sorted(shown)
        ),
    )


def _best_connected(edges: Sequence[Edge], *, first: set[int]) -> set[int]:
    degree = Counter(node for edge in edges for node in (edge.importer, edge.imported))
    ranked = sorted(degree, key=lambda node: (node not in first, -degree[node], node))
    return set(ranked[:MAX_NODES])


def _label(name: str, package: str) -> str:
    return shortened(name.removeprefix(f"{package}.") if package else name, LABEL)


@dataclass(slots=True)
class _Sketch:
    """Places a box for every node, from top to bottom, and wraps rows that are too wide."""

    labels: Mapping[int, str]
    loop: set[Arrow]
    boxes: dict[int, Box] = field(default_factory=dict)
    knots: list[Box] = field(default_factory=list)
    height: float = 4.0

    def draw(self, placed: Placed) -> None:
        """Place all rows."""
        for row in placed.rows:
            self._lines([item[0] for item in row if len(item) == 1], WIDTH - 8, 4 * GAP, LINE_GAP)
            for item in row:
                if len(item) > 1:
                    self._knot(item)
            self.height += ROW_GAP
        self.height += 6 - ROW_GAP

    def _knot(self, members: list[int]) -> None:
        if self.height > 4 and self.boxes:
            self.height += LINE_GAP
        top = self.height
        self.height += KNOT_EDGE
        # The shortest cycle comes first, in its order, so that it reads as one line of arrows.
        after = {importer: imported for importer, imported in self.loop if importer in members}
        first = min(after, default=members[0])
        way = [first]
        while way[-1] in after and after[way[-1]] not in way:
            way.append(after[way[-1]])
        self._lines([*way, *(node for node in members if node not in way)], KNOT_WIDTH, 3 * GAP, KNOT_GAP)
        self.height += KNOT_EDGE
        left = min(self.boxes[node].x for node in members) - KNOT_EDGE
        right = max(self.boxes[node].x + self.boxes[node].width for node in members) + KNOT_EDGE
        self.knots.append(Box(left, top, right - left, self.height - top))

    def _lines(self, nodes: Sequence[int], room: float, most: float, between: float) -> None:
        for number, line in enumerate(self._wrapped(nodes, room)):
            self.height += between if number else 0
            widths = [self._width(node) for node in line]
            gap = min(most, (room - sum(widths)) / max(1, len(line) - 1))
            x = (WIDTH - sum(widths) - gap * (len(line) - 1)) / 2
            for node, width in zip(line, widths, strict=True):
                self.boxes[node] = Box(x, self.height, width)
                x += width + gap
            self.height += NODE_HEIGHT

    def _wrapped(self, nodes: Sequence[int], room: float) -> list[list[int]]:
        total = sum(self._width(node) + GAP for node in nodes)
        even = total / (total // room + 1)  # lines of about the same width
        lines: list[list[int]] = []
        used = room
        for node in nodes:
            width = self._width(node) + GAP
            if used + width / 2 > even or used + width > room:
                lines.append([])
                used = 0.0
            lines[-1].append(node)
            used += width
        return lines

    def _width(self, node: int) -> float:
        return LETTER * len(self.labels[node]) + 16


def _line(graph: ImportGraph, edge: Edge, boxes: Mapping[int, Box], kind: str) -> Markup:
    importer, imported = graph.modules[edge.importer], graph.modules[edge.imported]
    return el(
        "path",
        el("title", f"{importer.name} imports {imported.name} ({importer.path}:{edge.line})"),
        class_=f"edge {kind} n{edge.importer} n{edge.imported}",
        d=_curve(boxes[edge.importer], boxes[edge.imported]),
        marker_end="url(#arrow)" if kind == "loop" else None,
    )


def _curve(start: Box, end: Box) -> str:
    """Connect two boxes: between lines by a vertical curve, within one line by an arc above it."""
    if start.y == end.y:
        lift = min(24.0, 10 + abs(start.middle - end.middle) / 20)
        lean = 6 if start.middle < end.middle else -6
        y1 = y2 = start.y
        bends = (start.middle + lean, y1 - lift, end.middle - lean, y2 - lift)
        return _bezier(start.middle + lean, y1, bends, end.middle - lean, y2)
    y1, y2 = (start.bottom, end.y) if start.y < end.y else (start.y, end.bottom)
    half = (y2 - y1) / 2
    return _bezier(start.middle, y1, (start.middle, y1 + half, end.middle, y2 - half), end.middle, y2)


def _bezier(x1: float, y1: float, bends: tuple[float, float, float, float], x2: float, y2: float) -> str:
    return "M{:.1f},{:.1f}C{:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f}".format(x1, y1, *bends, x2, y2)


def _knot(box: Box) -> Markup:
    return el("rect", x=box.x, y=box.y, width=box.width, height=box.height, rx=10.0, class_="knot")


def _node(graph: ImportGraph, node: int, label: str, box: Box, *, knotted: bool) -> Markup:
    imports = sum(edge.importer == node and edge.when == "import" for edge in graph.edges)
    imported_by = sum(edge.imported == node and edge.when == "import" for edge in graph.edges)
    told = f"{graph.modules[node].name}: imports {imports}, imported by {imported_by}"
    return el(
        "g",
        el("title", told + (", part of a cycle" if knotted else "")),
        el("rect", x=box.x, y=box.y, width=box.width, height=box.height, rx=6.0),
        el("text", label, x=box.middle, y=box.y + 15, text_anchor="middle"),
        class_="node knotted" if knotted else "node",
        id=f"node-{node}",
    )


def _arrow_head() -> Markup:
    return el(
        "marker",
        el("path", d="M0,0L8,4L0,8Z", class_="head"),
        id="arrow",
        viewBox="0 0 8 8",
        refX=7,
        refY=4,
        markerWidth=9,
        markerHeight=9,
        markerUnits="userSpaceOnUse",
        orient="auto",
    )


def _hover_rules(nodes: set[int]) -> Markup:
    """Highlight the edges of the module under the pointer; without `:has()` nothing changes."""
    rules = "".join(f".graph:has(#node-{n}:hover) .n{n}{{opacity:1;stroke:var(--accent)}}" for n in sorted(nodes))
    return el("style", raw(f".graph:has(.node:hover) .edge{{opacity:.06}}{rules}"))


# ------------------------------------------------------------------------------------------------------ complexity

BINS: Final = ((1, 1), (2, 2), (3, 3), (4, 5), (6, 7), (8, 10), (11, 15), (16, 20), (21, 30), (31, 50), (51, None))
CHART_HEIGHT: Final = 240.0
FLOOR: Final = 200.0


def histogram_svg(histogram: Mapping[int, int]) -> Markup:
    """Draw the number of functions by complexity, on a square root scale so that rare ones are visible."""
    counts = [sum(n for c, n in histogram.items() if low <= c and (high is None or c <= high)) for low, high in BINS]
    most = max(counts, default=0) or 1
    step = WIDTH / len(BINS)
    columns = [
        _column(low, _bin_name(low, high), number, x=at * step, step=step, share=(number / most) ** 0.5)
        for at, ((low, high), number) in enumerate(zip(BINS, counts, strict=True))
    ]
    return _picture(
        "histogram",
        "Distribution of complexity",
        "; ".join(f"complexity {_bin_name(*b)}: {count(n, 'function')}" for b, n in zip(BINS, counts, strict=True)),
        CHART_HEIGHT,
        *columns,
        el("line", x1=0, y1=FLOOR, x2=WIDTH, y2=FLOOR, class_="axis"),
        el("text", "complexity of a function →", x=WIDTH, y=CHART_HEIGHT - 4, text_anchor="end", class_="note"),
    )


def _column(low: int, name: str, number: int, *, x: float, step: float, share: float) -> Markup:
    height = max(share * (FLOOR - 26), 2.0 if number else 0.0)
    middle = x + step / 2
    return el(
        "g",
        el("title", f"{count(number, 'function')} of complexity {name}"),
        el("rect", x=x + 8, y=FLOOR - height, width=step - 16, height=height, rx=3.0, class_=_heat(low)),
        el("text", f"{number:,}", x=middle, y=FLOOR - height - 7, text_anchor="middle", class_="value"),
        el("text", name, x=middle, y=FLOOR + 18, text_anchor="middle"),
    )


def _bin_name(low: int, high: int | None) -> str:
    return f"{low}+" if high is None else str(low) if low == high else f"{low}-{high}"


def _heat(low: int) -> str:
    return "calm" if low <= 5 else "warm" if low <= 10 else "hot" if low <= 20 else "burning"


# -------------------------------------------------------------------------------------------------------- timeline

GUTTER: Final = 86.0
LANE: Final = 13.0
MAX_SPANS: Final = 2000
STEPS: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600)


def timeline_svg(spans: Sequence[Span]) -> Markup:
    """Draw one band per worker process and one bar per task; of very many tasks, the longest."""
    start, end = min(span.started for span in spans), max(span.ended for span in spans)
    scale = (WIDTH - GUTTER - 8) / max(end - start, 0.001)
    drawn = sorted(spans, key=lambda span: (-span.attempt, span.started - span.ended))[:MAX_SPANS]
    bands: list[Markup] = []
    y = 8.0
    for number, worker in enumerate(_by_first_start(drawn), 1):
        lanes = _lanes([span for span in drawn if span.worker == worker])
        height = len(lanes) * LANE + 8
        bands.append(_band(number, worker, lanes, y=y, height=height, start=start, scale=scale))
        y += height + 8
    return _picture(
        "timeline",
        "Who worked when",
        f"{count(len(spans), 'task')} on {count(len(bands), 'worker process', 'worker processes')} within "
        f"{seconds(end - start)}.",
        y + 22,
        *_ticks(end - start, scale, y),
        *bands,
    )


def _by_first_start(spans: Sequence[Span]) -> list[str]:
    return list(dict.fromkeys(span.worker for span in sorted(spans, key=lambda span: span.started)))


def _lanes(spans: Sequence[Span]) -> list[list[Span]]:
    """Put concurrent tasks into separate lanes, tasks that wait for children first."""
    lanes: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (not span.joins, span.started)):
        free = next((lane for lane in lanes if lane[-1].ended <= span.started), None)
        if free is None:
            lanes.append([span])
        else:
            free.append(span)
    return lanes


def _band(
    number: int, worker: str, lanes: Sequence[Sequence[Span]], *, y: float, height: float, start: float, scale: float
) -> Markup:
    bars = [
        _bar(span, x=GUTTER + (span.started - start) * scale, y=y + 4 + at * LANE, width=_width_of(span, scale))
        for at, lane in enumerate(lanes)
        for span in lane
    ]
    return el(
        "g",
        el("rect", x=GUTTER, y=y, width=WIDTH - GUTTER, height=height, rx=4.0, class_="band"),
        el("text", el("title", worker), f"worker {number}", x=GUTTER - 12, y=y + height / 2 + 4, text_anchor="end"),
        *bars,
    )


def _width_of(span: Span, scale: float) -> float:
    """Return the width of a bar, with a minimum so that the shortest is visible."""
    return max(6.0 if span.attempt > 1 else 1.5, (span.ended - span.started) * scale)


def _bar(span: Span, *, x: float, y: float, width: float) -> Markup:
    retried = f", attempt {span.attempt}: the one before failed" if span.attempt > 1 else ""
    told = f"{span.agent}: {span.what} ({seconds(span.ended - span.started)}{retried})"
    kinds = f"bar {colour_of(span.agent)}" + (" joins" if span.joins else "")
    shape = el("rect", el("title", told), x=x, y=y, width=width, height=LANE - 2, rx=1.5, class_=kinds)
    if not retried:
        return shape
    mark = el("text", f"↻ {span.attempt}", x=x - 4, y=y + LANE - 2.5, text_anchor="end", class_="again")
    return join(shape, mark)


def _ticks(length: float, scale: float, bottom: float) -> list[Markup]:
    step = next((step for step in STEPS if length / step <= 12), STEPS[-1])
    return [
        el(
            "g",
            el("line", x1=GUTTER + t * scale, y1=4, x2=GUTTER + t * scale, y2=bottom - 4, class_="grid"),
            el("text", f"{t:g} s", x=GUTTER + t * scale, y=bottom + 12, text_anchor="middle"),
        )
        for t in (round(n * step, 1) for n in range(int(length / step) + 1))
    ]
