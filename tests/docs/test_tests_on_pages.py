"""Tests that the manual shows pass: the Python of such a page is a test file, run by a fresh pytest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import PAGES, blocks

if TYPE_CHECKING:
    from pathlib import Path

WITH_TESTS = [
    page for page in PAGES if any("def test_" in block.text for block in blocks(page) if block.runs and not block.file)
]


@pytest.mark.parametrize("page", WITH_TESTS)
def test_tests_pass(page: str, tmp_path: Path) -> None:
    """All blocks of the page, one below the other, with the project's own plugin and anyio's."""
    text = "\n\n".join(block.text for block in blocks(page) if block.language == "python" and block.runs)
    (tmp_path / "test_page.py").write_text(text, encoding="utf-8")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("ORC_", "PYTEST"))}
    environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "anyio", "-p", "redis-orchestrator"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) >= text.count("def test_")
