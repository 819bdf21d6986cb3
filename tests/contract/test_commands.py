"""Which commands of Redis the code may not send: searches for keys, and tries that others may overtake."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Walks over everything, on request or slowly in the background; `orc bench` and the kit remove what they have made.
BENCH, REPAIR, KIT = "orchestrator/bench", "orchestrator/repair", "orchestrator/testing"
SIMULATIONS = "orchestrator/simulations"  # reads one set of entities in pages
MEMORY = "orchestrator/memory"  # a sweep walks over the records in one hash
VIEWS = "orchestrator/views"  # takes one step through the paths of a workspace per page
VECTORS = "orchestrator/vectors"  # reads all vectors of a memory in pages, once
TABLE = "orchestrator/doctor"  # lists the commands that others send


def senders(pattern: str) -> set[str]:
    """The folders of the modules that name such a command."""
    modules = [*(ROOT / "orchestrator").rglob("*.py"), *(ROOT / "workers").rglob("*.py")]
    return {
        module.parent.relative_to(ROOT).as_posix()
        for module in modules
        if re.search(pattern, module.read_text(encoding="utf-8"))
    }


def test_keys_are_searched_by_repair_alone() -> None:
    """A request reads an index. Only the repair searches for keys, also for backups and `orc bench`.

    A view takes one step through the paths of a workspace per page.
    """
    assert senders(r'"[HSZ]?SCAN"|scan_iter') - {KIT, TABLE} == {BENCH, REPAIR, MEMORY, SIMULATIONS, VECTORS, VIEWS}
    assert senders(r'\("KEYS"|\.keys\(f?"') <= {KIT}


def test_nobody_watches() -> None:
    """No WATCH: what depends on what is there is decided where it is, in a script."""
    assert senders(r'"WATCH"|\.watch\("') <= {KIT}
    scripts = [path.read_text(encoding="utf-8") for path in (ROOT / "lua").rglob("*.lua")]
    assert len(scripts) > 50
    assert [text for text in scripts if "'WATCH'" in text] == []
