"""What mypy and pyright say of the code that users write: snippets with types that hold and mistakes that are seen.

Each mistake bears the comments with which both checkers pass over it. Neither lets such a comment stand where it has
nothing to pass over, so a mistake that is no longer seen is found as well. The snippets never run.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
SNIPPETS: Final = sorted(path for path in HERE.glob("*.py") if path.name != Path(__file__).name)

PLANTED: Final = '''
"""Mistakes without the comments, and comments without a mistake."""

from typing import assert_type

from orchestrator import Orchestrator, TaskHandle
from orchestrator import Agent, Snoze  # planted

agent = Agent("editor", concurency=8)  # planted


@agent.skill
async def count(text: str) -> int:
    """Count."""
    return len(text)


async def submit(orc: Orchestrator) -> None:
    """Submit."""
    handle = await orc.submit(count, {"text": "a"})
    assert_type(handle, TaskHandle[int])
    assert_type(await handle.result(), str)  # planted
    await orc.submit(count, prio="high")  # planted
    await count(5)  # planted
    await count("a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # planted


__all__ = ["Snoze"]
'''

Place = tuple[str, int]
"""File and line."""


def ask_mypy(files: Sequence[Path]) -> dict[Place, str]:
    """Ask mypy, as `make check` does; answer what it finds."""
    asked = [sys.executable, "-m", "mypy", "--no-error-summary", *map(str, files)]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    lines = [re.fullmatch(r"(.+?):(\d+): error: (.+)", line) for line in done.stdout.splitlines()]
    return {(Path(line[1]).name, int(line[2])): line[3] for line in lines if line}


def ask_pyright(files: Sequence[Path]) -> dict[Place, str]:
    """Ask pyright in its strict mode, as `make check` does; answer what it finds."""
    program = [sys.executable, "-m", "basedpyright", "--project", str(HERE), "--pythonpath", sys.executable]
    asked = [*program, "--outputjson", *map(str, files)]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert answer["summary"]["filesAnalyzed"] == len(files)
    return {
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1): one["message"]
        for one in answer["generalDiagnostics"]
    }


@pytest.mark.timeout(180)  # mypy without its cache
@pytest.mark.parametrize("ask", [ask_mypy, ask_pyright], ids=["mypy", "pyright"])
def test_checkers_see_every_mistake_and_no_other(
    ask: Callable[[Sequence[Path]], dict[Place, str]], tmp_path: Path
) -> None:
    """Nothing is found in the snippets, and each mistake in a file that was planted beside them."""
    planted = tmp_path / "planted.py"
    planted.write_text(PLANTED, encoding="utf-8")
    marked = {(planted.name, number) for number, line in enumerate(PLANTED.splitlines(), 1) if "# planted" in line}
    found = ask([*SNIPPETS, planted])
    assert {place: message for place, message in found.items() if place not in marked} == {}
    assert marked - found.keys() == set()
