"""Finds the Python files of a tree in a stable order, and reads them."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import InvalidInput, NotFound
from orchestrator.workers.demo.models import Skipped, Tree
from orchestrator.workers.demo.text_format import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_PACKAGE: Final = "redis"
"""Audited when no folder is named, because every installation has it."""

MAX_FILES: Final = 3000
MAX_PATHS_BYTES: Final = 160_000
"""Limit of all paths of a tree as JSON, so that the tree fits into the arguments of one task (256 KiB)."""
MAX_FOLDERS: Final = 20_000
MAX_SKIPPED: Final = 100
MAX_SHOWN: Final = 200
MAX_FILE_BYTES: Final = 1_000_000

NOT_SOURCE: Final = frozenset({"__pycache__", "node_modules"})


class Unreadable(Exception):
    """A file that is no readable source text; the message has the reason."""


def default_tree() -> Path:
    """Find the source of the installed `redis` package without importing it."""
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise NotFound(f"the package {DEFAULT_PACKAGE!r} is not installed as source; name a folder instead")
    return Path(spec.submodule_search_locations[0])


def check_tree(path: str | Path) -> Path:
    """Check that a folder can be audited.

    Returns:
        The folder, absolute and without symbolic links.

    Raises:
        InvalidInput: it does not exist, is no folder, or cannot be read.
        NotFound: it has no Python files.
    """
    shown = printable(str(path))
    try:
        root = Path(path).expanduser().resolve()
        str(root).encode()
        is_folder, exists = root.is_dir(), root.exists()
    except (OSError, RuntimeError, ValueError) as refused:
        raise InvalidInput(f"{shown} cannot be used as a folder: {refused}") from None
    if not exists:
        raise InvalidInput(f"{shown} does not exist; name a folder of Python source")
    if not is_folder:
        raise InvalidInput(f"{shown} is a file; name the folder that contains it")
    if not os.access(root, os.R_OK | os.X_OK):
        raise InvalidInput(f"{shown} is not readable by this user; change its mode or name another folder")
    if not scan_tree(root, max_files=1).files:
        raise NotFound(f"no Python files (*.py) under {shown}; name a folder that has some")
    return root


def scan_tree(root: Path, *, max_files: int = MAX_FILES) -> Tree:
    """List the Python files below `root` in path order.

    Skips hidden folders, virtual environments, caches and symbolic links. Names that are no UTF-8 and special files
    such as sockets are listed as skipped.
    """
    files: list[str] = []
    skipped: list[Skipped] = []
    folders = paths_bytes = 0
    truncated = False
    for found in _walk(root):
        if isinstance(found, Skipped):
            skipped.append(found)
            continue
        if isinstance(found, _Folder):
            folders += 1
        else:
            paths_bytes += len(json.dumps(found)) + 1
        if len(files) >= max_files or paths_bytes > MAX_PATHS_BYTES or folders > MAX_FOLDERS:
            truncated = True
            break
        if isinstance(found, str):
            files.append(found)
    return Tree(
        root=str(root),
        package=_package_of(root),
        files=tuple(files),
        skipped=tuple(skipped[:MAX_SKIPPED]),
        truncated=truncated,
    )


def read_source(root: Path, path: str) -> str:
    """Read one file as text in its declared encoding, with Unix line ends.

    Raises:
        Unreadable: missing, too large, or no text in its encoding.
    """
    try:
        with (root / path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as gone:
        raise Unreadable(f"cannot be read: {gone.strerror or gone}") from None
    if len(data) > MAX_FILE_BYTES:
        raise Unreadable(f"larger than {MAX_FILE_BYTES:,} bytes")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
    except (SyntaxError, LookupError, ValueError) as undecodable:
        raise Unreadable(f"not text in its declared encoding: {undecodable}") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


# --------------------------------------------------------------------------------------------------------- walking


@dataclass(frozen=True, slots=True)
class _Folder:
    path: Path
    below: str


def _walk(root: Path) -> Iterator[_Folder | str | Skipped]:
    """Walk depth first in name order, with an explicit stack so that no tree is too deep."""
    stack: list[_Folder | str | Skipped] = [_Folder(root, "")]
    while stack:
        item = stack.pop()
        yield item
        if isinstance(item, _Folder):
            stack.extend(reversed(_entries(item)))


def _entries(folder: _Folder) -> list[_Folder | str | Skipped]:
    try:
        with os.scandir(folder.path) as listing:
            entries = sorted(listing, key=lambda entry: os.fsencode(entry.name))
    except OSError as refused:
        return [_skipped(folder.below or ".", f"cannot be listed: {refused.strerror or refused}")]
    if folder.below and any(entry.name == "pyvenv.cfg" for entry in entries):
        return [_skipped(folder.below, "a virtual environment")]
    found = [_classify(folder, entry) for entry in entries]
    return [item for item in found if item is not None]


def _classify(folder: _Folder, entry: os.DirEntry[str]) -> _Folder | str | Skipped | None:
    name, below = entry.name, f"{folder.below}/{entry.name}".removeprefix("/")
    if entry.is_dir(follow_symlinks=False):
        return None if name.startswith(".") or name in NOT_SOURCE else _Folder(folder.path / name, below)
    if not name.endswith(".py"):
        return None
    if entry.is_symlink():
        return _skipped(below, "a symbolic link")
    if not entry.is_file(follow_symlinks=False):
        return _skipped(below, "not a regular file")
    try:
        below.encode()
    except UnicodeEncodeError:
        return _skipped(below, "its name is not UTF-8")
    return below


def _skipped(path: str, reason: str) -> Skipped:
    return Skipped(path=printable(path)[-MAX_SHOWN:], reason=reason)


def _package_of(root: Path) -> str:
    names: list[str] = []
    while root.name and (root / "__init__.py").is_file():
        names.append(root.name)
        root = root.parent
    return ".".join(reversed(names))
