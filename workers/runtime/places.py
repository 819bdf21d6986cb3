"""Names the line of an agent's code that an event is about, as `file:line`."""

from __future__ import annotations

import inspect
import os
import sysconfig
import traceback
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core import ids
from orchestrator.workers import context

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from orchestrator.workers.skill import Skill

_PRODUCT: Final = tuple(
    f"{os.path.realpath(folder)}{os.sep}" for folder in (Path(ids.__file__).parents[1], Path(context.__file__).parent)
)
_LIBRARIES: Final = tuple(
    f"{os.path.realpath(path)}{os.sep}"
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    if (path := sysconfig.get_path(name))
)


def place_of(failure: BaseException, skill: Skill[Any, Any] | None = None) -> str:
    """Return where an exception left the code of the agent, or where it was raised if it never was there.

    Args:
        failure: the exception.
        skill: whose handler was called; code beside it is the agent's, also if it is installed as a library.
    """
    if at := getattr(failure, "raised_at", ""):
        return str(at)
    folder = _folder_of(skill)
    chosen: tuple[CodeType, int] | None = None
    last: tuple[CodeType, int] | None = None
    for frame, line in traceback.walk_tb(failure.__traceback__):
        last = frame.f_code, line
        if is_agents(frame.f_code.co_filename, folder):
            chosen = last
    found = chosen or last
    return "" if found is None else place(found[0].co_filename, found[1])


def stack_of(frame: FrameType | None) -> tuple[str, str]:
    """Return the place of the innermost code of an agent on a stack, and the stack as text.

    The text leaves out the frames of the event loop and of this program around it.
    """
    frames = list(traceback.walk_stack(frame))[::-1]
    own = [index for index, (one, _) in enumerate(frames) if is_agents(one.f_code.co_filename)]
    shown = frames[own[0] :] if own else frames
    summary = traceback.StackSummary.extract(iter(shown))
    chosen = frames[own[-1]] if own else frames[-1] if frames else None
    at = "" if chosen is None else place(chosen[0].f_code.co_filename, chosen[1])
    return at, "".join(summary.format())


def definition_of(skill: Skill[Any, Any] | None) -> str:
    """Return where the handler of a skill is defined; empty if that is unknown."""
    code = None if skill is None else getattr(inspect.unwrap(skill.handler), "__code__", None)
    return "" if code is None else place(code.co_filename, code.co_firstlineno)


def place(path: str, line: int) -> str:
    """Return a file and a line; a file below the working directory is relative to it."""
    return f"{_shortened(path)}:{line}"


def _shortened(path: str) -> str:
    try:
        here = f"{Path.cwd()}{os.sep}"
    except OSError:
        return path
    return path.removeprefix(here)


def _folder_of(skill: Skill[Any, Any] | None) -> str:
    code = None if skill is None else getattr(inspect.unwrap(skill.handler), "__code__", None)
    return "" if code is None else f"{Path(code.co_filename).parent}{os.sep}"


@lru_cache(maxsize=1024)
def is_agents(path: str, folder: str = "") -> bool:
    """Return whether a file is none of this program, of the standard library or of another library."""
    if folder and path.startswith(folder) and "site-packages" not in path[len(folder) :]:
        return True
    return not path.startswith("<") and not os.path.realpath(path).startswith(_PRODUCT + _LIBRARIES)
