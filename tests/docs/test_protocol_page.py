"""docs/internals/protocol.md has every rule that is cited, and names code and tests that exist."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from tests.docs.pages import ROOT

PAGE: Final = ROOT / "docs" / "internals" / "protocol.md"
RULES: Final = range(1, 42)
CODE: Final = ("orchestrator", "workers", "lua", "tests", "benchmarks", "examples")

_TITLE: Final = re.compile(r"^### Rule (\d+): \S.*$")
_PLACE: Final = re.compile(r"^- (Code|Test): \[`([\w./]+)`\]\(([\w./]+)\)(?:: (.+))?$")
_CITATION: Final = re.compile(r"protocol\s+(?:#\s*|--\s*)?rules?\s+(\d+(?:(?:,| and)\s+\d+)*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Place:
    """A file that keeps or tests a rule, and the names in it."""

    path: str
    link: str
    names: tuple[str, ...]


@dataclass(slots=True)
class Rule:
    """One rule of the page."""

    number: int
    text: list[str] = field(default_factory=list)
    places: dict[str, list[Place]] = field(default_factory=lambda: {"Code": [], "Test": []})


def rules() -> list[Rule]:
    """The rules of the page, in its order."""
    found: list[Rule] = []
    for line in _joined(PAGE.read_text(encoding="utf-8").splitlines()):
        if title := _TITLE.match(line):
            found.append(Rule(int(title[1])))
        elif place := _PLACE.match(line):
            names = tuple(re.findall(r"`([^`]+)`", place[4] or ""))
            found[-1].places[place[1]].append(Place(place[2], place[3], names))
        elif found and line and not line.startswith("#"):
            found[-1].text.append(line)
    return found


def _joined(lines: list[str]) -> list[str]:
    """The lines, with each indented line at the end of the one before."""
    joined: list[str] = []
    for line in lines:
        if line.startswith("  "):
            joined[-1] += " " + line.strip()
        else:
            joined.append(line)
    return joined


@cache
def names_in(path: str) -> frozenset[str]:
    """Functions, classes, methods (`Class.method`) and constants of a Python file; functions of a script."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".lua"):
        return frozenset(re.findall(r"^local function (\w+)\(", text, re.MULTILINE))
    return frozenset(_python_names(ast.parse(text).body))


def _python_names(body: list[ast.stmt], prefix: str = "") -> list[str]:
    names: list[str] = []
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(prefix + node.name)
        elif isinstance(node, ast.ClassDef):
            names += [prefix + node.name, *_python_names(node.body, f"{prefix}{node.name}.")]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(prefix + node.target.id)
        elif isinstance(node, ast.Assign):
            names += [prefix + target.id for target in node.targets if isinstance(target, ast.Name)]
    return names


def cited() -> dict[int, list[str]]:
    """The rules that code and docs cite, with the files."""
    found: dict[int, list[str]] = {}
    for folder in (*CODE, "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path != PAGE and path.suffix in {".py", ".lua", ".md"}:
                for citation in _CITATION.finditer(path.read_text(encoding="utf-8")):
                    for number in re.findall(r"\d+", citation[1]):
                        found.setdefault(int(number), []).append(path.relative_to(ROOT).as_posix())
    return found


def test_every_rule_is_on_the_page() -> None:
    """The numbers run from 1 to the last rule without a gap, because code and tests cite them."""
    assert [rule.number for rule in rules()] == list(RULES)


def test_cited_rules_exist() -> None:
    """Every number behind `protocol rule` in code and docs is a rule of the page."""
    citations = cited()
    assert len(citations) > 15
    assert {number: files for number, files in citations.items() if number not in RULES} == {}


def test_citations_name_the_page() -> None:
    """A comment says `protocol rule N`; a bare `rule N` could mean a rule of lua/README.md."""
    bare = re.compile(r"(?<!protocol )(?<!README\.md )\brule \d", re.IGNORECASE)
    wrong = []
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in {".py", ".lua"} or path.name == "test_protocol_page.py":
                continue
            text = re.sub(r"\s+(?:#|--)?\s*", " ", path.read_text(encoding="utf-8"))
            wrong += [f"{path.relative_to(ROOT)}: {text[at.start() - 40 : at.end()]}" for at in bare.finditer(text)]
    assert wrong == []


def test_every_rule_has_text_code_and_test() -> None:
    """Each rule says what it is, which code keeps it, and which test fails without it."""
    lacking = [rule.number for rule in rules() if not (rule.text and rule.places["Code"] and any(_tests(rule)))]
    assert lacking == []


def _tests(rule: Rule) -> list[str]:
    return [name for place in rule.places["Test"] for name in place.names]


def test_links_name_their_files() -> None:
    """A link leads to the file that its text names."""
    wrong = [
        f"rule {rule.number}: {place.path}"
        for rule in rules()
        for places in rule.places.values()
        for place in places
        if not (ROOT / place.path).is_file() or (PAGE.parent / place.link).resolve() != (ROOT / place.path).resolve()
    ]
    assert wrong == []


def test_named_functions_exist() -> None:
    """Each function, method and test that a rule names is in the linked file."""
    wrong = [
        f"rule {rule.number}: {place.path} has no {name}"
        for rule in rules()
        for places in rule.places.values()
        for place in places
        for name in place.names
        if name not in names_in(place.path)
    ]
    assert wrong == []


def test_code_bullets_are_understood() -> None:
    """Every list item of the page is a link to code or to a test, so that no item escapes the tests above."""
    items = [line for line in _joined(PAGE.read_text(encoding="utf-8").splitlines()) if line.startswith("- ")]
    assert [item for item in items if not _PLACE.match(item)] == []
