"""Fetches the front-end files that the dashboard ships, as `orchestrator/dashboard/vendor.toml` names them.

`python -m tools.vendor_assets` fetches the archives by `npm pack`, copies the named files and licence texts, and
writes their SHA-384 into the manifest. Installs and tests never fetch: a test re-hashes the committed files.
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

DASHBOARD: Final = Path(__file__).parents[1] / "orchestrator" / "dashboard"
MANIFEST: Final = DASHBOARD / "vendor.toml"
VENDOR: Final = DASHBOARD / "static" / "vendor"


def integrity(data: bytes) -> str:
    """Return the SHA-384 of a file as browsers check it."""
    return "sha384-" + base64.b64encode(hashlib.sha384(data).digest()).decode()


def read_manifest() -> dict[str, Any]:
    """Return the packages by name."""
    return tomllib.loads(MANIFEST.read_text())


def fetch(package: str, version: str, folder: Path) -> tarfile.TarFile:
    """Fetch the archive of a package and open it."""
    packed = subprocess.run(
        ["npm", "pack", "--silent", f"{package}@{version}"], cwd=folder, check=True, capture_output=True, text=True
    )
    return tarfile.open(folder / packed.stdout.strip().splitlines()[-1])


def update() -> None:
    """Fetch every file anew, and write the manifest with its hash."""
    manifest = read_manifest()
    lines = [line for line in MANIFEST.read_text().splitlines() if line.startswith("#")]
    with tempfile.TemporaryDirectory() as folder:
        for package, entry in manifest.items():
            archive = fetch(package, entry["version"], Path(folder))
            lines += ["", f'["{package}"]', f'version = "{entry["version"]}"', f'licence = "{entry["licence"]}"']
            for name in entry["files"]:
                taken = archive.extractfile(f"package/{name}")
                assert taken is not None, f"{package} has no file {name}"
                data = taken.read()
                target = VENDOR / (f"{package}.LICENSE" if name == "LICENSE" else Path(name).name)
                target.write_bytes(data)
                entry["files"][name] = integrity(data)
            lines += [f'files."{name}" = "{digest}"' for name, digest in entry["files"].items()]
    MANIFEST.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    update()
