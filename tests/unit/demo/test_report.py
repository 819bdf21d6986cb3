"""Both reports: they name exactly what was planted, and nothing foreign in them comes alive."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from orchestrator.workers.demo.charts import graph_svg, histogram_svg, timeline_svg
from orchestrator.workers.demo.cycles import find_cycles
from orchestrator.workers.demo.imports import build_graph, read_imports
from orchestrator.workers.demo.measure import Unparsable, measure_text, parse
from orchestrator.workers.demo.models import (
    Audit,
    ChangeCount,
    ChangeLog,
    ChangeLogRow,
    Edge,
    FileMeasure,
    ImportGraph,
    ImportList,
    Module,
    Span,
)
from orchestrator.workers.demo.report import write_report
from orchestrator.workers.demo.review import remarks_on, worst_files
from orchestrator.workers.demo.source import Unreadable, read_source, scan_tree
from tests.unit.demo.html_page import Page

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.demo.conftest import WriteTree

STARTED = 1_750_000_000.0


def spans() -> tuple[Span, ...]:
    """A short day of two workers: one waits, one fails once."""
    return (
        span("editor", "w1", 0.0, 5.0, joins=True),
        span("analyst", "w1", 0.1, 0.4),
        span("analyst", "w2", 0.1, 0.2),
        span("linker", "w2", 1.0, 1.1, attempt=2, joins=True),
        span("reviewer", "w2", 2.0, 2.0),
        span("<script>alert(1)</script>", "<b>w3</b>", 2.0, 3.0),
    )


def span(agent: str, worker: str, started: float, ended: float, *, attempt: int = 1, joins: bool = False) -> Span:
    """One bar of the timeline."""
    return Span(
        agent=agent,
        worker=worker,
        task="t",
        what=f"work of {agent}",
        started=STARTED + started,
        ended=STARTED + ended,
        attempt=attempt,
        joins=joins,
    )


def audit_of(root: Path) -> Audit:
    """What the agents would put together, without them."""
    tree = scan_tree(root)
    files, lists = [], []
    for path in tree.files:
        try:
            text = read_source(root, path)
            files.append(measure_text(path, text))
            lists.append(ImportList(path=path, imports=read_imports(parse(text))))
        except Unreadable as reason:
            files.append(FileMeasure(path=path, problem=str(reason)))
        except Unparsable:
            pass
    graph = build_graph(tree, lists)
    loops = graph.loops()
    worst = worst_files(files, loops, most=20)
    return Audit(
        tree=tree,
        files=tuple(files),
        graph=graph,
        remarks=tuple(remark for file in worst for remark in remarks_on(file, loops.get(file.path))),
        reviewed=tuple(file.path for file in worst),
        review_rate="6/s",
        planted="linker",
        spans=spans(),
        change_log=change_log(),
    )


def change_log(**given: Any) -> ChangeLog:
    """A short log of changes, some by nobody known."""
    agents = ("editor", "analyst", "<script>alert(1)</script>", "")
    rows = tuple(row(number, agent) for number, agent in enumerate(agents, 1))
    change_counts = tuple(ChangeCount(agent=agent, kind="append", name="measures", changes=1) for agent in agents)
    counters = {"files_measured": 2}
    made = ChangeLog(session="s<i>1", changes=4, counters=counters, rows=rows, left_out=0, change_counts=change_counts)
    return made.model_copy(update=given)


def row(revision: int, agent: str, told: str = "a.py: 1 line") -> ChangeLogRow:
    """One change."""
    at = STARTED + revision / 10
    return ChangeLogRow(
        revision=revision, at=at, agent=agent, kind="append", name="measures", version=revision, description=told
    )


def reports_of(root: Path, out: Path) -> tuple[str, str]:
    """Write both reports and read them."""
    result = write_report(audit_of(root), out)
    assert (result.markdown, result.html) == (str(out / "REPORT.md"), str(out / "report.html"))
    assert sorted(path.name for path in out.iterdir()) == ["REPORT.md", "report.html"]
    return (out / "REPORT.md").read_text(), (out / "report.html").read_text()


PLANTED: dict[str, str | bytes] = {
    "shop/__init__.py": '"""A shop."""\n',
    "shop/cart.py": '"""Carts."""\n\nfrom shop import price\n\n\ndef total(items):\n    return price.of(items)\n',
    "shop/price.py": '"""Prices."""\n\nimport os\nfrom .cart import total\n\n\ndef of(items):\n    """Price."""\n'
    + "".join(f"    if items == {n}:\n        return {n}\n" for n in range(12)),
    "shop/safe.py": '"""Nothing wrong here."""\n',
}


def test_the_reports_name_exactly_what_was_planted(write_tree: WriteTree, tmp_path: Path) -> None:
    """One cycle, one complexity, one missing docstring: each is in both reports, with its place, and no other is."""
    markdown, html = reports_of(write_tree(PLANTED), tmp_path / "out")
    page = Page(html).text
    assert "`shop.cart` → `shop.price` → `shop.cart` (imports at `shop/cart.py:3`, `shop/price.py:4`)" in markdown
    assert "| import cycles | 1 |" in markdown
    assert "shop.cart → shop.price → shop.cart" in page
    assert "shop/cart.py:3, shop/price.py:4" in page
    assert "| highest complexity | 13 |" in markdown
    assert "| `of` | `shop/price.py:7` | 13 | 1 | 26 |" in markdown
    assert "`of` has a complexity of 13" in markdown
    assert "of has a complexity of 13" in page
    assert "| public names with a docstring | 5 of 6 (83 %) |" in markdown
    assert "| `shop/cart.py` | 1 of 2 | `total` (line 6) |" in markdown
    assert "total line 6" in page
    assert "safe" not in markdown
    assert "planted failure" in markdown
    assert "planted failure" in page


def test_a_tree_without_faults_is_told_so(write_tree: WriteTree, tmp_path: Path) -> None:
    """Nothing is invented where nothing is wrong."""
    markdown, html = reports_of(write_tree({"good.py": '"""Good."""\n'}), tmp_path / "out")
    for report in (markdown, Page(html).text):
        assert "Nothing stands out: no file exceeds a limit." in report
        assert "None: every module can be imported first." in report
        assert "Not measured" not in report


HARMLESS = {"h1", "h2", "h3", "p", "code", "table", "thead", "tbody", "tr", "th", "td", "ul", "li"}

HOSTILE: dict[str, str | bytes] = {
    "<img src=x onerror=alert(1)>.py": "def <script>:\n",
    "<i>*bold*/__init__.py": "from . import a\n",
    "<i>*bold*/a.py": "from . import b\n",
    "<i>*bold*/b.py": "from . import a\n" + "def f(a):\n" + "".join(f"    if a: a={n}\n" for n in range(20)),
    "`tick`|pipe|\n# heading.py": "def g(:\n",
    "\u202ecod.py": "x = 1\n",
    "\x1b[31mred.py": "def h(a):\n    return a\n",
    "[link](javascript:alert(1)).py": b"\xff\xfe",
    "&amp;.py": "x = '\0'\n",
    "huge.py": b"#" * 1_000_001,
    "empty.py": "",
}


def test_hostile_names_stay_text(write_tree: WriteTree, tmp_path: Path) -> None:
    """File names that look like markup or terminal codes are shown, never interpreted."""
    markdown, html = reports_of(write_tree(HOSTILE), tmp_path / "out")
    page = Page(html)
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "img", "iframe", "object", "link", "b>"})
    assert "<img src=x onerror=alert(1)>.py" in page.text
    assert "\\u202ecod.py" in page.text
    assert "\\x1b[31mred.py" in page.text
    assert "larger than 1,000,000 bytes" in page.text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e]", html + markdown)
    rendered = Page(MarkdownIt("commonmark").enable("table").render(markdown))
    assert {tag for tag, _ in rendered.tags} <= HARMLESS
    assert "<img src=x onerror=alert(1)>.py" in rendered.text
    assert "`tick`|pipe|\\n# heading.py" in rendered.text


def test_the_page_stands_alone(write_tree: WriteTree, tmp_path: Path) -> None:
    """No script, nothing fetched, both colour schemes, titles on pictures; the browser is told to keep it so."""
    _, html = reports_of(write_tree(PLANTED), tmp_path / "out")
    page = Page(html)
    assert (
        "meta",
        {"http-equiv": "Content-Security-Policy", "content": "default-src 'none'; style-src 'unsafe-inline'"},
    ) in (page.tags)
    for tag, attributes in page.tags:
        assert tag != "script"
        assert not any(name in {"src", "href", "action"} or name.startswith("on") for name in attributes)
    assert "http" not in html.replace("http-equiv", "")
    assert "@import" not in html
    assert re.findall(r"url\((.)", html) == ["#"] * html.count("url(")
    assert "prefers-color-scheme: dark" in html
    pictures = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert [picture["class"] for picture in pictures] == ["graph", "histogram", "timeline"]
    ids = {attributes.get("id") for _, attributes in page.tags}
    for picture in pictures:
        assert picture["role"] == "img"
        assert ids.issuperset(picture["aria-labelledby"].split())


def test_the_event_log_is_shown(write_tree: WriteTree, tmp_path: Path) -> None:
    """Each change is a row with agent, version and time; there is a choice for each agent, and all are chosen."""
    markdown, html = reports_of(write_tree(PLANTED), tmp_path / "out")
    page = Page(html)
    assert "4 changes of the workspace of session `s<i>1`. No attempt repeated one of them." in markdown
    assert "| `analyst` | append | `measures` | 1 |" in markdown
    assert "session s<i>1" in page.text
    assert "Counted there: files_measured 2." in page.text
    rows = [attributes["class"] for tag, attributes in page.tags if tag == "tr" and attributes.get("class")]
    assert rows == ["a-editor", "a-analyst", "a-other", "a-other"]
    buttons = [attributes for tag, attributes in page.tags if tag == "input"]
    assert [(button["value"], "checked" in button) for button in buttons] == [
        ("all", True), ("a-editor", False), ("a-analyst", False), ("a-other", False),
    ]  # fmt: skip
    for button in buttons[1:]:
        chosen, others = f'[value="{button["value"]}"]:checked', f"tr:not(.{button['value']})"
        assert f".change-log:has({chosen}) tbody {others}" in html


def test_a_long_event_log_is_cut(write_tree: WriteTree, tmp_path: Path) -> None:
    """What has no row is counted, and repeated changes are told of."""
    audit = audit_of(write_tree({"a.py": '"""A."""\n'}))
    repeated = span("linker", "w1", 0.0, 1.0, attempt=2).model_copy(update={"repeated": 3})
    spans = (*audit.spans, repeated)
    long = audit.model_copy(update={"spans": spans, "change_log": change_log(changes=1204, left_out=1200)})
    assert write_report(long, tmp_path / "out").changes == 1204
    page = Page((tmp_path / "out" / "report.html").read_text())
    assert "And 1,200 more in between." in page.text
    assert "3 changes were repeated by a later attempt and changed nothing." in page.text


def test_a_second_run_replaces_the_reports(write_tree: WriteTree, tmp_path: Path) -> None:
    """The same folder may be written again, and holds the two reports alone."""
    root = write_tree({"a.py": '"""A."""\n'})
    first, _ = reports_of(root, tmp_path / "out")
    write_tree({"b.py": '"""B."""\n'})
    second, _ = reports_of(root, tmp_path / "out")
    assert "| files | 1 |" in first
    assert "| files | 2 |" in second


# -------------------------------------------------------------------------------------------------------- pictures


def shapes(svg: str, kind: str) -> list[ET.Element]:
    """Elements of a picture with a class; parsing proves that it is well formed."""
    return [element for element in ET.fromstring(svg).iter() if kind in element.get("class", "").split()]


def boxes_of(svg: str) -> dict[str, tuple[float, float, float]]:
    """Left edge, top and width of each node."""
    boxes = {}
    for node in shapes(svg, "node"):
        box = node.find("rect")
        assert box is not None
        boxes[node.get("id", "")] = (float(box.get("x", "")), float(box.get("y", "")), float(box.get("width", "")))
    return boxes


def assert_apart(boxes: dict[str, tuple[float, float, float]]) -> None:
    """No box overlaps another or leaves the page."""
    assert min(x for x, _, _ in boxes.values()) >= 0
    assert max(x + width for x, _, width in boxes.values()) <= 1080
    for (x, y, width), (x2, y2, _) in pairwise(sorted(boxes.values(), key=lambda box: (box[1], box[0]))):
        assert x + width <= x2 or y + 22 <= y2


@given(st.lists(st.integers(1, 40), min_size=2, max_size=60), st.booleans())
def test_boxes_stay_apart_whatever_their_names(lengths: list[int], ring: bool) -> None:  # noqa: FBT001
    """A row of any names is cut into lines that fit, inside a knot and outside."""
    modules = tuple(Module("x" * length, f"{number}.py") for number, length in enumerate(lengths))
    edges = [Edge(0, number, 1, "import") for number in range(1, len(lengths))]
    edges += [Edge(number, 0, 1, "import") for number in range(1, len(lengths)) if ring]
    graph = ImportGraph(modules=modules, edges=tuple(edges), cycles=tuple(find_cycles(edges)))
    boxes = boxes_of(graph_svg(graph, package=""))
    assert len(boxes) == len(lengths)
    assert_apart(boxes)


def test_the_graph_draws_importers_above_and_marks_the_loop() -> None:
    """Importers stand higher, the shortest loop is marked, and boxes neither overlap nor leave the page."""
    edges = [Edge(0, 1, 1, "import"), Edge(1, 2, 1, "import"), Edge(2, 1, 1, "import"), Edge(2, 3, 1, "import")]
    edges += [Edge(0, 3, 1, "import"), Edge(3, 0, 1, "lazy")]
    edges += [Edge(0, n, 1, "import") for n in range(4, 90)]
    modules = tuple(Module(f"pkg.m{n}{'_' * (n * 7 % 24)}", f"{n}.py") for n in range(90))
    graph = ImportGraph(modules=modules, edges=tuple(edges), cycles=tuple(find_cycles(edges)))
    svg = graph_svg(graph, package="pkg")
    boxes = boxes_of(svg)
    assert len(boxes) == 60
    assert boxes["node-0"][1] < boxes["node-1"][1] < boxes["node-3"][1]
    assert_apart(boxes)
    assert len(shapes(svg, "loop")) == 2
    assert len(shapes(svg, "knot")) == 1
    assert len(shapes(svg, "knotted")) == 2
    assert [e.find("title").text for e in shapes(svg, "implied")] == [  # type: ignore[union-attr]
        "pkg.m0 imports pkg.m3_____________________ (0.py:1)"
    ]


def test_the_histogram_counts_every_function_once() -> None:
    """The numbers above the columns add up to all functions."""
    svg = histogram_svg({1: 5, 2: 1, 10: 2, 11: 3, 20: 1, 51: 1, 500: 2})
    values = [int(element.text or "") for element in shapes(svg, "value")]
    assert values == [5, 1, 0, 0, 0, 2, 3, 1, 0, 0, 3]


def test_the_timeline_has_a_band_per_worker_and_a_bar_per_task() -> None:
    """Bars of one lane follow each other, the retried attempt is marked, unknown agents have a colour too."""
    svg = timeline_svg(spans())
    assert len(shapes(svg, "band")) == 3
    bars = shapes(svg, "bar")
    assert len(bars) == 6
    assert [mark.text for mark in shapes(svg, "again")] == ["↻ 2"]
    assert len(shapes(svg, "a-other")) == 1
    assert len(shapes(svg, "joins")) == 2
    lanes: dict[str, list[tuple[float, float]]] = {}
    for bar in bars:
        x, width = float(bar.get("x", "")), float(bar.get("width", ""))
        lanes.setdefault(bar.get("y", ""), []).append((x, x + width))
    for lane in lanes.values():
        for (_, end), (start, _) in pairwise(sorted(lane)):
            assert end <= start + 1.5  # the shortest bars are drawn a little wider than they lasted


@pytest.mark.parametrize("many", [1, 5000])
def test_pictures_of_any_size_are_drawn(many: int) -> None:
    """One task or thousands: the picture is well formed and not larger than it need be."""
    svg = timeline_svg([span("analyst", f"w{n % 3}", n / 100, n / 100 + 0.02) for n in range(many)])
    assert 1 <= len(shapes(svg, "bar")) <= 2000
