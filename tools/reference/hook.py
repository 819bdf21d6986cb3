"""Adds the generated pages to the manual while mkdocs builds it."""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, normpath
from typing import TYPE_CHECKING, Final

from mkdocs.structure.files import File, Files

from tools.reference.api import INDEX, title
from tools.reference.pages import pages

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[2]
RECORDS: Final = "docs/internals/adr"
FROM_ELSEWHERE: Final = {
    "lua/README.md": "internals/scripts.md",
    "CONTRIBUTING.md": "internals/contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages of the repository outside of docs/ that the manual shows, and where."""

_LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_GENERATED: Final = pages()


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Append the pages of the Python API and the decision records to their shelves."""
    api = [{title(path): path} for path in _GENERATED if path.startswith(f"{dirname(INDEX)}/") and path != INDEX]
    records = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / RECORDS).glob("0*.md"))
    more = {
        "Reference": {"Python API": [INDEX, *api]},
        "Internals": {"Decision records": ["internals/adr/README.md", *records]},
    }
    for shelf in config.nav or []:
        for name, section in more.items():
            if name in shelf:
                shelf[name].append(section)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages and those that the repository keeps elsewhere."""
    for path, text in _GENERATED.items():
        files.append(File.generated(config, path, content=text))
    for source, path in FROM_ELSEWHERE.items():
        files.append(File.generated(config, path, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links fit the manual: to pages that moved into it, and no links to source files."""
    del config, files
    moved = {path: source for source, path in FROM_ELSEWHERE.items()}
    here = moved.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def fitted(link: re.Match[str]) -> str:
        image, text, target, anchor = link[1], link[2], link[3], link[4] or ""
        if re.match(r"[a-z]+:", target):
            return link[0]
        path = normpath(f"{dirname(here)}/{target}")
        path = FROM_ELSEWHERE.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
        if not path:
            return text
        steps = page.file.src_uri.count("/")
        return f"{image}[{text}]({'../' * steps}{path}{anchor})"

    return _LINK.sub(fitted, markdown)
