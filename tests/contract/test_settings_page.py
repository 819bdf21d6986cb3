"""`docs/guides/configuration.md` lists the settings of the model. Run this file as a script to write its table anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from orchestrator.core.settings import Leaf, leaves

PAGE: Final = Path(__file__).parents[2] / "docs" / "guides" / "configuration.md"
BEGIN: Final = "<!-- settings: begin -->\n"
END: Final = "<!-- settings: end -->\n"


def render_table() -> str:
    """Write one row per setting: name, default, what it is."""
    rows = [f"| `{leaf.name}` | {_default(leaf)} | {leaf.description} |\n" for leaf in leaves()]
    return "".join(["\n| setting | default | meaning |\n|---|---|---|\n", *rows, "\n"])


def _default(leaf: Leaf) -> str:
    if leaf.open or leaf.default is None:
        return "none"
    return f"`{json.dumps(leaf.default)}`"


def test_page_matches_the_model() -> None:
    """The table has every setting with its default and description, and nothing else."""
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0] == render_table(), f"run: python {__file__}"


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + render_table() + END + rest.partition(END)[2], encoding="utf-8")
