"""The dashboard and the alerts use the metrics that are exported, with their labels, and leave none out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from orchestrator.monitoring.catalogue import BY_NAME, METRICS
from tools.grafana import TARGET, panels, rendered

ROOT: Final = Path(__file__).parents[2]
ALERTS: Final = (ROOT / "config" / "prometheus" / "alerts.yml").read_text(encoding="utf-8")
ADDED: Final = {"instance", "job"}
"""Labels that Prometheus adds to every series."""


def _expressions() -> dict[str, str]:
    """Return every PromQL expression by the panel or alert that has it."""
    found = {
        f"panel {panel.title!r}, {number}": query
        for panel in panels()
        for number, (query, _) in enumerate(panel.queries)
    }
    assert len({panel.title for panel in panels()}) == len(panels())
    rules = re.split(r"^ {6}- (?=alert:|record:)", ALERTS, flags=re.MULTILINE)[1:]
    for rule in rules:
        name, rest = rule.split("\n", 1)
        expression = re.search(r"expr: (?:>-\n)?(.*?)(?=\n +(?:for|labels|annotations):|\Z)", rest, re.DOTALL)
        assert expression, name
        found[name] = expression[1]
    return found


def _used(expression: str) -> set[str]:
    """Return the metrics in an expression, a histogram by its name without suffix."""
    names = set(re.findall(r"\borc_[a-z0-9_]+", expression))
    return {name if name in BY_NAME else re.sub(r"_(?:bucket|sum|count)$", "", name) for name in names}


def test_every_metric_is_exported() -> None:
    """A panel or alert names only metrics of the catalogue."""
    for place, expression in _expressions().items():
        used = _used(expression)
        assert used, place
        assert used <= BY_NAME.keys(), (place, used - BY_NAME.keys())


def test_every_metric_is_shown() -> None:
    """No metric is exported that neither the dashboard nor an alert uses."""
    used = set().union(*map(_used, _expressions().values()))
    assert used == {metric.name for metric in METRICS}


def test_every_label_exists() -> None:
    """Labels that an expression groups or selects by belong to all metrics that it names."""
    for place, expression in _expressions().items():
        labels = {"pool"} | set.intersection(*(set(BY_NAME[name].labels) for name in _used(expression)))
        histogram = any(BY_NAME[name].type == "histogram" for name in _used(expression))
        known = labels | ADDED | ({"le"} if histogram else set())
        grouped = re.findall(r"\b(?:by|on) \(([^)]*)\)", expression)
        selected = re.findall(r'(\w+)=~?"', expression)
        asked = {label.strip() for group in grouped for label in group.split(",")} | set(selected)
        assert asked <= known, (place, asked - known)


def test_every_value_exists() -> None:
    """A selector names a value that the metric has."""
    for place, expression in _expressions().items():
        for name, _, value in re.findall(r'(orc_[a-z0-9_]+)\{(?:[^}]*, )?(\w+)="([^"]*)"', expression):
            assert value in BY_NAME[name].values, place


def test_legends_name_labels_of_the_result() -> None:
    """A legend shows a label that the expression keeps."""
    for panel in panels():
        for query, legend in panel.queries:
            kept = {label.strip() for group in re.findall(r"\bby \(([^)]*)\)", query) for label in group.split(",")}
            assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= kept, panel.title


def test_the_file_is_generated() -> None:
    """`make generate` has written the committed dashboard."""
    assert TARGET.read_text(encoding="utf-8") == rendered(), "run `make generate`"


def test_the_dashboard_can_be_provisioned() -> None:
    """It has no id, a fixed uid, a data source that its user chooses, unique ids, and panels that do not overlap."""
    dashboard: dict[str, Any] = json.loads(rendered())
    assert dashboard["id"] is None
    assert dashboard["uid"]
    assert "__inputs" not in dashboard
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["datasource"]["uid"] == "${datasource}"


def test_every_alert_has_a_runbook() -> None:
    """An alert has a severity, a sentence and a section of the manual that exists."""
    blocks = ALERTS.split("- alert: ")[1:]
    assert len(blocks) > 20
    page = (ROOT / "docs" / "guides" / "operations.md").read_text(encoding="utf-8")
    headings = {
        re.sub(r"[^a-z0-9 -]", "", line[3:].lower()).replace(" ", "-")
        for line in page.splitlines()
        if line.startswith("## ")
    }
    for block in blocks:
        name = block.split("\n", 1)[0]
        assert re.search(r"severity: (?:critical|warning|info)\b", block), name
        assert "summary: " in block, name
        assert "description: " in block, name
        runbook = re.search(r"runbook: docs/guides/operations\.md#(\S+)", block)
        assert runbook, name
        assert runbook[1] in headings, (name, runbook[1])
