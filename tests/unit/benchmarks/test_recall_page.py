"""The picture and the table of the page about recall."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from benchmarks.recall import RUNGS, Point, as_svg, as_table, write_page

if TYPE_CHECKING:
    from pathlib import Path

POINTS = [
    Point(embedder, rung, size, recall=1 - size / 1e6, p50=size / 500)
    for embedder in ("One()", "Two()")
    for rung in RUNGS
    for size in (1000, 10_000, 100_000)
]


def test_picture() -> None:
    """Each point is in both charts, inside of the picture, and higher recall is higher up."""
    picture = ET.fromstring(as_svg(POINTS))
    width, height = map(int, picture.attrib["viewBox"].split()[2:])
    circles = [each for each in picture.iter() if each.tag.endswith("circle")]
    assert len(circles) == 2 * len(POINTS)
    places = [(float(each.attrib["cx"]), float(each.attrib["cy"])) for each in circles]
    assert all(0 < x < width and 0 < y < height for x, y in places)
    assert [x for x, _ in places[:3]] == sorted(x for x, _ in places[:3])
    assert [y for _, y in places[:3]] == sorted(y for _, y in places[:3])
    assert ET.fromstring(as_svg([Point("One()", "exact", 1000, 1.0, 1.0)])) is not None


def test_page(tmp_path: Path) -> None:
    """The table goes between the marks; what was there is replaced, and the rest stays."""
    page, picture = tmp_path / "page.md", tmp_path / "page.svg"
    page.write_text("before\n<!-- recall: begin -->\nold\n<!-- recall: end -->\nafter\n")
    write_page(page, picture, "Measured.", POINTS)
    text = page.read_text()
    assert text.startswith("before\n<!-- recall: begin -->\n\nMeasured.\n\n| embedder |")
    assert text.endswith("|\n\n<!-- recall: end -->\nafter\n")
    assert "old" not in text
    assert "| One() | `lsh` | 10,000 | 0.990 | 20.00 |" in text
    assert as_table("Measured.", POINTS) in text
    write_page(page, picture, "Measured.", POINTS)
    assert page.read_text() == text
    page.write_text("no marks")
    with pytest.raises(SystemExit, match="has no marks"):
        write_page(page, picture, "Measured.", POINTS)
