"""`orc config`: show, diff, validate, schema; publish, withdraw, published."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - read when arguments are parsed
from typing import TYPE_CHECKING, Annotated, Any

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.declared import noun
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import option, positional

if TYPE_CHECKING:
    from orchestrator.agents.model import WorkerInfo

commands = noun(
    "config",
    "orc config show --sources",
    "orc config diff new.toml",
    "orc config validate orchestrator.toml",
    'orc config publish routing.model \'"large"\' --reason "the small one is down"',
)


@commands.command("show", "orc config show --sources", "orc config show -o json")
def show(*, sources: Annotated[bool, option("--sources")] = False, common: Globals = DEFAULTS) -> None:
    """Show every setting with its value. Secrets are masked.

    Args:
        sources: Show the source of each value.
    """
    rows: list[dict[str, Any]] = []
    for row in common.loaded().rows():
        value = dict(row.value) if isinstance(row.value, dict) else row.value
        if (
            common.output == "table"
            and isinstance(value, dict)
            and any(isinstance(one, dict) for one in value.values())
        ):
            value = output.json_text(value).rstrip()
        source = {"source": row.source} if sources else {}
        rows.append({"name": row.name, "value": value, **source, "description": row.description})
    columns = ("name", "value", "source") if sources else ("name", "value", "description")
    output.show_list(common.output, rows, columns, key="name")


@commands.command(
    "diff",
    "orc config diff",
    "orc config diff new.toml",
    "orc config diff --workers",
)
async def diff(
    file: Annotated[Path | None, positional("FILE")] = None,
    /,
    *,
    workers: Annotated[bool, option("--workers")] = False,
    common: Globals = DEFAULTS,
) -> None:
    """Show the settings that differ from their defaults, and whether SIGHUP or a restart applies each.

    Args:
        file: Settings file; shows what changes when it replaces the usual one.
        workers: List the live workers, and whether they run with the settings that this command reads.
    """
    from dataclasses import replace

    from orchestrator.core.errors import InvalidInput
    from orchestrator.core.settings import Settings
    from orchestrator.core.settings_reload import changes, settings_digest

    if workers:
        if file is not None:
            raise InvalidInput("give either a file or --workers")
        from orchestrator.views.workers import list_workers

        own = settings_digest(common.settings())
        async with common.services() as services:
            found = await list_workers(services)
        rows = [_settings_of(view.worker, own) for view in found.workers]
        output.show_list(common.output, rows, ("id", "generation", "settings"), key="id", empty="no live worker")
        output.say_rest(len(rows), found.total)
        return
    current = common.settings()
    old, new = (Settings(), current) if file is None else (current, replace(common, config=file).settings())
    differing = [
        {"name": one.name, "old": one.old, "new": one.new, "changes with": "SIGHUP" if one.live else "restart"}
        for one in changes(old, new)
    ]
    same = "all settings have their defaults" if file is None else f"{file} changes no setting"
    output.show_list(common.output, differing, ("name", "old", "new", "changes with"), key="name", empty=same)


def _settings_of(worker: WorkerInfo, own: str) -> dict[str, Any]:
    generation, _, digest = worker.settings.partition(" ")
    state = "unknown" if not digest else "same" if digest == own else "other"
    return {"id": worker.id, "generation": int(generation or 0) or None, "settings": state}


@commands.command("validate", "orc config validate", "orc config validate orchestrator.toml")
def validate(file: Annotated[Path | None, positional("FILE")] = None, /, *, common: Globals = DEFAULTS) -> None:
    """Check the settings from all sources. Exit code 78: a setting is invalid.

    Args:
        file: Settings file, in place of the usual one.
    """
    from dataclasses import replace

    loaded = replace(common, config=file or common.config).loaded()
    files = [place.removeprefix("file ") for place in loaded.places.values() if place.startswith("file ")]
    output.say(f"the settings are valid ({', '.join(dict.fromkeys(files)) or 'no file'})")


@commands.command(
    "schema", "orc config schema > orchestrator.schema.json", "orc config schema --commands | jq '.oneOf | length'"
)
def schema(*, of_commands: Annotated[bool, option("--commands")] = False, common: Globals = DEFAULTS) -> None:
    """Print the JSON schema of the settings, in JSON with any -o.

    Args:
        of_commands: Print the schema of the control commands instead.
    """
    from orchestrator.control.commands import commands_schema
    from orchestrator.core.settings import settings_schema

    found = commands_schema() if of_commands else settings_schema()
    output.write(output.json_text(found, indent=common.output != "jsonl"))


@commands.command("published", "orc config published", "orc config published -o json")
async def published(*, common: Globals = DEFAULTS) -> None:
    """List the published configuration values."""
    async with common.client() as orc:
        found = await orc.config.all()
    rows = [{"key": key, "value": value} for key, value in sorted(found.items())]
    output.show_list(common.output, rows, ("key", "value"), key="key", empty="no published values")
