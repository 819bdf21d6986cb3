"""Every way a command can fail, as an exit code and one line: `error: what — why — what to try`."""

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
    """Not yet: the same command may do it later."""

    exit_code = TRY_AGAIN


class CommandAborted(OrchestratorError):
    """What was asked for may not be done as things are."""

    exit_code = REFUSED


def joint_exit_code(codes: Iterable[int]) -> int:
    """The exit code for several things: theirs when they agree, timed out when one did, otherwise partly done."""
    each = set(codes)
    if TIMED_OUT in each:
        return TIMED_OUT
    if len(each) == 1:
        return each.pop()
    return PARTLY_DONE if DONE in each else FAILED


def exit_code_of(command: Callable[[], object], *, debug: bool) -> int:
    """Run a command and turn whatever it does into an exit code; failures are reported in one line.

    Args:
        command: returns an exit code, or None for success.
        debug: let unexpected and expected failures show their traceback.
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
    except BaseException as failure:  # noqa: BLE001 - nobody above would turn it into a line
        cause = _cause(failure)
        if isinstance(cause, OutputClosed):
            return OUTPUT_CLOSED
        if debug:
            _show_traceback(failure)
        return report(cause)
    return returned if isinstance(returned, int) else DONE


def report(failure: BaseException) -> int:
    """Say in one line what failed, and answer the exit code for it."""
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
    say(error_line(f"unexpected {name}: {failure}; this is a bug, --debug shows where it happened"))
    return FAILED


def error_line(message: str) -> str:
    """One line for people; several wrong settings take a line each, indented."""
    first, *more = [clean(line) for line in message.splitlines()] or [""]
    return "\n".join([f"error: {first.replace('; ', ' — ', 1)}", *(f"  {line}" for line in more)])


def _cause(failure: BaseException) -> BaseException:
    """Find what went wrong in what a task group made of it."""
    while isinstance(failure, BaseExceptionGroup):
        ours = [inner for inner in failure.exceptions if isinstance(inner, OrchestratorError)]
        failure = ours[0] if ours else failure.exceptions[0]
    return failure


def _show_traceback(failure: BaseException) -> None:
    import traceback

    if sys.stderr is not None:
        traceback.print_exception(failure)
