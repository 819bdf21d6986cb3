"""Reads the rules of `config/prometheus/alerts.yml`, as far as the reference page and the tests need them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[1] / "config" / "prometheus" / "alerts.yml"
_RULE: Final = re.compile(r"^ {6}- (?=alert:|record:)", re.MULTILINE)
_END: Final = r"(?=\n +(?:for|labels|annotations):|\n *\n|\Z)"


@dataclass(frozen=True, slots=True)
class Rule:
    """A recording rule or an alert.

    Attributes:
        name: of the alert, or of the recorded series.
        expression: PromQL.
        severity: critical, warning or info; None for a recording rule.
        summary: with templates in double braces.
        description: more sentences.
        runbook: page and section, as `docs/guides/operations.md#tasks-wait`.
    """

    name: str
    expression: str
    severity: str | None
    summary: str
    description: str
    runbook: str


def rules(text: str | None = None) -> list[Rule]:
    """Return the rules in the order of the file."""
    parts = _RULE.split(SOURCE.read_text(encoding="utf-8") if text is None else text)[1:]
    return [_rule(part) for part in parts]


def _rule(text: str) -> Rule:
    kind, name = re.match(r"(alert|record): (\S+)", text).groups()  # type: ignore[union-attr]  # the split found it
    expression = re.search(rf"expr: (?:>-\n)?(.*?){_END}", text, re.DOTALL)
    if expression is None:
        raise ValueError(f"{kind} {name} has no expression")
    return Rule(
        name,
        " ".join(expression[1].split()),
        _field(text, r"severity: (\w+)") or None,
        _field(text, r"summary: (.+)"),
        _field(text, r"description: (.+)"),
        _field(text, r"runbook: (\S+)"),
    )


def _field(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    return found[1].strip('"') if found else ""
