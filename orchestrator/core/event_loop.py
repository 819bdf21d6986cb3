"""Runs an event loop: uvloop where it is installed (extra `fast`), else the standard one."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")
Args = TypeVarTuple("Args")


def run_loop(work: Callable[[*Args], Awaitable[T]], *args: *Args) -> T:
    """Run `work(*args)` in a new event loop."""
    return anyio.run(work, *args, backend_options={"use_uvloop": find_spec("uvloop") is not None})
