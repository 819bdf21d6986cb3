"""Watches what the interpreter does while hostile data passes: imports, processes, pickles, compiled code."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

from tests.helpers.corpus import CANARY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NEVER: Final = frozenset(
    {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn", "os.startfile"}
)
"""Events of processes."""
UNPICKLED: Final = "pickle.find_class"
CODE: Final = frozenset({"compile", "exec"})

_seen: list[str] | None = None


def suspicious(event: str, args: tuple[Any, ...], *, processes: bool) -> str:
    """Return what an event of the interpreter shows, or "" for an event that data did not cause."""
    if event == "import":
        return f"import {args[0]}" if CANARY in str(args[0]) else ""
    if event == UNPICKLED:
        return f"{event} {args}"
    if event in CODE:
        code = args[0]
        text = (code.co_filename, *code.co_names, *code.co_consts) if isinstance(code, CodeType) else code
        return f"{event} of the canary" if isinstance(text, str | bytes | tuple) and CANARY in str(text) else ""
    if event in NEVER and (processes or CANARY in str(args)):
        return f"{event} {args!r:.200}"
    return ""


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _seen is not None and (found := suspicious(event, args, processes=True)):
        _seen.append(found)


@contextmanager
def audited() -> Iterator[list[str]]:
    """Collect the suspicious events of this process during the block; the canary can be imported in it."""
    global _seen  # noqa: PLW0603 - a hook of the interpreter stays, so it is told when to listen
    if _hook not in _installed:
        sys.addaudithook(_hook)
        _installed.append(_hook)
    found: list[str] = []
    _seen = found
    try:
        yield found
    finally:
        _seen = None


_installed: list[Any] = []


def write_canary(folder: Path) -> Path:
    """Write the module that nothing may import into a folder; return the file that it makes when it is imported."""
    mark = folder / "imported"
    (folder / f"{CANARY}.py").write_text(
        f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n\n\ndef run(*_):\n    pass\n\n\nagent = run\n"
    )
    return mark
