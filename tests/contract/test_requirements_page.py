"""docs/internals/requirements.md has a line for every wish, and names only places and tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
TEXT: Final = (ROOT / "docs/internals/requirements.md").read_text(encoding="utf-8")
ITEM: Final = re.compile(
    r"^- \*\*(\S+)\*\* (.+?)\s\*Where:\* (.+?)\s\*Test:\* (.+?)(?=\n\n|\n- |\n?\Z)", re.MULTILINE | re.DOTALL
)
ROWS: Final = [[" ".join(cell.split()) for cell in item.groups()] for item in ITEM.finditer(TEXT)]
IDS: Final = [
    *(f"0.{number:02}" for number in range(1, 46)),
    *(f"1.{number:02}" for number in range(1, 36)),
    *(f"2.{number:02}" for number in range(1, 48)),
    *(f"3.{number:02}" for number in range(1, 24)),
    *(f"4.{number:02}" for number in range(1, 50)),
    *(f"D{number}" for number in range(1, 19)),
    *(f"B{number}" for number in range(1, 47)),
]
LATER: Final = {"4.35", "4.38"}
"""Items of memory and chats that wait for a cluster of several servers."""


@cache
def names_in(path: Path) -> set[str]:
    """The names of the tests in a file, those of classes with the class before them."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        before = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        found |= {
            f"{before}{one.name}"
            for one in inner
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name.startswith("test_")
        }
    return found


def test_every_wish_has_one_line() -> None:
    """Wishes 0.01 to 0.45, 1.01 to 1.35, 2.01 to 2.47, 3.01 to 3.23, 4.01 to 4.49, contradictions, faults B1 to B46."""
    assert [row[0] for row in ROWS] == IDS


def test_what_comes_later_is_named() -> None:
    """Of memory and chats only the items of clusters have no test; the introduction names them."""
    untested = {id_ for id_, _, _, proof in ROWS if id_[:2] in {"2.", "4."} and proof.startswith("none: ")}
    assert untested == LATER
    introduction = TEXT.partition("\n## ")[0]
    assert {id_ for id_ in LATER if id_ not in introduction} == set()


def test_a_table_says_which_tool_is_for_which_update() -> None:
    """The guide to workspaces has one table with the tools of sessions, chats, agents, the prefix and other systems."""
    guide = (ROOT / "docs/guides/workspace.md").read_text(encoding="utf-8")
    table = guide.partition("## Which tool for which update\n")[2].partition("\n## ")[0]
    tools = [
        "incr",
        "if_version=",
        "newer_than=",
        "transition",
        "publish",
        "chat.append",
        "chat.upsert",
        "memory.store",
    ]
    tools += ["agent_state", "limits.check", "board(name).add", "locks", "LockedMemory", "ctx.once"]
    assert [tool for tool in tools if not re.search(rf"^\|.*{re.escape(tool)}.*\|.+\|$", table, re.MULTILINE)] == []


def test_no_outdated_command() -> None:
    """No script and no program sends HMSET, which Redis 4.0 has replaced."""
    sources = [
        *(ROOT / "lua").rglob("*.lua"),
        *(ROOT / "orchestrator").rglob("*.py"),
        *(ROOT / "workers").rglob("*.py"),
    ]
    assert len(sources) > 300
    assert [path for path in sources if re.search(r"\bhmset\b", path.read_text(encoding="utf-8"), re.IGNORECASE)] == []


def test_named_places_and_tests_exist() -> None:
    """Modules, pages and tests that an item names exist; an item without a test gives the reason."""
    wrong: list[str] = []
    for id_, wanted, place, proof in ROWS:
        paths, pages = re.findall(r"`([\w/]+/[\w/.]+)`", place), re.findall(r"\]\(([^)#]+)", place)
        named = re.findall(r"`([\w/]+\.py)::([\w:]+)`", proof)
        wrong += [f"{id_}: {path}" for path in paths if not (ROOT / path).exists()]
        wrong += [f"{id_}: {page}" for page in pages if not (ROOT / "docs/internals" / page).resolve().exists()]
        wrong += [f"{id_}: {file}::{name}" for file, name in named if name not in names_in(ROOT / file)]
        complete = len(named) == proof.count("::") - sum(name.count("::") for _, name in named)
        if not (wanted and (paths or pages or id_[0] in "BD") and complete):
            wrong.append(f"{id_}: incomplete")
        if not named and not re.match(r"[Nn]one: .{20,}", proof):
            wrong.append(f"{id_}: neither a test nor a reason")
    assert wrong == []


def test_no_page_speaks_of_locked_paths() -> None:
    """A path, a field or a key is not locked by anybody: changes are single steps of the server."""
    wrong = re.compile(r"(?:path|field|key|row)[- ](?:level )?lock(?:ing|s|ed)\b", re.IGNORECASE)
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "lua/README.md"]
    texts = {page.name: page.read_text(encoding="utf-8") for page in pages if page.name != "requirements.md"}
    assert {name: found for name, text in texts.items() if (found := wrong.findall(text))} == {}
