"""Renders the reference page of the command line from the declared commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.cli.app import program
from orchestrator.cli.terminal.arguments import GLOBAL, usage
from orchestrator.cli.terminal.help import describe, sections

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.cli.terminal.arguments import CommandFunction
    from orchestrator.cli.terminal.help import Section
    from orchestrator.cli.terminal.parsing import Commands


def commands() -> str:
    """Return one section for each command of `orc`; the global options stand once at the top."""
    orc = program()
    shared = next(each for each in sections(_first_leaf(orc)) if each.heading == GLOBAL)
    head = (
        "# Commands\n\n[The guide](../guides/cli.md) explains output, exit codes and live views. "
        f"Every command takes the global options.\n\n{_options(shared)}"
    )
    return "\n".join([head, *_sections("orc", orc)])


def _first_leaf(orc: Commands) -> CommandFunction:
    leaf = orc.load("status").own
    assert leaf is not None
    return leaf


def _sections(path: str, commands: Commands) -> Iterator[str]:
    for name, about in commands.lazies.items():
        loaded = commands.load(name)
        if loaded.own is None:
            yield f"## {path} {name}\n\n{about}\n{_examples(loaded.examples)}"
        else:
            yield _leaf(f"{path} {name}", loaded.own)
        yield from _sections(f"{path} {name}", loaded)
    for name, leaf in commands.leaves.items():
        yield _leaf(f"{path} {name}", leaf)


def _leaf(path: str, leaf: CommandFunction) -> str:
    paragraphs = "\n\n".join(_escape(text) for text in describe(leaf.function).paragraphs)
    options = "\n".join(_options(each) for each in sections(leaf) if each.heading != GLOBAL)
    line = f"```text\n{usage(path, leaf.arguments)}\n```\n"
    return f"## {path}\n\n{line}\n{paragraphs}\n\n{options}{_examples(leaf.examples)}"


def _options(section: Section) -> str:
    rows = "".join(f"* `{names}`: {_escape(text)}\n" for names, text in section.rows)
    return f"**{section.heading}**:\n\n{rows}"


def _examples(examples: Sequence[str]) -> str:
    return "\n```console\n" + "".join(f"$ {line}\n" for line in examples) + "```\n" if examples else ""


def _escape(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", r"\*")
