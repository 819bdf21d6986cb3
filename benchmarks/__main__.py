"""Runs the benchmarks: `python -m benchmarks [--only drain,submit] [--peers] [--quick]`."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.figures import Failure, Figure
from benchmarks.harness import Bench, say
from benchmarks.measures import BY_DEFAULT, MEASURES
from benchmarks.peers.environment import install_all
from benchmarks.peers.registry import PEERS
from benchmarks.report import Run, as_markdown, start_of_run, write_into_docs, write_results
from benchmarks.server import running_server
from benchmarks.sizes import FULL, QUICK
from benchmarks.summary import write_summary

if TYPE_CHECKING:
    from collections.abc import Collection

_HERE = Path(__file__).resolve().parent
_RESULTS = _HERE / "results"
_DOCS_PAGE = _HERE.parent / "docs" / "internals" / "performance.md"
_PICTURE = _HERE.parent / "docs" / "images" / "performance.svg"


def main() -> int:
    """Measure, print the report and write it to disk. Returns 1 if a measure failed; a missed goal is no failure."""
    options = _options()
    if options.peers:
        say("environments of peers")  # before anything is timed, because the first run installs packages
    peers, missing = install_all(PEERS[name] for name in options.peers)
    for one in missing:
        say(f"{one.name} is missing: {one.reason}")
    started, started_s, load_before = start_of_run(), time.monotonic(), os.getloadavg()[0]
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    figures: list[Figure] = []
    failures: list[Failure] = []
    sizes = QUICK if options.quick else FULL
    with running_server(folder, options.server, unix_socket=options.unix_socket) as server, server.connect() as meter:
        bench = Bench(server, meter, sizes, folder, ours=not options.raw_only, peers=peers)
        for name in options.only or BY_DEFAULT:
            say(name)
            failed_before = len(bench.failures)
            try:
                figures += MEASURES[name](bench)
            except Exception as error:  # noqa: BLE001 - the other measures still count
                say(traceback.format_exc())
                failures.append(Failure(name, f"{type(error).__name__}: {error}"))
            failures += [Failure(f"{name}, {one.measure}", one.reason) for one in bench.failures[failed_before:]]
        version = server.version
    run = Run(
        started=started,
        duration_s=time.monotonic() - started_s,
        server_version=version,
        transport="a unix socket" if options.unix_socket else "loopback TCP",
        sizes=asdict(sizes),
        figures=figures,
        failures=failures,
        comparisons=bench.comparisons,
        peers=peers,
        missing_peers=missing,
        load_before=load_before,
    )
    sys.stdout.write(as_markdown(run))
    say(f"written to {write_results(run, _RESULTS)}")
    if options.write_docs:
        write_into_docs(run, _DOCS_PAGE)
        if run.comparisons:
            write_summary(_DOCS_PAGE, _PICTURE)
    if run.failures:
        say(f"logs are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure throughput, latency and cost.")
    parser.add_argument("--only", type=_measures, metavar="NAMES", help=f"comma-separated, of: {', '.join(MEASURES)}")
    parser.add_argument("--quick", action="store_true", help="one short round: rough figures in about a minute")
    parser.add_argument(
        "--peers",
        type=_peers,
        nargs="?",
        const=list(PEERS),
        default=[],
        metavar="NAMES",
        help=f"measure peers too, each in an environment of its own; all, or of: {', '.join(PEERS)}",
    )
    parser.add_argument("--raw-only", action="store_true", help="measure the raw loop alone, to judge the machine")
    parser.add_argument(
        "--unix-socket", action="store_true", help="reach Redis over a unix socket instead of loopback TCP"
    )
    parser.add_argument(
        "--server",
        type=Path,
        metavar="PATH",
        help="redis-server program to measure with; default: the newest installed",
    )
    parser.add_argument("--write-docs", action="store_true", help="put the figures into docs/internals/performance.md")
    return parser.parse_args()


def _measures(text: str) -> list[str]:
    return _names(text, "measure", MEASURES)


def _peers(text: str) -> list[str]:
    return _names(text, "peer", PEERS)


def _names(text: str, kind: str, known: Collection[str]) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"no {kind} called {', '.join(unknown)}; there are {', '.join(known)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
