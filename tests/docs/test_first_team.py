"""The tutorial about a team, followed to the letter: its files are saved, its commands typed, their output compared.

A real Redis, `orc up`, and FastAPI over HTTP. The files of the page are those of examples/research_team/.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest

from tests.docs.following import WAIT_S, Reader
from tests.docs.pages import ROOT, files

if TYPE_CHECKING:
    from pathlib import Path

PAGE: Final = "docs/tutorial/first-team.md"
EXAMPLE: Final = ROOT / "examples" / "research_team"


def test_the_files_are_those_of_the_example() -> None:
    """The blocks of the page, one below the other, are the files of the example."""
    shown = files(PAGE)
    assert sorted(shown) == ["model.py", "team.py", "web.py"]
    for name, text in shown.items():
        assert text == (EXAMPLE / name).read_text(encoding="utf-8"), name


@pytest.mark.timeout(300)
def test_followed(tmp_path: Path) -> None:
    """A reader who saves the files and types the commands sees what the page shows."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ORC_", "PYTEST"))}
    environment["ORC_DATA_DIR"] = str(tmp_path / "data")
    with Reader(PAGE, tmp_path, environment) as reader:
        reader.save_files()
        assert reader.type_commands() >= 8
        up = reader.running["orc"]
        up.terminate()
        assert up.wait_exit(WAIT_S) == 0, up.output
