"""`orc keys`: check, report."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.confirm import ask
from orchestrator.cli.terminal.failures import DONE, FAILED
from orchestrator.cli.terminal.options import DEFAULTS, Globals, Yes
from orchestrator.cli.terminal.parsing import Commands, option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.cli.terminal.options import Form
    from orchestrator.core.settings import Settings
    from orchestrator.repair.findings import RepairFinding

commands = Commands(
    "keys",
    "orc keys check",
    "orc keys check --repair",
    "orc keys report",
)
app = commands.app

SHOWN: Final = 5
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

    settings = common.settings()
    found = anyio.run(partial(_scan, settings, repair=repair and yes))
    if repair and not yes and (count := sum(bool(each.damage.repair) for each in found)):
        if common.output == "table":
            _print(_rows(found), common.output)
        ask(f"repair {count} finding{'s' * (count != 1)}", yes=False)
        found = anyio.run(partial(_scan, settings, repair=True))
    rows = _rows(found)
    _print(rows, common.output)
    output.say(_summary(found))
    return FAILED if any(not row["repaired"] and not row["harmless"] for row in rows) else DONE


async def _scan(settings: Settings, *, repair: bool) -> list[RepairFinding]:
    from orchestrator.repair.scan import KeyLifetimes, PoolScan
    from orchestrator.services import open_services

    async with open_services(settings, name="cli") as services:
        scan = PoolScan(services.store, KeyLifetimes.of(settings), repair=repair)
        found: list[RepairFinding] = []
        async with aclosing(scan.steps()) as steps:
            async for findings in steps:
                found += findings
                _progress(f"scanned {scan.keys_seen} keys, {scan.places_seen} places")
        _progress("")
    return found


@commands.command("report", "orc keys report", "orc keys report -o json")
async def report(*, common: Globals = DEFAULTS) -> None:
    """Count the keys of each kind and estimate their memory from a sample."""
    from orchestrator.repair.key_report import KeyReport

    async with common.services() as services:
        counted = KeyReport(services.store)
        async with aclosing(counted.steps()) as steps:
            async for seen in steps:
                _progress(f"counted {seen} keys")
        _progress("")
    rows = [{name: getattr(kind, name) for name in REPORTED} for kind in counted.kinds]
    if common.output == "table":
        rows = [row | {name: _size(row[name]) for name in ("bytes", "biggest_bytes")} for row in rows]
    output.show_list(common.output, rows, REPORTED, key="kind", empty="no keys")


# ----------------------------------------------------------------------------------------------------------------- rows


def _rows(found: Sequence[RepairFinding]) -> list[dict[str, Any]]:
    """Return one row per code and outcome, with a few examples."""
    groups: dict[tuple[str, bool], list[RepairFinding]] = {}
    for finding in found:
        groups.setdefault((finding.code, finding.repaired), []).append(finding)
    return [
        {
            "code": code,
            "count": len(alike),
            "repaired": repaired,
            "harmless": alike[0].damage.harmless,
            "found": alike[0].damage.found,
            "repair": alike[0].damage.repair or None,
            "examples": [f"{each.subject} {each.place}".rstrip() for each in alike[:SHOWN]],
        }
        for (code, repaired), alike in groups.items()
    ]


def _print(rows: Sequence[dict[str, Any]], form: Form) -> None:
    if form != "table":
        output.show_list(form, rows, (), key="code")
        return
    for row in rows:
        output.write(f"{output.paint(row['code'], '1')}  {row['count']}  {row['found']}\n")
        done = "repaired" if row["repaired"] else "a repair"
        output.write(f"  {done}: {row['repair'] or 'none; inspect the key, then delete or rename it'}\n")
        for example in row["examples"]:
            output.write(f"    {output.clean(example)}\n")
        if row["count"] > len(row["examples"]):
            output.write(f"    and {row['count'] - len(row['examples'])} more\n")


def _summary(found: Sequence[RepairFinding]) -> str:
    if not found:
        return "no damage found"
    repaired = sum(each.repaired for each in found)
    said = [(repaired, "repaired"), (len(found) - repaired, "found")]
    return ", ".join(f"{count} {what}" for count, what in said if count)


def _size(size: int | None) -> str | None:
    if size is None:
        return None
    for limit, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= limit:
            return f"{size / limit:.1f} {unit}"
    return f"{size} B"


def _progress(text: str) -> None:
    """Overwrite the progress line; only on a terminal."""
    import sys

    if output.is_terminal(sys.stderr):
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
