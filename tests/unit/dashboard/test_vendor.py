"""The front-end files of others are those that the manifests name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tools.vendor_assets import FOLDERS, file_of, integrity, read_manifest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("manifest", FOLDERS, ids=lambda path: path.parent.name)
def test_files_have_the_hashes_of_the_manifest(manifest: Path) -> None:
    """Each committed file is the one that was fetched, and there is no other one."""
    expected = {
        file_of(package, name): digest
        for package, entry in read_manifest(manifest).items()
        for name, digest in entry["files"].items()
    }
    assert {path.name: integrity(path.read_bytes()) for path in FOLDERS[manifest].iterdir()} == expected
