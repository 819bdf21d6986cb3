"""The quickstart, followed to the letter: its file is saved, the commands whose output it shows are typed and compared.

`test_pages.py` runs its Python.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest

from tests.docs.following import WAIT_S, Reader
from tests.docs.pages import blocks

if TYPE_CHECKING:
    from pathlib import Path

PAGE: Final = "docs/tutorial/quickstart.md"


@pytest.mark.timeout(120)
def test_followed(tmp_path: Path) -> None:
    """A reader who saves the agent and types the commands sees what the page shows."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ORC_", "PYTEST"))}
    agent = next(block.text for block in blocks(PAGE) if block.language == "python")
    (tmp_path / "my_agents.py").write_text(agent, encoding="utf-8")
    with Reader(PAGE, tmp_path, environment) as reader:
        assert reader.type_commands() == 3
        up = reader.running["orc"]
        up.terminate()
        assert up.wait_exit(WAIT_S) == 0, up.output
    assert (tmp_path / ".orc").is_dir()
