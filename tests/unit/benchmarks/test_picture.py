"""The picture of payload sizes: a bar per system and size, from the comparisons of a run."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from benchmarks.comparison import Comparison
from benchmarks.picture import PANELS, as_picture, rates_by_size

_SVG = "{http://www.w3.org/2000/svg}"
_RATES = {"ours": [40_000.0], "raw": [30_000.0], "arq": [2_000.0]}


def _comparisons(settings: str) -> list[Comparison]:
    return [
        Comparison(quantity, "tasks/s", _RATES, ["arq"], more_is_better=True, settings=settings)
        for quantity in PANELS.values()
    ]


def test_rates() -> None:
    """Every size has the rates of its systems; a run without one of the sizes, or on another server, has no picture."""
    rates = rates_by_size(_comparisons("embedded"))
    assert list(rates) == ["100 B", "10 kB", "100 kB"]
    assert rates["10 kB"] == {"ours": 40_000.0, "raw": 30_000.0, "arq": 2_000.0}
    assert rates_by_size(_comparisons("embedded")[1:]) == {}
    assert rates_by_size(_comparisons("stock")) == {}


def test_bars() -> None:
    """The longest bar is that of the fastest system of the panel; a system that was not measured has none."""
    rates = rates_by_size(_comparisons("embedded"))
    del rates["100 kB"]["arq"]
    picture = ET.fromstring(as_picture(rates, "Redis"))
    bars = [one for one in picture.iter(f"{_SVG}rect") if one.get("class") != "card"]
    assert len(bars) == 3 * 3 - 1
    ours, raw, arq = (float(one.attrib["width"]) for one in bars[:3])
    assert ours > raw > arq
    texts = [one.text for one in picture.iter(f"{_SVG}text")]
    assert texts.count("40,000") == 3
    assert "not measured" in texts
