"""Exit codes and error lines: `error: what happened; what to do`."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Final

from orchestrator.cli.terminal.output import OutputClosed, clean, say
from orchestrator.core.errors import OrchestratorError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
REFUSED: Final = 4
TIMED_OUT: Final = 5
PARTLY_DONE: Final = 6
NOBODY_ANSWERED: Final = 69
TRY_AGAIN: Final = 75
CONFIGURATION: Final = 78
INTERRUPTED: Final = 128 + signal.SIGINT
OUTPUT_CLOSED: Final = 128 + signal.SIGPIPE


class TryAgain(OrchestratorError):
    """The command may succeed later."""

    exit_code = TRY_AGAIN


class CommandAborted(OrchestratorError):
    """The command is refused in the present state, or was not confirmed."""

    exit_code = REFUSED


def joint_exit_code(codes: Iterable[int]) -> int:
    """Return the exit code for several outcomes: their own if equal, time-out if one timed out, else partly done."""
    each = set(codes)
    if TIMED_OUT in each:
        return TIMED_OUT
    if len(each) == 1:
        return each.pop()
    return PARTLY_DONE if DONE in each else FAILED


def exit_code_of(command: Callable[[], object], *, debug: bool) -> int:
    """Run a command and return its exit code; a failure is reported in one line.

    Args:
        command: returns an exit code, or None for success.
        debug: print the traceback of a failure too.
    """
    try:
        returned = command()
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except OutputClosed:
        return OUTPUT_CLOSED
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else FAILED
    except BaseException as failure:  # noqa: BLE001 - the last handler of the program
        cause = _cause(failure)
        if isinstance(cause, OutputClosed):
            return OUTPUT_CLOSED
        if debug:
            _show_traceback(failure)
        return report(cause)
    return returned if isinstance(returned, int) else DONE


def report(failure: BaseException) -> int:
    """Print the error line of a failure and return its exit code."""
    match failure:
        case OrchestratorError():
            say(error_line(str(failure)))
            return failure.exit_code
        case TimeoutError():
            say(error_line(str(failure) or "timed out"))
            return TIMED_OUT
    name = type(failure).__name__
    if name == "CancelledError":  # asyncio's; importing it would double the time that help takes
        say("interrupted")
        return INTERRUPTED
    say(error_line(f"unexpected {name}: {failure}; this is a bug, --debug prints the traceback"))
    return FAILED


def error_line(message: str) -> str:
    """Format an error; further lines, as of several invalid settings, are indented."""
    first, *more = [clean(line) for line in message.splitlines()] or [""]
    return "\n".join([f"error: {first}", *(f"  {line}" for line in more)])


def _cause(failure: BaseException) -> BaseException:
    """Return the failure inside the exception groups of task groups."""
    while isinstance(failure, BaseExceptionGroup):
        ours = [inner for inner in failure.exceptions if isinstance(inner, OrchestratorError)]
        failure = ours[0] if ours else failure.exceptions[0]
    return failure


def _show_traceback(failure: BaseException) -> None:
    import traceback

    if sys.stderr is not None:
        traceback.print_exception(failure)
