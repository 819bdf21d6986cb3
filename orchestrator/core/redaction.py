"""Hides what the arguments of a redacted skill may appear in: values as JSON, and the texts of exceptions.

The type of an exception and the lines of code that raised it stay, because they are the program's, not the data's.
"""

from __future__ import annotations

import traceback
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

HIDDEN: Final = "(redacted)"
NO_DISPLAY: Final = 3
"""Exit code of the program that runs `display` functions: no agent with the skill has one."""
_MAX_DEPTH: Final = 8

_texts_hidden: ContextVar[bool] = ContextVar("texts_hidden", default=False)


def hidden_value(size: int) -> str:
    """Return what is shown in place of a value of `size` bytes."""
    return f"(redacted, {size} bytes)"


def hidden_json(data: bytes) -> bytes:
    """Return the JSON text that is shown in place of a value."""
    return f'"{hidden_value(len(data))}"'.encode()


def name_of(failure: BaseException) -> str:
    """Return the type of an exception, without its text."""
    return f"{type(failure).__name__}: {HIDDEN}"


def traceback_without_texts(failure: BaseException) -> str:
    """Format an exception with its causes, without the text of any of them."""
    return "".join(_lines(failure, set(), 0))


def texts_hidden() -> bool:
    """Return whether this context hides the texts of exceptions in the log."""
    return _texts_hidden.get()


@contextmanager
def hiding_texts() -> Iterator[None]:
    """Hide the texts of exceptions in the log, in this context and in the tasks and threads that it starts."""
    token = _texts_hidden.set(True)
    try:
        yield
    finally:
        _texts_hidden.reset(token)


def _lines(failure: BaseException, seen: set[int], depth: int) -> Iterator[str]:
    seen.add(id(failure))
    before = failure.__cause__ or (None if failure.__suppress_context__ else failure.__context__)
    if before is not None and id(before) not in seen and depth < _MAX_DEPTH:
        yield from _lines(before, seen, depth + 1)
        yield "\nThe exception above came before this one:\n\n"
    if failure.__traceback__ is not None:
        yield "Traceback (most recent call last):\n"
        yield from traceback.format_tb(failure.__traceback__)
    yield f"{name_of(failure)}\n"
    if isinstance(failure, BaseExceptionGroup) and depth < _MAX_DEPTH:
        for number, inner in enumerate(failure.exceptions, 1):
            if id(inner) not in seen:
                yield f"Exception {number} of the group:\n"
                yield from _lines(inner, seen, depth + 1)
