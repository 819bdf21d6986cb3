"""The guide about FastAPI: its files are saved, its test runs, and its commands are typed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from tests.docs.following import WAIT_S, Reader

if TYPE_CHECKING:
    from pathlib import Path

PAGE: Final = "docs/guides/fastapi.md"


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment of a reader, without our settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("ORC_", "PYTEST"))}


@pytest.mark.timeout(120)
def test_the_test_of_the_page_passes(tmp_path: Path, environment: dict[str, str]) -> None:
    """A fresh pytest runs the test file of the page beside the other files."""
    with Reader(PAGE, tmp_path, environment) as reader:
        reader.save_files()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "anyio", "-p", "redis-orchestrator"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d passed", done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_followed(tmp_path: Path, environment: dict[str, str]) -> None:
    """The agents and the application start as the page says, and a task is submitted over HTTP."""
    with Reader(PAGE, tmp_path, {**environment, "ORC_DATA_DIR": str(tmp_path / "data")}) as reader:
        reader.save_files()
        assert reader.type_commands() == 3
