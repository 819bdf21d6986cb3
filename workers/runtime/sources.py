"""`python -m orchestrator.workers.runtime.sources MODULE:AGENT...`: import agents and print their source files.

For reloading: a process of its own finds out whether the agents can be loaded, and leaves nothing behind.
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
from orchestrator.workers.runtime import loading

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_OURS: Final = frozenset({"__main__", "orchestrator"})


def main(targets: Sequence[str]) -> int:
    """Import the agents, and write the paths of their source files to standard output, a NUL byte behind each."""
    # What the agents print while they are imported belongs to the person, not into the list.
    report_fd = os.dup(1)
    os.dup2(2, 1)
    code, failed_in = 0, set[str]()
    try:
        loading.load_agents(targets)
    except ConfigError as refused:
        sys.stderr.write(f"error: {refused}\n{_where(refused.__cause__)}")
        code, failed_in = refused.exit_code, set(_files_of(refused.__cause__))
    sys.stderr.flush()
    paths = source_files(targets) | {path for path in failed_in if _is_users(path)}
    os.write(report_fd, b"".join(os.fsencode(path) + b"\0" for path in sorted(paths)))
    return code


def source_files(targets: Iterable[str]) -> set[str]:
    """The files of all imported modules that are the user's, and those of the modules that are asked for."""
    files = {
        file
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] not in _OURS and (file := getattr(module, "__file__", None)) and _is_users(file)
    }
    for target in targets:
        # One that failed to load is not among the modules. Finding it imports its parents, which may fail as well.
        with suppress(Exception):
            spec = importlib.util.find_spec(target.partition(":")[0])
            if spec is not None and spec.origin is not None:
                files.add(spec.origin)
    return files


def _is_agents(file: str) -> bool:
    return _is_users(file) and file != loading.__file__


def _is_users(file: str) -> bool:
    """Whether a file is neither of the interpreter nor of an installed package."""
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
    """The traceback of an import that failed, without the frames of the machinery above the user's code."""
    if failure is None:
        return ""
    trace = failure.__traceback__
    while trace is not None and not _is_agents(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return "".join(traceback.format_exception(failure.with_traceback(trace), chain=False))


if __name__ == "__main__":
    status = main(sys.argv[1:])
    # Threads and exit handlers that the agents' modules started are none of our business.
    os._exit(status)
