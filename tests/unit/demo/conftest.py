"""Trees of Python source, planted by tests."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from pathlib import Path


class WriteTree(Protocol):
    """Writes files below a folder of the test."""

    def __call__(self, files: dict[str, str | bytes], /) -> Path:
        """Write the files; answer the folder."""


@pytest.fixture
def write_tree(tmp_path: Path) -> WriteTree:
    """Write files by their paths, dedented; answer the folder."""
    root = tmp_path / "tree"

    def write(files: dict[str, str | bytes], /) -> Path:
        root.mkdir(exist_ok=True)
        for path, content in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            data = content if isinstance(content, bytes) else dedent(content).lstrip("\n").encode()
            (root / path).write_bytes(data)
        return root

    return write
