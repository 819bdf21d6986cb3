"""A handler whose module starts a thread, so that its processes are not forked. Each import notes its times."""

from __future__ import annotations

import os
import threading
import time
from typing import Final

from orchestrator import Agent

NOTES_VARIABLE: Final = "TEST_IMPORT_NOTES"

unforkable = Agent("unforkable", concurrency=8)


@unforkable.skill(process=True)
def parent() -> int:
    """The id of the parent."""
    return os.getppid()


def _note(what: str) -> None:
    notes = os.environ.get(NOTES_VARIABLE)
    if notes is not None:
        # One write of a line of a file that is appended to is whole.
        file = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(file, f"{what} {os.getpid()}\n".encode())
        os.close(file)


_note("begin")
time.sleep(0.05)
_note("end")
threading.Thread(target=threading.Event().wait, name="a thread of the module", daemon=True).start()
