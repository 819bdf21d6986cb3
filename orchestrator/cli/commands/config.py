"""`orc config`: show, validate, schema; publish, withdraw, published."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - read when arguments are parsed
from typing import Annotated, Any

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.declared import noun
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import option, positional

commands = noun(
    "config",
    "orc config show --sources",
    "orc config validate orchestrator.toml",
    'orc config publish routing.model \'"large"\' --reason "the small one is down"',
)
app = commands.app


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
            value = output.json_text(value)
        source = {"source": row.source} if sources else {}
        rows.append({"name": row.name, "value": value, **source, "description": row.description})
    columns = ("name", "value", "source") if sources else ("name", "value", "description")
    output.show_list(common.output, rows, columns, key="name")


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
