"""Groups the public names by the package that defines them; mkdocstrings renders each from its docstring."""

from __future__ import annotations

import importlib
import inspect
from typing import Final

INDEX: Final = "reference/api/README.md"
PACKAGES: Final = {
    "orchestrator.workers.testing": "reference/api/testing.md",
    "orchestrator.sync": "reference/api/sync.md",
}
"""Public packages with a page of their own. A name of `orchestrator` is on the page of the package that defines it."""
TITLES: Final = {"core": "Errors", "sync": "Blocking client", "testing": "Tests of agents"}


def api() -> dict[str, str]:
    """Return the text of each page of the Python API, by its path."""
    groups: dict[str, list[str]] = {}
    for package in ("orchestrator", *PACKAGES):
        module = importlib.import_module(package)
        for name in module.__all__:
            path = PACKAGES.get(package) or _page_of(getattr(module, name))
            groups.setdefault(path, []).append(f"{package}.{name}")
    ordered = dict(sorted(groups.items()))
    pages = {path: f"# {title(path)}\n\n{_identifiers(names)}\n" for path, names in ordered.items()}
    return {INDEX: _index(ordered), **pages}


def title(path: str) -> str:
    """Return the heading of a page."""
    stem = path.rpartition("/")[2].removesuffix(".md")
    return "Python API" if stem == "README" else TITLES.get(stem, stem.replace("_", " ").capitalize())


def _page_of(public: object) -> str:
    home: str = getattr(public, "__module__", type(public).__module__)
    return f"reference/api/{home.split('.')[1]}.md"


def _identifiers(names: list[str]) -> str:
    return "\n\n".join(f"::: {name}" for name in names)


def _index(groups: dict[str, list[str]]) -> str:
    lines = [
        "# Python API",
        "",
        "Public names, by subject. [Conventions](../README.md#conventions-of-the-python-api) hold for all calls.",
    ]
    for path, names in groups.items():
        page = path.rpartition("/")[2]
        lines += ["", f"## [{title(path)}]({page})", "", "| name | |", "|---|---|"]
        lines += [f"| [`{name}`]({page}#{name}) | {_summary(name)} |" for name in names]
    return "\n".join(lines) + "\n"


def _summary(identifier: str) -> str:
    package, _, name = identifier.rpartition(".")
    public = getattr(importlib.import_module(package), name)
    text = inspect.getdoc(public) or ""
    return " ".join(text.partition("\n\n")[0].split())
