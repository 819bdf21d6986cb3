"""Measures recall by meaning on real texts, and draws it: `python -m benchmarks.recall [--sizes 1000,10000]`.

For each embedder and each rung, a memory grows to each size in turn. `--write-docs` puts picture and table into
docs/guides/recall.md; `--redraw` takes the figures of the last run, which benchmarks/results/recall.json keeps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from html import escape
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.clouds import NEIGHBOURS, Cloud, of_texts
from benchmarks.corpus import load_corpus
from benchmarks.harness import say
from benchmarks.measures.vectors import record_of
from benchmarks.server import running_server
from benchmarks.timing import latencies
from orchestrator import HashedNgrams, Orchestrator, WordLlamaEmbedder
from orchestrator.core.event_loop import run_loop
from orchestrator.core.settings_sources import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.server import Server
    from orchestrator import Embedder, Memory

_ROOT: Final = Path(__file__).resolve().parent.parent
_PAGE: Final = _ROOT / "docs" / "guides" / "recall.md"
_PICTURE: Final = _ROOT / "docs" / "images" / "recall.svg"
_RESULTS: Final = _ROOT / "benchmarks" / "results" / "recall.json"
_BEGIN, _END = "<!-- recall: begin -->", "<!-- recall: end -->"
RUNGS: Final = ("vectorset", "lsh", "exact")
_SIZES: Final = (1_000, 3_000, 10_000, 30_000)
_CALLS, _PASSES = 100, 5
_BATCH, _AT_ONCE = 100, 4


@dataclass(frozen=True, slots=True)
class Point:
    """One rung with the vectors of one embedder, at one size.

    Attributes:
        recall: share of the ten nearest that `similar` returns.
        p50: median of a call in ms; the lowest of some passes, because a machine can be noisy.
    """

    embedder: str
    rung: str
    size: int
    recall: float
    p50: float


def main() -> None:
    """Measure or read, print the table, and write the page."""
    options = _options()
    if options.redraw:
        kept = json.loads(_RESULTS.read_text(encoding="utf-8"))
        conditions, points = kept["conditions"], [Point(**point) for point in kept["points"]]
    else:
        conditions, points = _measure(options.sizes)
        _RESULTS.parent.mkdir(exist_ok=True)
        text = json.dumps({"conditions": conditions, "points": [asdict(point) for point in points]}, indent=1)
        _RESULTS.write_text(text, encoding="utf-8")
    print(as_table(conditions, points))
    if options.write_docs:
        write_page(_PAGE, _PICTURE, conditions, points)


def write_page(page: Path, picture: Path, conditions: str, points: Sequence[Point]) -> None:
    """Put the table between the marks of a page, and the picture beside it."""
    before, begun, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    _, ended, after = rest.partition(_END)
    if not begun or not ended:
        raise SystemExit(f"{page} has no marks {_BEGIN} and {_END} to write between.")
    page.write_text(f"{before}{_BEGIN}\n\n{as_table(conditions, points)}\n{_END}{after}", encoding="utf-8")
    picture.write_text(as_svg(points), encoding="utf-8")


def as_table(conditions: str, points: Sequence[Point]) -> str:
    """Return the conditions and a Markdown table."""
    lines = [
        f"| {point.embedder} | `{point.rung}` | {point.size:,} | {point.recall:.3f} | {point.p50:.2f} |"
        for point in points
    ]
    head = ["| embedder | rung | vectors | recall@10 | p50, ms |", "|---|---|--:|--:|--:|"]
    return "\n".join([*conditions.splitlines(), "", *head, *lines]) + "\n"


# --------------------------------------------------------------------------------------------------------- measurement


def _measure(sizes: Sequence[int]) -> tuple[str, list[Point]]:
    points: list[Point] = []
    load, corpus = os.getloadavg()[0], load_corpus(max(sizes))
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder), unix_socket=False) as server:
        for embedder in (WordLlamaEmbedder(), HashedNgrams()):
            say(f"embed with {embedder!r}")
            cloud = of_texts(max(sizes), embedder=embedder)
            for rung in RUNGS:
                points += run_loop(partial(_grow, server, embedder, rung, cloud, sizes))
                with server.connect() as client:
                    client.flushall()
        version = server.version
    conditions = [
        f"Measured {datetime.now(tz=UTC):%Y-%m-%d}: {corpus.summary}.",
        f"The questions are {len(corpus.questions)} other paragraphs; recall@10 is the share of the ten nearest found.",
        f"Redis {version} on loopback TCP, {os.cpu_count()} processors; load before the run {load:.1f}.",
    ]
    return "\n".join(conditions), points


async def _grow(server: Server, embedder: Embedder, rung: str, cloud: Cloud, sizes: Sequence[int]) -> list[Point]:
    settings = load_settings(
        overrides={
            "redis.url": server.url,
            "memory.vector_rung": rung,
            "memory.max_stm_records": 10_000_000,
            "memory.max_bytes": 2**36,
        }
    )
    points = []
    async with Orchestrator(settings=settings) as orc:
        memory, stored = orc.memory("bench"), 0
        for size in sorted(sizes):
            say(f"  {rung}, {size:,} vectors")
            await _fill(memory, cloud, range(stored, size))
            stored = size
            part = Cloud(cloud.name, cloud.stored[:size], cloud.asked)
            search = partial(_search, memory, cloud)
            recall = part.truth().recall([await search(asked) for asked in range(len(cloud.asked))])
            passes = [(await latencies(search, min(_CALLS, len(cloud.asked)))).p50 for _ in range(_PASSES)]
            points.append(Point(repr(embedder), rung, size, recall, min(passes)))
    return points


async def _fill(memory: Memory, cloud: Cloud, numbers: range) -> None:
    starts = iter(numbers[::_BATCH])

    async def work() -> None:
        for start in starts:
            part = range(start, min(start + _BATCH, numbers.stop))
            await memory.store_many([record_of(number, cloud.stored[number].tobytes()) for number in part])

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(work())


async def _search(memory: Memory, cloud: Cloud, asked: int) -> list[int]:
    found = await memory.similar(cloud.asked[asked].tobytes(), NEIGHBOURS)
    return [int(hit.record.id.removeprefix("id-")) for hit in found]


# ------------------------------------------------------------------------------------------------------------- picture

_COLOURS: Final = {"vectorset": "#2563eb", "lsh": "#d97706", "exact": "#059669"}
_WIDTH, _HEIGHT, _LEFT, _TOP = 300, 200, 60, 70
_GAP: Final = 80


def as_svg(points: Sequence[Point]) -> str:
    """Return two charts side by side: recall and latency by the number of vectors."""
    embedders = list(dict.fromkeys(point.embedder for point in points))
    sizes = sorted({point.size for point in points})
    lowest = min(point.recall for point in points)
    floor = max(0.0, min(0.9, int(lowest * 20) / 20))
    slowest, quickest = max(point.p50 for point in points), min(point.p50 for point in points)
    ticks = [tick for tick in _TICKS if quickest / 2.5 <= tick <= slowest * 2.5]
    width, height = _LEFT + 2 * _WIDTH + _GAP + 30, _TOP + _HEIGHT + 50

    def across(size: int) -> float:
        span = log10(sizes[-1] / sizes[0]) or 1.0
        return _WIDTH * log10(size / sizes[0]) / span

    def share(recall: float) -> float:
        return _HEIGHT * (1 - (recall - floor) / (1 - floor))

    def slow(ms: float) -> float:
        return _HEIGHT * (1 - log10(ms / ticks[0]) / log10(ticks[-1] / ticks[0]))

    grid = [floor + (1 - floor) * step / 5 for step in range(6)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {_FONT}>',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *_legend(embedders),
            *_axes(_LEFT, "recall@10", [(share(value), f"{value:.2f}") for value in grid], sizes, across),
            *_lines(_LEFT, points, embedders, lambda point: (across(point.size), share(point.recall))),
            *_axes(_LEFT + _WIDTH + _GAP, "ms, p50", [(slow(tick), f"{tick:g}") for tick in ticks], sizes, across),
            *_lines(_LEFT + _WIDTH + _GAP, points, embedders, lambda point: (across(point.size), slow(point.p50))),
            "</svg>",
            "",
        ]
    )


_FONT: Final = 'font-family="sans-serif" font-size="12"'
_TICKS: Final = (0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def _legend(embedders: Sequence[str]) -> Iterator[str]:
    for number, (rung, colour) in enumerate(_COLOURS.items()):
        x = _LEFT + 110 * number
        yield f'<line x1="{x}" y1="16" x2="{x + 24}" y2="16" stroke="{colour}" stroke-width="3"/>'
        yield f'<text x="{x + 30}" y="20">{rung}</text>'
    for number, embedder in enumerate(embedders):
        x = _LEFT + 220 * number
        yield f'<line x1="{x}" y1="38" x2="{x + 24}" y2="38" stroke="#111827" {_dash(number)}/>'
        yield f'<text x="{x + 30}" y="42">{escape(embedder)}</text>'


def _dash(number: int) -> str:
    return f'stroke-dasharray="{4 * number} {3 * number}"' if number else ""


def _axes(
    left: int, title: str, rows: Sequence[tuple[float, str]], sizes: Sequence[int], across: Callable[[int], float]
) -> Iterator[str]:
    yield f'<text x="{left}" y="{_TOP - 10}">{title}</text>'
    for y, label in rows:
        yield f'<line x1="{left}" y1="{_TOP + y:.1f}" x2="{left + _WIDTH}" y2="{_TOP + y:.1f}" stroke="#e5e7eb"/>'
        yield f'<text x="{left - 6}" y="{_TOP + y + 4:.1f}" text-anchor="end">{label}</text>'
    for size in sizes:
        x = left + across(size)
        yield f'<text x="{x:.1f}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">{size:,}</text>'
    yield f'<text x="{left + _WIDTH / 2:.1f}" y="{_TOP + _HEIGHT + 38}" text-anchor="middle">vectors</text>'


def _lines(
    left: int, points: Sequence[Point], embedders: Sequence[str], place: Callable[[Point], tuple[float, float]]
) -> Iterator[str]:
    for number, embedder in enumerate(embedders):
        for rung, colour in _COLOURS.items():
            chosen = [point for point in points if (point.embedder, point.rung) == (embedder, rung)]
            placed = [(left + x, _TOP + y) for x, y in map(place, chosen)]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
            yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" {_dash(number)}/>'
            for point, (x, y) in zip(chosen, placed, strict=True):
                told = escape(f"{embedder}, {rung}, {point.size:,}: recall {point.recall:.3f}, {point.p50:.2f} ms")
                yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"><title>{told}</title></circle>'


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recall", description="Measure recall on real texts.")
    parser.add_argument("--sizes", type=_sizes, default=_SIZES, metavar="COUNTS", help="numbers of vectors")
    parser.add_argument("--redraw", action="store_true", help="take the figures of the last run")
    parser.add_argument("--write-docs", action="store_true", help="write into docs/guides/recall.md")
    return parser.parse_args()


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(count) for count in text.split(","))


if __name__ == "__main__":
    main()
