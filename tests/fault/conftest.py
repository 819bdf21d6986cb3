"""Fixtures of the fault tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.helpers.notebook import Notebook

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def notebook(tmp_path: Path) -> Notebook:
    """Where the handlers of this test note their runs."""
    return Notebook(tmp_path / "notes")


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file that lets the skill `hold` go on once it exists."""
    return tmp_path / "gate"
