"""The front-end files of others are those that the manifest names."""

from __future__ import annotations

from tools.vendor_assets import VENDOR, integrity, read_manifest


def test_files_have_the_hashes_of_the_manifest() -> None:
    """Each committed file is the one that was fetched, and there is no other one."""
    expected = {
        f"{package}.LICENSE" if name == "LICENSE" else name.rpartition("/")[2]: digest
        for package, entry in read_manifest().items()
        for name, digest in entry["files"].items()
    }
    assert {path.name: integrity(path.read_bytes()) for path in VENDOR.iterdir()} == expected
