"""Runs the benchmarks: `python -m benchmarks [--only drain,submit] [--peers] [--quick]`."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.figures import Failure
from benchmarks.harness import Bench, say
from benchmarks.measures import BY_DEFAULT, MAIN, MEASURES
from benchmarks.peers.environment import install_all
from benchmarks.peers.histories import HISTORIES, install_histories
from benchmarks.peers.registry import PEERS
from benchmarks.picture import as_picture, rates_by_size
from benchmarks.report import Run, as_markdown, start_of_run, write_into_docs, write_results
from benchmarks.server import EMBEDDED, SETTINGS, running_server
from benchmarks.server_cost import keep_slow_calls
from benchmarks.sizes import FULL, QUICK
from benchmarks.summary import write_summary
from orchestrator import NoAgentWarning

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from benchmarks.server_cost import Drain

_HERE = Path(__file__).resolve().parent
_RESULTS = _HERE / "results"
_DOCS_PAGE = _HERE.parent / "docs" / "internals" / "performance.md"
_SIZES_PICTURE = _HERE.parent / "docs" / "images" / "payload-sizes.svg"
_PICTURE = _HERE.parent / "docs" / "images" / "performance.svg"


def main() -> int:
    """Measure, print the report and write it to disk. Returns 1 if a measure failed; a missed goal is no failure."""
    options = _options()
    warnings.simplefilter("ignore", NoAgentWarning)  # tasks are submitted before their workers start
    if options.peers:
        say("environments of peers")  # before anything is timed, because the first run installs packages
    peers, missing = install_all(PEERS[name] for name in options.peers if name in PEERS)
    histories, no_histories = install_histories(name for name in options.peers if name in HISTORIES)
    missing += no_histories
    for one in missing:
        say(f"{one.name} is missing: {one.reason}")
    sizes = QUICK if options.quick else FULL
    if options.vectors:
        sizes = replace(sizes, vectors=options.vectors)
    started_s = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    run = Run(
        started=start_of_run(),
        duration_s=0.0,
        server_version="",
        transport="a unix socket" if options.unix_socket else "loopback TCP",
        servers={},
        sizes=asdict(sizes),
        figures=[],
        failures=[],
        peers=peers,
        missing_peers=missing,
        load_before=os.getloadavg()[0],
    )
    written = _RESULTS
    drains: dict[str, dict[int, dict[str, list[Drain]]]] = {settings: {} for settings in SETTINGS}
    passes = [(settings, name) for settings in options.server_settings for name in _measures_on(settings, options)]
    for number, (settings, name) in enumerate(passes, 1):
        minutes = (time.monotonic() - started_s) / 60
        say(f"{name}, {settings} settings: {number} of {len(passes)} measures, after {minutes:.1f} minutes")
        figures, failures, comparisons = list(run.figures), list(run.failures), list(run.comparisons)
        # A server of its own for each measure, so that a server that dies fails one measure.
        with contextlib.ExitStack() as stack:
            failed_peers: list[Failure] = []
            try:
                server = stack.enter_context(
                    running_server(folder, options.server, unix_socket=options.unix_socket, settings=settings)
                )
                meter = stack.enter_context(server.connect())
                keep_slow_calls(meter)
                bench = Bench(
                    server,
                    meter,
                    sizes,
                    folder,
                    ours=not options.raw_only,
                    peers=peers,
                    histories=histories,
                    comparisons=comparisons,
                    failures=failed_peers,
                    drains=drains[settings],
                    settings=settings,
                )
                run = replace(run, server_version=server.version, servers={**run.servers, settings: server.settings})
                figures += (replace(figure, settings=settings) for figure in MEASURES[name](bench))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the other measures still count
                say(traceback.format_exc())
                failures.append(Failure(f"{name}, {settings}", f"{type(error).__name__}: {error}"))
            failures += [Failure(f"{name}, {settings}, {one.measure}", one.reason) for one in failed_peers]
        run = replace(
            run,
            duration_s=time.monotonic() - started_s,
            figures=figures,
            failures=failures,
            comparisons=comparisons,
        )
        # After each measure, so that an interrupted run leaves its figures.
        written = write_results(run, _RESULTS)
    sys.stdout.write(as_markdown(run))
    say(f"written to {written}")
    if options.write_docs:
        write_into_docs(run, _DOCS_PAGE)
        if run.comparisons:
            write_summary(_DOCS_PAGE, _PICTURE)
        if rates := rates_by_size(run.comparisons):
            words = (
                f"Redis {run.server_version}, settings of the embedded server, {os.cpu_count()} cores, no-op handlers"
            )
            _SIZES_PICTURE.write_text(as_picture(rates, words), encoding="utf-8")
    if run.failures:
        say(f"logs are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def _measures_on(settings: str, options: argparse.Namespace) -> Sequence[str]:
    names: Sequence[str] = options.only or (BY_DEFAULT if settings == EMBEDDED else MAIN)
    return names


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure throughput, latency and cost.")
    parser.add_argument("--only", type=_measures, metavar="NAMES", help=f"comma-separated, of: {', '.join(MEASURES)}")
    parser.add_argument("--quick", action="store_true", help="one short round: rough figures in about a minute")
    parser.add_argument(
        "--peers",
        type=_peers,
        nargs="?",
        const=[*PEERS, *HISTORIES],
        default=[],
        metavar="NAMES",
        help=f"measure peers too, each in an environment of its own; all, or of: {', '.join([*PEERS, *HISTORIES])}",
    )
    parser.add_argument("--raw-only", action="store_true", help="measure the raw loop alone, to judge the machine")
    parser.add_argument(
        "--server-settings",
        type=lambda text: _names(text, "kind of server settings", SETTINGS),
        default=list(SETTINGS),
        metavar="NAMES",
        help=f"comma-separated, of: {', '.join(SETTINGS)}; default: all, the second for the main measures only",
    )
    parser.add_argument(
        "--unix-socket", action="store_true", help="reach Redis over a unix socket instead of loopback TCP"
    )
    parser.add_argument(
        "--server",
        type=Path,
        metavar="PATH",
        help="redis-server program to measure with; default: the newest installed",
    )
    parser.add_argument(
        "--vectors",
        type=_counts,
        metavar="COUNTS",
        help="numbers of vectors of the measure `vectors`, comma-separated; default: 10000,100000",
    )
    parser.add_argument("--write-docs", action="store_true", help="put the figures into docs/internals/performance.md")
    return parser.parse_args()


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(count) for count in text.split(","))


def _measures(text: str) -> list[str]:
    return _names(text, "measure", MEASURES)


def _peers(text: str) -> list[str]:
    return _names(text, "peer", [*PEERS, *HISTORIES])


def _names(text: str, kind: str, known: Collection[str]) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"no {kind} called {', '.join(unknown)}; there are {', '.join(known)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
