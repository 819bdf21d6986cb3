"""`orc keys`: check, report."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.confirm import ask
from orchestrator.cli.terminal.failures import DONE, FAILED
from orchestrator.cli.terminal.options import DEFAULTS, Globals, Yes
from orchestrator.cli.terminal.parsing import Commands, option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.cli.terminal.options import Form
    from orchestrator.views.keys import DamageGroup

commands = Commands(
    "keys",
    "orc keys check",
    "orc keys check --repair",
    "orc keys report",
)
app = commands.app

REPORTED: Final = ("kind", "keys", "bytes", "biggest_bytes", "biggest", "oldest")


@commands.command("check", "orc keys check", "orc keys check -o json", "orc keys check --repair --yes")
def check(
    *,
    repair: Annotated[bool, option("--repair", help="Repair the damage. Asks for confirmation.")] = False,
    yes: Yes = False,
    common: Globals = DEFAULTS,
) -> int:
    """Find damaged and lost data, such as tasks that are in no queue or in two.

    A supervisor does the same slowly in the background.

    Exit code: 0 no damage is left, 1 damage is left, 4 not confirmed. Harmless leftovers do not count.
    """
    # Not a coroutine, so that Ctrl-C ends the question.
    import anyio

    found = anyio.run(partial(_check, common, repair=repair and yes))
    if repair and not yes and (count := sum(group.count for group in found if group.repair)):
        if common.output == "table":
            _print(found, common.output)
        ask(f"repair {count} finding{'s' * (count != 1)}", yes=False)
        found = anyio.run(partial(_check, common, repair=True))
    _print(found, common.output)
    output.say(_summary(found))
    return FAILED if any(not group.repaired and not group.harmless for group in found) else DONE


async def _check(common: Globals, *, repair: bool) -> list[DamageGroup]:
    from orchestrator.views.keys import check_keys

    async with common.services() as services:
        found = await check_keys(
            services,
            repair=repair,
            on_step=lambda keys, places: output.progress(f"scanned {keys} keys, {places} places"),
        )
    output.progress("")
    return found


@commands.command("report", "orc keys report", "orc keys report -o json")
async def report(*, common: Globals = DEFAULTS) -> None:
    """Count the keys of each kind and estimate their memory from a sample."""
    from orchestrator.views.keys import count_keys

    async with common.services() as services:
        found = await count_keys(services, on_step=lambda keys: output.progress(f"counted {keys} keys"))
    output.progress("")
    rows = [{name: getattr(kind, name) for name in REPORTED} for kind in found]
    if common.output == "table":
        rows = [row | {name: _size(row[name]) for name in ("bytes", "biggest_bytes")} for row in rows]
    output.show_list(common.output, rows, REPORTED, key="kind", empty="no keys")


# ----------------------------------------------------------------------------------------------------------------- rows


def _print(found: Sequence[DamageGroup], form: Form) -> None:
    if form != "table":
        output.show_list(form, [asdict(group) for group in found], (), key="code")
        return
    for group in found:
        output.write(f"{output.paint(group.code, '1')}  {group.count}  {group.found}\n")
        done = "repaired" if group.repaired else "a repair"
        output.write(f"  {done}: {group.repair or 'none; inspect the key, then delete or rename it'}\n")
        for example in group.examples:
            output.write(f"    {output.clean(example)}\n")
        if group.count > len(group.examples):
            output.write(f"    and {group.count - len(group.examples)} more\n")


def _summary(found: Sequence[DamageGroup]) -> str:
    if not found:
        return "no damage found"
    repaired = sum(group.count for group in found if group.repaired)
    said = [(repaired, "repaired"), (sum(group.count for group in found) - repaired, "found")]
    return ", ".join(f"{count} {what}" for count, what in said if count)


def _size(size: int | None) -> str | None:
    if size is None:
        return None
    for limit, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= limit:
            return f"{size / limit:.1f} {unit}"
    return f"{size} B"
