"""`docs/reference/api.md` names what the packages for users export: every name, method, field and parameter."""

from __future__ import annotations

import inspect
import re
from enum import Enum
from typing import Any, Final

import pytest

import orchestrator
import workers
import workers.testing
from tests.docs.pages import section
from tools.commands_table import commands_table

PAGE: Final = "docs/reference/api.md"
PACKAGES: Final = {"orchestrator": orchestrator, "workers": workers, "workers.testing": workers.testing}
MADE_FOR_USERS: Final = {
    "Admin", "AgentState", "Agents", "Board", "BoardView", "CallNext", "Crash", "Lease", "Limits", "LockInfo",
    "Locks", "MemoryBackend", "Middleware", "Outcome", "RecordedContext", "Schedules", "Scratch", "Sent",
    "SharedConfig", "Skill", "Submitted", "TaskContext", "TaskHandle", "Workspace", "WorkspaceView",
}  # fmt: skip
"""Nobody outside calls these."""
ERRORS: Final = {name for name in orchestrator.__all__ if hasattr(getattr(orchestrator, name), "exit_code")}
WITH_SECTION: Final = [(p, name) for p, module in PACKAGES.items() for name in module.__all__ if name not in ERRORS]


def documented(package: str) -> set[str]:
    """Names that have a heading or, as errors do, a row of a table of their own."""
    headings = {found[1] for line in section(PAGE, f"`{package}`") if (found := re.fullmatch(r"### `(\w+)`", line))}
    return headings | {row[0] for row in error_rows()} if package == "orchestrator" else headings


def error_rows() -> list[tuple[str, str, str]]:
    """Name, bases and exit code of each row of the table of errors."""
    form = re.compile(r"\| `(?P<name>\w+)` \| (?P<bases>.+?) \|.*\| (?P<code>\d+) \|")
    found = [form.fullmatch(line) for line in section(PAGE, "Errors")]
    return [(row["name"], row["bases"], row["code"]) for row in found if row]


def members(name: str, public: Any) -> set[str]:
    """Values of an enum; methods, properties and fields of a class; and the parameters of all that users call."""
    if not inspect.isclass(public):
        return set(inspect.signature(public).parameters) if callable(public) else set()
    own = {member for member in (*vars(public), *vars(public).get("__slots__", ())) if not member.startswith("_")}
    if issubclass(public, Enum):
        return {member.value for member in public} | (own - set(public.__members__))
    called = own if name in MADE_FOR_USERS else {*own, "__init__"}
    for function in [value for member, value in vars(public).items() if member in called]:
        if inspect.isfunction(function):
            own |= set(inspect.signature(function).parameters) - {"self"}
    return own


@pytest.mark.parametrize("package", PACKAGES)
def test_page_has_every_public_name(package: str) -> None:
    """What is exported is documented, and what is documented is exported."""
    exported = list(PACKAGES[package].__all__)
    assert documented(package) == set(exported)
    assert exported == sorted(exported, key=lambda name: (not name.isupper(), name))


@pytest.mark.parametrize(("package", "name"), WITH_SECTION)
def test_page_has_every_member(package: str, name: str) -> None:
    """A section describes each method, field and parameter; of `Admin` the generated table of commands does too."""
    table = commands_table() if name == "Admin" else ""
    words = set(re.findall(r"\w+", " ".join([*section(PAGE, f"`{name}`"), table])))
    assert sorted(members(name, getattr(PACKAGES[package], name)) - words) == []


def test_page_has_every_exit_code() -> None:
    """The table of errors has the bases and the exit code of each."""
    classes = {name: getattr(orchestrator, name) for name in ERRORS}
    assert {name: (bases, int(code)) for name, bases, code in error_rows()} == {
        name: (", ".join(f"`{base.__name__}`" for base in error.__bases__), error.exit_code)
        for name, error in classes.items()
    }
