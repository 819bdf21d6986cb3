"""The dashboard and the alerts use the metrics that are exported, with their labels, and leave none out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from orchestrator.monitoring.catalogue import BY_NAME, METRICS
from tests.docs.pages import anchors
from tools.alert_rules import SOURCE, rules
from tools.grafana import TARGET, panels, rendered

ROOT: Final = Path(__file__).parents[2]
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
    return found | {rule.name: rule.expression for rule in rules()}


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
        labels = {"prefix", "pool"} | set.intersection(*(set(BY_NAME[name].labels) for name in _used(expression)))
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
    """An alert has a severity, two texts and a section of the manual that exists."""
    alerts = [rule for rule in rules() if rule.severity]
    assert len(alerts) > 20
    assert {rule.severity for rule in alerts} == {"critical", "warning", "info"}
    for alert in alerts:
        page, _, section = alert.runbook.partition("#")
        assert section in anchors(page), alert.name
        assert alert.summary, alert.name
        assert alert.description, alert.name


def test_the_rules_are_read_completely() -> None:
    """The reader finds each rule that the file has."""
    text = SOURCE.read_text(encoding="utf-8")
    assert [rule.name for rule in rules()] == re.findall(r"- (?:alert|record): (\S+)", text)
