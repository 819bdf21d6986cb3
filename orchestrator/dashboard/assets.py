"""Serves the files of the pages, each under the hash of its content, so that browsers may keep it without asking."""

from __future__ import annotations

import base64
import hashlib
import mimetypes
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.responses import PlainTextResponse, Response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

FOLDER: Final = Path(__file__).parent / "static"
IMMUTABLE: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Asset:
    """One file: its bytes, type, and the start of its hash in the address."""

    data: bytes
    media_type: str
    digest: str
    integrity: str


def load() -> dict[str, Asset]:
    """Read all files, by their names below `static`."""
    return {str(path.relative_to(FOLDER)): _asset(path) for path in sorted(FOLDER.rglob("*")) if path.is_file()}


def _asset(path: Path) -> Asset:
    data = path.read_bytes()
    digest = hashlib.sha384(data)
    media_type = mimetypes.guess_type(path.name)[0] or "text/plain"
    return Asset(data, media_type, digest.hexdigest()[:16], "sha384-" + base64.b64encode(digest.digest()).decode())


def address(assets: Mapping[str, Asset], base: str, name: str) -> str:
    """Return the address of a file."""
    return f"{base}/static/{assets[name].digest}/{name}"


def integrity(assets: Mapping[str, Asset], name: str) -> str:
    """Return the hash that the browser checks."""
    return assets[name].integrity


async def serve(assets: Mapping[str, Asset], request: Request) -> Response:
    """Answer with a file; an older hash is not found, so that no page mixes versions."""
    found = assets.get(request.path_params["name"])
    if found is None or found.digest != request.path_params["digest"]:
        return PlainTextResponse("no such file\n", 404)
    return Response(found.data, media_type=found.media_type, headers={"Cache-Control": IMMUTABLE})
