"""Renders the reference page of the command line from the declared commands."""

from __future__ import annotations

import re
import sys
from typing import Final
from unittest.mock import patch

from orchestrator.cli.app import program

_CONTENTS: Final = re.compile(r"^## Table of Contents\n.*?(?=^\*\*Commands\*\*)", re.MULTILINE | re.DOTALL)
_GLOBAL: Final = re.compile(r"^\*\*Global options\*\*:\n\n(?:\* .*\n)+\n?", re.MULTILINE)
_SECTION: Final = re.compile(r"^##+ orc (.+)\n", re.MULTILINE)


def commands() -> str:
    """Return one section for each command of `orc`; the global options stand once at the top."""
    orc = program().app
    with patch.object(sys, "argv", ["orc"]):  # cyclopts takes the name of a lazy command from there
        text = _CONTENTS.sub("", orc.generate_docs(output_format="markdown", recursive=True))
    shared = _GLOBAL.search(text)
    assert shared, "every command takes the global options"
    parts = _SECTION.split(_GLOBAL.sub("", text))
    sections = [f"## orc {name}\n{body}{_examples(name)}" for name, body in zip(parts[1::2], parts[2::2], strict=True)]
    return (
        "# Commands\n\n[The guide](../guides/cli.md) explains output, exit codes and live views. "
        f"Every command takes the global options.\n\n{shared[0]}\n{''.join(sections)}"
    )


def _examples(name: str) -> str:
    app = program().app
    for word in name.split():
        app = app[word]
    text = (app.help_epilogue or "").strip()
    lines = [line.strip() for line in text.splitlines()[1:]]
    return "\n```console\n" + "".join(f"$ {line}\n" for line in lines) + "```\n\n" if lines else "\n"
