"""`orc keys`: check, rebuild, report."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.confirm import ask
from orchestrator.cli.terminal.failures import DONE, FAILED
from orchestrator.cli.terminal.options import DEFAULTS, Globals, Yes
from orchestrator.cli.terminal.parsing import Commands, option
from orchestrator.cli.terminal.source import viewed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.cli.terminal.options import Form
    from orchestrator.views.keys import DamageGroup

commands = Commands(
    "keys",
    "orc keys check",
    "orc keys check --repair",
    "orc keys rebuild --scope agent:ada",
    "orc keys report",
)

REPORTED: Final = ("scope", "kind", "keys", "bytes", "lifetimes", "immortal", "biggest_bytes", "biggest", "oldest")
OF_SCOPES: Final = ("scope", "keys", "bytes", "alarm")


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
    if repair and not yes and _ask(found, common):
        found = anyio.run(partial(_check, common, repair=True))
    return _show(found, common)


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


@commands.command("rebuild", "orc keys rebuild", "orc keys rebuild --scope session:s1 --yes")
def rebuild(
    *,
    scope: Annotated[
        str,
        option("--scope", help="Only this one, as session:S, agent:A, user:U, domain:D or global. Default: all."),
    ] = "",
    yes: Yes = False,
    common: Globals = DEFAULTS,
) -> int:
    """Rebuild indices and counts of sessions, agents and locks from their records, after Redis lost keys.

    Shows what it would do, and asks. Programs may go on meanwhile. `orc keys check --repair` does the same, and also
    rebuilds the queues and lists of the pool.

    Exit code: 0 all is rebuilt, 1 data is lost that no other key has, 4 not confirmed.
    """
    import anyio

    found = anyio.run(partial(_rebuild, common, scope, repair=yes))
    if not yes and _ask(found, common):
        found = anyio.run(partial(_rebuild, common, scope, repair=True))
    return _show(found, common)


async def _rebuild(common: Globals, scope: str, *, repair: bool) -> list[DamageGroup]:
    from orchestrator.views.keys import check_scopes

    async with common.services() as services:
        found = await check_scopes(
            services, scope=scope, repair=repair, on_step=lambda keys: output.progress(f"scanned {keys} keys")
        )
    output.progress("")
    return found


@commands.command("report", "orc keys report", "orc keys report --by scope", "orc keys report -o json")
async def report(
    *,
    by: Annotated[
        Literal["kind", "scope"], option("--by", help="Rows: kinds of keys, or sessions and memories.")
    ] = "kind",
    common: Globals = DEFAULTS,
) -> None:
    """Count keys by kind with their memory and lifetimes, and name what needs a look.

    `--by scope` lists the biggest sessions and memories, and each scope that is near its cap or far above the others.
    """
    from orchestrator.views.keys import count_keys

    async with viewed(common) as services:
        found = await count_keys(services, on_step=lambda keys: output.progress(f"counted {keys} keys"))
    output.progress("")
    if by == "scope":
        rows: list[dict[str, Any]] = [asdict(row) for row in found.scopes]
        if common.output == "table":
            rows = [row | {"bytes": _size(row["bytes"])} for row in rows]
        output.show_list(common.output, rows, OF_SCOPES, key="scope", empty="no sessions and memories")
    else:
        rows = [{name: getattr(kind, name) for name in REPORTED} for kind in found.kinds]
        if common.output == "table":
            rows = [_in_words(row) for row in rows]
        output.show_list(common.output, rows, REPORTED, key="kind", empty="no keys")
    for alarm in found.alarms:
        output.say(alarm)


def _in_words(row: dict[str, Any]) -> dict[str, Any]:
    left = ", ".join(f"{word} {count}" for word, count in row["lifetimes"].items())
    return row | {"bytes": _size(row["bytes"]), "biggest_bytes": _size(row["biggest_bytes"]), "lifetimes": left}


# ----------------------------------------------------------------------------------------------------------------- rows


def _ask(found: Sequence[DamageGroup], common: Globals) -> bool:
    """Show what a repair would do, and ask; False if there is nothing to repair."""
    count = sum(group.count for group in found if group.repair)
    if count:
        if common.output == "table":
            _print(found, common.output)
        ask(f"repair {count} finding{'s' * (count != 1)}", yes=False)
    return count > 0


def _show(found: Sequence[DamageGroup], common: Globals) -> int:
    _print(found, common.output)
    output.say(_summary(found))
    return FAILED if any(not group.repaired and not group.harmless for group in found) else DONE


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
