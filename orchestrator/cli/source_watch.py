"""Watches folders for changes of Python source. The one place that knows watchfiles, an optional library."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from orchestrator.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

LOOK_MS: Final = 200
"""How long one look waits for a change; a signal waits as long."""
SETTLE_MS: Final = 100
"""A change is told when nothing has changed for so long: editors write in several steps."""
SETTLE_AT_MOST_MS: Final = 1000


def check_installed() -> None:
    """See that the library is there.

    Raises:
        ConfigError: it is not; the message says what to type.
    """
    if importlib.util.find_spec("watchfiles") is None:
        raise ConfigError("--reload needs the library watchfiles; type `pip install 'redis-orchestrator[reload]'`")


class SourceWatch:
    """Tells which `.py` files change in some folders, without those below them; close it."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders: dict[Path, int] = {}
        self._changes: Generator[set[tuple[object, str]], None, None] | None = None
        self.watch(folders)

    def watch(self, folders: Iterable[Path]) -> set[Path]:
        """Watch these folders from now on; answers what changed in the former ones meanwhile.

        Several looks may be due at once when a folder was deleted and made anew, so its number counts too.
        """
        wanted = {folder: folder.stat().st_ino for folder in folders if folder.is_dir()}
        if wanted == self._folders:
            return set()
        former, self._folders = self._changes, wanted
        self._changes = _watch(wanted)
        # The new watch is on before the old one ends, so that nothing gets lost in between.
        seen = self.look()
        if former is not None:
            seen |= _sources(next(former))
            former.close()
        return seen

    def look(self) -> set[Path]:
        """Wait a moment for changes; answers the files that were changed, added or removed."""
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

    # Filtered by us: the library would not come back while files that it filters out change all the time.
    return watch(  # type: ignore[return-value]
        *folders,
        watch_filter=None,
        debounce=SETTLE_AT_MOST_MS,
        step=SETTLE_MS,
        rust_timeout=LOOK_MS,
        yield_on_timeout=True,
        recursive=False,
        ignore_permission_denied=True,
    )


def _sources(changes: Iterable[tuple[object, str]]) -> set[Path]:
    paths = (Path(path) for _, path in changes)
    # Files that editors put beside the real one begin with a dot.
    return {path for path in paths if path.suffix == ".py" and not path.name.startswith(".")}
