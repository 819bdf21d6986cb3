"""Watches folders for changes of Python source with the optional library watchfiles."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from orchestrator.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

POLL_MS: Final = 200
"""How long a poll waits for a change. A signal waits as long."""
SETTLE_MS: Final = 100
"""A change is reported after this time without another, because editors write in several steps."""
SETTLE_AT_MOST_MS: Final = 1000


def check_installed() -> None:
    """Check that watchfiles is installed.

    Raises:
        ConfigError: it is not.
    """
    if importlib.util.find_spec("watchfiles") is None:
        raise ConfigError("--reload needs the library watchfiles; run `pip install 'redis-orchestrator[reload]'`")


class SourceWatch:
    """Reports changed `.py` files in some folders, without sub-folders."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders: dict[Path, int] = {}
        self._changes: Generator[set[tuple[object, str]], None, None] | None = None
        self.watch(folders)

    def watch(self, folders: Iterable[Path]) -> set[Path]:
        """Replace the watched folders and return the pending changes of the former ones.

        A folder that was deleted and created again has another inode and gets a new watch.
        """
        wanted = {folder: folder.stat().st_ino for folder in folders if folder.is_dir()}
        if wanted == self._folders:
            return set()
        former, self._folders = self._changes, wanted
        self._changes = _watch(wanted)
        # The new watch starts before the old one ends, so that no change is lost.
        seen = self.poll()
        if former is not None:
            seen |= _sources(next(former))
            former.close()
        return seen

    def poll(self) -> set[Path]:
        """Wait briefly for changes and return the files that were changed, added or removed."""
        assert self._changes is not None
        return _sources(next(self._changes))

    def close(self) -> None:
        """Stop watching."""
        if self._changes is not None:
            self._changes.close()
            self._changes = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _watch(folders: Iterable[Path]) -> Generator[set[tuple[object, str]], None, None]:
    from watchfiles import watch

    # With a filter, the library would not return while filtered files keep changing.
    return watch(  # type: ignore[return-value]
        *folders,
        watch_filter=None,
        debounce=SETTLE_AT_MOST_MS,
        step=SETTLE_MS,
        rust_timeout=POLL_MS,
        yield_on_timeout=True,
        recursive=False,
        ignore_permission_denied=True,
    )


def _sources(changes: Iterable[tuple[object, str]]) -> set[Path]:
    paths = (Path(path) for _, path in changes)
    # Temporary files of editors begin with a dot.
    return {path for path in paths if path.suffix == ".py" and not path.name.startswith(".")}
