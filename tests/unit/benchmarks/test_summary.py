"""The summary of the performance page: a short table and a picture, both from its table of peers."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from benchmarks.summary import BEGIN, END, read_rows, write_summary

if TYPE_CHECKING:
    from pathlib import Path

PAGE = f"""# Page

{BEGIN}
of old
{END}

| | server | ours | raw | arq | saq |
|---|---|--:|--:|--:|--:|
| submit, one by one, tasks/s | embedded | 7,740 | 9,122 (0.85) | 2,382 (3.25) | **4,824** (1.60) |
| end to end at rest, p50, ms | stock | 9.05 | 0.645 (1.62) | - | **1.19** (0.88) |
| end to end at rest, p50, ms | embedded | 1.05 | 0.645 (1.62) | - | **1.19** (0.88) |
| commands sent per task, commands | embedded | 0.0442 | 4.03 (0.01) | 23 (0.00) | **11.2** (0.00) |

| another | table |
"""


def test_advantages() -> None:
    """A higher rate and a lower latency are better; a system without a figure is left out."""
    rate, latency = read_rows(PAGE)
    assert round(rate.advantage("saq"), 1) == 1.6
    assert round(latency.advantage("saq"), 2) == 1.13
    assert rate.best_peer == "saq"
    assert list(latency.others) == ["raw", "saq"]


def test_table_and_picture(tmp_path: Path) -> None:
    """The table replaces the old one between the marks; the picture has a dot for each system and quantity."""
    page, picture = tmp_path / "page.md", tmp_path / "picture.svg"
    page.write_text(PAGE, encoding="utf-8")
    write_summary(page, picture)
    text = page.read_text(encoding="utf-8")
    assert "of old" not in text
    assert "| submit, one by one, tasks/s | **7,740** | 9,122 | 4,824 (saq) |" in text
    dots = ET.parse(picture).iter("{http://www.w3.org/2000/svg}circle")
    assert len(list(dots)) == 3 + 5
