"""`python -m orchestrator.workers.runtime.sources MODULE:AGENT...`: imports agents and prints their source files.

`--reload` runs it in a separate process to find out whether the agents can be loaded.
"""

from __future__ import annotations

import importlib.util
import os
import site
import sys
import sysconfig
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import ConfigError
from orchestrator.core.secret_environment import take_secrets
from orchestrator.workers.runtime import loading

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_OURS: Final = frozenset({"__main__", "orchestrator"})


def main(targets: Sequence[str]) -> int:
    """Import the agents and write the paths of their source files to standard output, each with a NUL byte after it."""
    # Output of the agents during their import goes to stderr, not into the list.
    report_fd = os.dup(1)
    os.dup2(2, 1)
    take_secrets()  # as the host does before it imports the agents
    code, failed_in = 0, set[str]()
    try:
        loading.load_agents(targets)
    except ConfigError as refused:
        sys.stderr.write(f"error: {refused}\n{_where(refused.__cause__)}")
        code, failed_in = refused.exit_code, set(_files_of(refused.__cause__))
    sys.stderr.flush()
    paths = source_files(targets) | {path for path in failed_in if _is_users(path)}
    with os.fdopen(report_fd, "wb") as report:
        report.write(b"".join(os.fsencode(path) + b"\0" for path in sorted(paths)))
    return code


def source_files(targets: Iterable[str]) -> set[str]:
    """Return the files of the user's imported modules, and of the target modules."""
    files = {
        file
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] not in _OURS and (file := getattr(module, "__file__", None)) and _is_users(file)
    }
    for target in targets:
        # A module that failed to load is not in sys.modules. Finding it imports its parents, which may fail too.
        with suppress(Exception):
            spec = importlib.util.find_spec(target.partition(":")[0])
            if spec is not None and spec.origin is not None:
                files.add(spec.origin)
    return files


def _is_agents(file: str) -> bool:
    return _is_users(file) and file != loading.__file__


def _is_users(file: str) -> bool:
    """Return whether a file belongs neither to the interpreter nor to an installed package."""
    path = os.path.realpath(file)
    return Path(path).is_file() and not path.startswith(_library_folders())


def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = [paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    return tuple(os.path.realpath(folder) + os.sep for folder in folders)


def _files_of(failure: BaseException | None) -> Iterator[str]:
    if isinstance(failure, SyntaxError) and failure.filename:
        yield failure.filename
    for frame, _ in traceback.walk_tb(failure.__traceback__ if failure else None):
        yield frame.f_code.co_filename


def _where(failure: BaseException | None) -> str:
    """Format the traceback of a failed import without the frames above the user's code."""
    if failure is None:
        return ""
    trace = failure.__traceback__
    while trace is not None and not _is_agents(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return "".join(traceback.format_exception(failure.with_traceback(trace), chain=False))


if __name__ == "__main__":
    status = main(sys.argv[1:])
    # Exit at once, without waiting for threads and exit handlers of the agents' modules.
    os._exit(status)
