"""What handlers note of themselves, in a file: it survives the process that wrote it and whatever happens to Redis."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple


class Note(NamedTuple):
    """One line: an attempt began, or something befell it."""

    task: str
    generation: str
    attempt: int
    pid: int
    what: str


class AttemptLog:
    """Appends a line per note; one write each, so that processes may share the file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def write(self, note: Note) -> None:
        """Append a note; it is in the file when this returns."""
        line = " ".join(str(part) for part in note) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    @property
    def size_bytes(self) -> int:
        """Size of the file: it grows with each note."""
        return self.path.stat().st_size if self.path.exists() else 0

    def notes(self, what: str | None = None, *, task: str | None = None) -> list[Note]:
        """Read all notes in order, or those of one kind, of one task."""
        if not self.path.exists():
            return []
        rows = [line.split(" ") for line in self.path.read_text().splitlines()]
        notes = [Note(row[0], row[1], int(row[2]), int(row[3]), row[4]) for row in rows]
        return [note for note in notes if what in {None, note.what} and task in {None, note.task}]

    def runs(self) -> Counter[str]:
        """How often each task was begun."""
        return Counter(note.task for note in self.notes("begun"))

    def attempts_run_twice(self) -> list[tuple[str, str]]:
        """Attempts (task, generation) that were begun more than once: there must never be one."""
        counted = Counter((note.task, note.generation) for note in self.notes("begun"))
        return [attempt for attempt, count in counted.items() if count > 1]
