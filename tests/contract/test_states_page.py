"""docs/internals/reliability.md shows the table of a task's steps. Run this file as a script to write the page anew."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.tasks.states import STEPS, Step

if TYPE_CHECKING:
    from orchestrator.tasks.model import StoredState

PAGE: Final = Path(__file__).parents[2] / "docs" / "internals" / "reliability.md"
BEGIN: Final = "<!-- steps: begin -->"
END: Final = "<!-- steps: end -->"


def render() -> str:
    """The diagram, and the table under it."""
    arrows: dict[tuple[StoredState | None, StoredState | None], list[str]] = {}
    for step in STEPS:
        arrows.setdefault((step.before, step.after), []).append(step.script)
    lines = ["```mermaid", "stateDiagram-v2"]
    for (before, after), scripts in arrows.items():
        lines.append(f"    {before or '[*]'} --> {after or '[*]'}: {', '.join(dict.fromkeys(scripts))}")
    lines += ["```", "", "| from | what happens | to | script |", "|---|---|---|---|"]

    lines += [_row(step) for step in STEPS]
    return "\n".join(lines)


def _row(step: Step) -> str:
    names = [f"`{state}`" if state else "(no record)" for state in (step.before, step.after)]
    return f"| {names[0]} | {step.event} | {names[1]} | `{step.script}` |"


def test_page_shows_the_table() -> None:
    """The diagram and the table of the page are those of the code."""
    shown = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()
    assert shown == render(), f"run: python {__file__}"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(re.sub(f"(?s){BEGIN}.*{END}", f"{BEGIN}\n\n{render()}\n\n{END}", text), encoding="utf-8")
