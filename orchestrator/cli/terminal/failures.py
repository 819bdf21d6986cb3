"""Exit codes and error lines: `error: what happened; what to do`."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

from orchestrator.cli.terminal.output import OutputClosed, say
from orchestrator.core.errors import OrchestratorError, ServerRefused

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


_DENIED: Final = ("NOPERM", "The user executing the script can't")
"""What Redis says when the rights of a user do not suffice, outside and inside of scripts."""


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
            say_error(_advised(failure))
            return failure.exit_code
        case TimeoutError():
            say_error(str(failure) or "timed out")
            return TIMED_OUT
    name = type(failure).__name__
    if name == "CancelledError":  # asyncio's; importing it would double the time that help takes
        say("interrupted")
        return INTERRUPTED
    say_error(f"unexpected {name}: {failure}; this is a bug, --debug prints the traceback")
    return FAILED


def _advised(failure: OrchestratorError) -> str:
    """Return the message of a failure; where Redis denied the user something, with what to do."""
    text = str(failure)
    if isinstance(failure, ServerRefused) and any(words in text for words in _DENIED):
        return f"{text}; log in as a user whose role may do this, see `orc auth acl --help`"
    return text


def say_error(message: str) -> None:
    """Print an error; further lines, as of several invalid settings, are indented. Known secrets are masked."""
    from orchestrator.core.scrubbing import mask_known

    first, *more = mask_known(message).split("\n")
    say(f"error: {first}", *(f"  {line}" for line in more))


def _cause(failure: BaseException) -> BaseException:
    """Return the failure inside the exception groups of task groups."""
    while isinstance(failure, BaseExceptionGroup):
        ours = [inner for inner in failure.exceptions if isinstance(inner, OrchestratorError)]
        failure = ours[0] if ours else failure.exceptions[0]
    return failure


def _show_traceback(failure: BaseException) -> None:
    import traceback

    from orchestrator.core.scrubbing import mask_known

    # Indented, so that no line of a stored text looks like one of this program.
    text = mask_known("".join(traceback.format_exception(failure))).rstrip("\n")
    say(*(f"  {line}" for line in text.split("\n")))
