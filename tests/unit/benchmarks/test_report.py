"""The report of a run with peers: their table, those that are missing, and the same for programs."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.comparison import Comparison
from benchmarks.figures import Failure, figure_of
from benchmarks.peer import InstalledPeer, MissingPeer
from benchmarks.peers.registry import PEERS
from benchmarks.report import Run, as_json, as_markdown, start_of_run, write_into_docs
from benchmarks.sizes import QUICK

ARQ, SAQ = PEERS["arq"], PEERS["saq"]
MISSING = MissingPeer("ardiq", "needs python3.12")
COMPARISON = Comparison(
    "drain, 1 worker process",
    "tasks/s",
    {"ours": [30_000.0], "raw": [24_000.0], "arq": [1_200.0]},
    ["arq", "saq"],
    more_is_better=True,
)


def _run(*, comparisons: list[Comparison], missing: list[MissingPeer]) -> Run:
    return Run(
        started=start_of_run(),
        duration_s=1.0,
        server_version="8.2.3",
        transport="loopback TCP",
        servers={"embedded": "appendonly no, save off"},
        sizes=asdict(QUICK),
        figures=[figure_of("drain", "1 worker process", "tasks/s", [30_000.0], [24_000.0])],
        failures=[Failure("saq", "TimeoutError: 3 of 500 tasks did not start.")],
        load_before=0.0,
        comparisons=comparisons,
        peers=[InstalledPeer(ARQ, Path("python")), InstalledPeer(SAQ, Path("python"))] if comparisons else [],
        missing_peers=missing,
    )


def test_table_of_peers() -> None:
    """Each system has a column with its figure and ours as a multiple of it; a gap says that it was not measured."""
    report = as_markdown(_run(comparisons=[COMPARISON], missing=[]))
    assert "| | server | ours | raw | arq | saq |" in report
    assert "| drain, 1 worker process, tasks/s | embedded | 30,000 | 24,000 (1.25) | **1,200** (25.00) | - |" in report
    assert f"arq {ARQ.version}, saq {SAQ.version}" in report


def test_missing_and_failed_peers() -> None:
    """The report says which peers are missing or failed, and why."""
    report = as_markdown(_run(comparisons=[COMPARISON], missing=[MISSING]))
    assert "- **Missing** ardiq: needs python3.12" in report
    assert "- **Failed** saq: TimeoutError: 3 of 500 tasks did not start." in report


def test_no_peer_at_all() -> None:
    """When every peer is missing the report says so, and has no table of them."""
    report = as_markdown(_run(comparisons=[], missing=[MISSING]))
    assert "- **Missing** ardiq: needs python3.12" in report
    assert "Peers of the same run" not in report


def test_report_for_programs() -> None:
    """The JSON holds all rounds of all systems, the versions of the peers, and those that are missing."""
    report = json.loads(as_json(_run(comparisons=[COMPARISON], missing=[MISSING])))
    (comparison,) = report["comparisons"]
    assert comparison["rounds"] == {"ours": [30_000.0], "raw": [24_000.0], "arq": [1_200.0]}
    assert (comparison["best_peer"], comparison["ours_to"]) == ("arq", {"raw": 1.25, "arq": 25.0})
    assert report["peers"] == {"arq": ARQ.version, "saq": SAQ.version}
    assert report["missing_peers"] == [{"name": "ardiq", "reason": "needs python3.12"}]


def test_figures_go_into_their_part_of_the_page(tmp_path: Path) -> None:
    """A run that measured shared state alone leaves the figures of tasks as they are, and the text around both."""
    page = tmp_path / "page.md"
    page.write_text(
        "a\n<!-- figures: begin -->of old<!-- figures: end -->\n"
        "b\n<!-- shared state: begin --><!-- shared state: end -->\nc\n"
        "<!-- chats and memories: begin -->old too<!-- chats and memories: end -->\n"
        "<!-- vectors: begin --><!-- vectors: end -->\n",
        encoding="utf-8",
    )
    run = _run(comparisons=[COMPARISON], missing=[])
    write_into_docs(replace(run, figures=[figure_of("locks", "ours", "pairs/s", [7.0])]), page)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("a\n<!-- figures: begin -->of old<!-- figures: end -->\nb\n<!-- shared state: begin -->\n")
    assert text.endswith(
        "<!-- shared state: end -->\nc\n<!-- chats and memories: begin -->old too<!-- chats and memories: end -->\n"
        "<!-- vectors: begin --><!-- vectors: end -->\n"
    )
    assert "| locks | ours | embedded | 7 pairs/s |" in text
    write_into_docs(run, page)
    both = page.read_text(encoding="utf-8")
    assert "| drain | 1 worker process | embedded | 30,000 tasks/s |" in both
    assert "| locks | ours | embedded | 7 pairs/s |" in both
    assert "of old" not in both
    write_into_docs(replace(run, figures=[figure_of("chat", "read", "ms", [0.3])]), page)
    three = page.read_text(encoding="utf-8")
    assert three.startswith(both[: both.index("old too")])
    assert "| chat | read | embedded | 0.3 ms |" in three
    assert "old too" not in three
    write_into_docs(replace(run, figures=[figure_of("vectors", "exact, p50", "ms", [0.4])]), page)
    four = page.read_text(encoding="utf-8")
    assert "| vectors | exact, p50 | embedded | 0.4 ms |" in four.partition("<!-- vectors: begin -->")[2]
    assert "| chat | read | embedded | 0.3 ms |" in four
