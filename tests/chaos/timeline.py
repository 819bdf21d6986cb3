"""What was done when, printed as it happens and kept for a failure."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Timeline:
    """Tells what happens, with the seconds since the start; `counts` is how often each kind of fault was injected."""

    def __init__(self, path: Path, *, quiet: bool) -> None:
        self._path, self._quiet = path, quiet
        self._start_s = time.monotonic()
        self.counts: Counter[str] = Counter()

    def fault(self, kind: str, detail: str) -> None:
        """Tell of a fault that begins."""
        self.counts[kind] += 1
        self.note(f"{kind:<22} {detail}", shown=not self._quiet)

    def note(self, text: str, *, shown: bool = True) -> None:
        """Tell of anything."""
        line = f"{time.monotonic() - self._start_s:8.2f}  {text}"
        with self._path.open("a") as kept:
            kept.write(f"{line}\n")
        if shown:
            print(line, flush=True)  # noqa: T201 - this is what a person looks at
