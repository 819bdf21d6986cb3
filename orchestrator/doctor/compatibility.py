"""Checks the data format and that the server accepts every script, without loading any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from anyio import to_thread

from orchestrator.core.errors import ServerRefused
from orchestrator.core.reading import read_text
from orchestrator.doctor.findings import ok, problem
from orchestrator.store.script_files import read_all_scripts
from orchestrator.store.store import format_mismatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.doctor.context import CheckContext
    from orchestrator.doctor.findings import DoctorFinding
    from orchestrator.store.script_files import ScriptFile


_PROBE: Final = """#!lua flags=no-writes
local found = {}
for i = 1, #ARGV do
  local compiled, why = loadstring((string.gsub(ARGV[i], '^[^\\n]*', '', 1)))
  found[i] = {redis.sha1hex(ARGV[i]), compiled and type(cmsgpack) == 'table' and '' or (why or 'no cmsgpack')}
end
return found
"""


async def check_data_format(context: CheckContext) -> list[DoctorFinding]:
    """Report data that another version of this program wrote."""
    stored: bytes | None = await context.store.execute("GET", context.store.keys.format)
    if stored is None:
        return [ok("format", f"nothing is stored in pool {context.store.keys.pool!r} yet")]
    if mismatch := format_mismatch(stored, context.store.keys):
        found, fix = mismatch
        return [problem("format", found, fix)]
    return [ok("format", f"format {read_text(stored)}")]


async def check_scripts(
    context: CheckContext, *, scripts: Mapping[str, ScriptFile] | None = None
) -> list[DoctorFinding]:
    """Report scripts that the server cannot compile, or that have another hash there."""
    if scripts is None:
        scripts = {script.name: script for script in await to_thread.run_sync(read_all_scripts)}
    texts = [script.text for script in scripts.values()]
    try:
        replies = await context.store.execute("EVAL_RO", _PROBE, 0, *texts)
    except ServerRefused as refused:
        if "NOPERM" in str(refused):
            return [ok("scripts", "unknown: EVAL_RO is not allowed; what calls them is under `rights`")]
        fix = "use Redis 7.0 or newer itself: other servers lack parts of its scripting"
        return [problem("scripts", str(refused), fix)]
    for (name, script), (sha, why) in zip(scripts.items(), replies, strict=True):
        if why or read_text(sha) != script.sha:
            found = f"lua/{name}.lua: {read_text(why) or 'the server gives it another hash'}"
            return [
                problem(
                    "scripts", found, "install this program anew: `pip install --force-reinstall redis-orchestrator`"
                )
            ]
    known = await context.store.execute("SCRIPT", "EXISTS", *[script.sha for script in scripts.values()])
    return [ok("scripts", f"the server takes all {len(scripts)}; {sum(known)} of them are loaded")]
