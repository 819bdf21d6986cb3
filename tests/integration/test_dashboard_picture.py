"""A real run fills every panel of the dashboard."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tools.grafana import panels

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

ROOT: Final = Path(__file__).parents[2]
SVG: Final = "{http://www.w3.org/2000/svg}"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="prometheus is missing; install the package prometheus"
    ),
]


def test_every_panel_has_data(tmp_path: Path) -> None:
    """Prometheus scrapes a supervisor and a worker host under load, and answers each panel."""
    from xml.etree import ElementTree as ET

    target = tmp_path / "dashboard.svg"
    command = [sys.executable, "-m", "tools.dashboard_picture", str(target), "0.5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    drawn = {texts[0]: texts[1:] for group in ET.parse(target).getroot().iter(f"{SVG}g") if (texts := _texts(group))}
    assert drawn.keys() == {panel.title for panel in panels()}
    assert [title for title, texts in drawn.items() if "no data" in texts] == []
    assert drawn["Leader"] == ["yes"]
    assert drawn["Workers"] == ["2"]
    assert re.fullmatch(r"\d+", drawn["Dead letters"][0])


def _texts(group: Element) -> list[str]:
    return [text.text or "" for text in group.iter(f"{SVG}text")]
