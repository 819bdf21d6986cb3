"""`orc doctor`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

from orchestrator.cli.terminal import output
from orchestrator.cli.terminal.failures import DONE, FAILED, NOBODY_ANSWERED
from orchestrator.cli.terminal.options import DEFAULTS, Globals
from orchestrator.cli.terminal.parsing import Commands, option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.doctor.findings import DoctorFinding

_COLOURS: Final = {"ok": "32", "warning": "33", "problem": "31"}

commands = Commands(
    "doctor",
    "orc doctor",
    "orc doctor --all",
    "orc doctor --strict -o json",
    "ORC_REDIS__URL=redis://localhost:6379/0 orc doctor",
)


@commands.itself
async def doctor(
    *,
    all_: Annotated[bool, option("--all")] = False,
    strict: Annotated[bool, option("--strict")] = False,
    common: Globals = DEFAULTS,
) -> int:
    """Find problems and say how to fix them; changes nothing. Exit code: 0 no problem, 1 problems, 69 no Redis.

    Args:
        all_: Show also what is in order; -o json, jsonl and id always do.
        strict: Return exit code 1 for warnings too.
    """
    from orchestrator.views.doctor import diagnose

    found = await diagnose(common.loaded)
    if common.output == "table":
        _print_findings([each for each in found.findings if all_ or each.severity != "ok"])
    else:
        output.show_list(common.output, [asdict(finding) for finding in found.findings], (), key="code")
    output.say(_summary(found.problems, found.warnings))
    if not found.answered:
        return NOBODY_ANSWERED
    return FAILED if found.problems or (strict and found.warnings) else DONE


def _print_findings(findings: Sequence[DoctorFinding]) -> None:
    width = max((len(finding.code) for finding in findings), default=0)
    for finding in findings:
        severity = output.paint(finding.severity.ljust(7), _COLOURS[finding.severity])
        output.write(f"{severity}  {finding.code.ljust(width)}  {output.clean(finding.found)}\n")
        if finding.fix:
            output.write(f"{' ' * (width + 11)}→ {output.clean(finding.fix)}\n")


def _summary(problems: int, warnings: int) -> str:
    counts = [(problems, "problem"), (warnings, "warning")]
    said = [f"{count} {name}{'s' * (count != 1)}" for count, name in counts if count]
    return ", ".join(said) or "no problems found"
