"""Runs the benchmarks: `python -m benchmarks [--only drain,submit] [--quick]`."""

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

from benchmarks.figures import Failure, Figure
from benchmarks.harness import FULL, QUICK, Bench, say
from benchmarks.measures import BY_DEFAULT, MEASURES
from benchmarks.report import Run, as_markdown, start_of_run, write_into_docs, write_results
from benchmarks.server import running_server

_HERE = Path(__file__).resolve().parent
_RESULTS = _HERE / "results"
_DOCS_PAGE = _HERE.parent / "docs" / "performance.md"


def main() -> int:
    """Measure, print the report, write it down; 1 when a measure failed, 0 also when a goal was missed."""
    options = _options()
    started, started_s, load_before = start_of_run(), time.monotonic(), os.getloadavg()[0]
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    figures: list[Figure] = []
    failures: list[Failure] = []
    sizes = QUICK if options.quick else FULL
    with running_server(folder, unix_socket=options.unix_socket) as server, server.connect() as meter:
        bench = Bench(server, meter, sizes, folder, ours=not options.raw_only)
        for name in options.only or [*(["peers"] if options.peers else []), *BY_DEFAULT]:
            say(f"{name}")
            try:
                figures += MEASURES[name](bench)
            except Exception as error:  # noqa: BLE001 - the other measures still count
                say(traceback.format_exc())
                failures.append(Failure(name, f"{type(error).__name__}: {error}"))
        version = server.version
    run = Run(
        started=started,
        duration_s=time.monotonic() - started_s,
        server_version=version,
        transport="a unix socket" if options.unix_socket else "loopback TCP",
        sizes=asdict(sizes),
        figures=figures,
        failures=failures,
        load_before=load_before,
    )
    sys.stdout.write(as_markdown(run))
    say(f"written to {write_results(run, _RESULTS)}")
    if options.write_docs:
        write_into_docs(run, _DOCS_PAGE)
    if failures:
        say(f"logs are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure throughput, latency and cost.")
    parser.add_argument("--only", type=_names, metavar="NAMES", help=f"comma-separated, of: {', '.join(MEASURES)}")
    parser.add_argument("--quick", action="store_true", help="one short round: rough figures in about a minute")
    parser.add_argument(
        "--peers", action="store_true", help="measure the fastest peer too, in an environment of its own"
    )
    parser.add_argument("--raw-only", action="store_true", help="measure the raw loop alone, to judge the machine")
    parser.add_argument(
        "--unix-socket", action="store_true", help="reach Redis over a unix socket instead of loopback TCP"
    )
    parser.add_argument("--write-docs", action="store_true", help="put the figures into docs/performance.md")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in MEASURES]:
        raise argparse.ArgumentTypeError(f"no measure called {', '.join(unknown)}; there are {', '.join(MEASURES)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
