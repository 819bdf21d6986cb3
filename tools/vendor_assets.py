"""Fetches the front-end files of others: those that the dashboard ships, and those that its tests load.

Each folder of `FOLDERS` lies beside a `vendor.toml` that names packages, versions and files. `python -m
tools.vendor_assets` fetches the archives by `npm pack`, copies the named files and licence texts, and writes their
SHA-384 into the manifest. Installs and tests never fetch: a test re-hashes the committed files.
"""

from __future__ import annotations

import base64
import hashlib
import subprocess
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = {
    ROOT / "orchestrator" / "dashboard" / "vendor.toml": ROOT / "orchestrator" / "dashboard" / "static" / "vendor",
    ROOT / "tests" / "browser" / "vendor.toml": ROOT / "tests" / "browser" / "vendor",
}
"""Folders of the files, by their manifests."""


def integrity(data: bytes) -> str:
    """Return the SHA-384 of a file as browsers check it."""
    return "sha384-" + base64.b64encode(hashlib.sha384(data).digest()).decode()


def read_manifest(manifest: Path) -> dict[str, Any]:
    """Return the packages by name."""
    return tomllib.loads(manifest.read_text())


def file_of(package: str, name: str) -> str:
    """Return the name under which a file of a package is kept."""
    return f"{package}.LICENSE" if name == "LICENSE" else Path(name).name


def fetch(package: str, version: str, folder: Path) -> tarfile.TarFile:
    """Fetch the archive of a package and open it."""
    packed = subprocess.run(
        ["npm", "pack", "--silent", f"{package}@{version}"], cwd=folder, check=True, capture_output=True, text=True
    )
    return tarfile.open(folder / packed.stdout.strip().splitlines()[-1])


def update(manifest: Path, target: Path) -> None:
    """Fetch every file anew, and write the manifest with its hash."""
    target.mkdir(exist_ok=True)
    lines = [line for line in manifest.read_text().splitlines() if line.startswith("#")]
    with tempfile.TemporaryDirectory() as folder:
        for package, entry in read_manifest(manifest).items():
            archive = fetch(package, entry["version"], Path(folder))
            lines += ["", f'["{package}"]', f'version = "{entry["version"]}"', f'licence = "{entry["licence"]}"']
            for name in entry["files"]:
                taken = archive.extractfile(f"package/{name}")
                assert taken is not None, f"{package} has no file {name}"
                data = taken.read()
                (target / file_of(package, name)).write_bytes(data)
                entry["files"][name] = integrity(data)
            lines += [f'files."{name}" = "{digest}"' for name, digest in entry["files"].items()]
    manifest.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    for each, folder_of_it in FOLDERS.items():
        update(each, folder_of_it)
