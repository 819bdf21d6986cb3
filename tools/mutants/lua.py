"""Mutates the scripts of `lua/` with universalmutator and runs, for each mutant, the tests that execute its block.

Each result is stored in `build/mutants/lua`; a second run continues where the first one stopped, and several may run on
different files. The tests run in a forked child of this process, which has imported them before, on a Redis of their
own.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import fnmatch
import hashlib
import io
import json
import os
import random
import re
import shutil
import signal
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import hypothesis
import hypothesis.configuration
import pytest
import redis
from universalmutator import mutator

from orchestrator.store import script_files
from orchestrator.store.script_records import ScriptError
from tests.faultkit.servers import RedisServer

ROOT: Final = Path(__file__).parents[2]
LUA: Final = ROOT / "lua"
RULES: Final = Path(__file__).with_name("lua.rules")
BUILD: Final = ROOT / "build/mutants"
RESULTS: Final = BUILD / "lua"
COVERAGE: Final = BUILD / "lua-tests.json"
MARK: Final = "mutants-block "
TESTS: Final = ("tests/lua",)
ARGUMENTS: Final = (
    *("-q", "-x", "--no-header", "--tb=line", "-p", "no:randomly", "-p", "no:cacheprovider"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # the product is imported here
)
KILLED: Final = frozenset({"killed", "timeout"})
_COMMENT: Final = re.compile(r"\s*--.*$", re.MULTILINE)
_OPENS: Final = re.compile(r"(\b(then|do|else)|^\s*(local )?function \w+\([^()]*\))$")
_SUBREAPER: Final = 36


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one line.

    Attributes:
        file: path below `lua/`, without the suffix.
        line: its number, from 1.
        before, after: the line, without its indentation.
        text: the whole changed file.
    """

    file: str
    line: int
    before: str
    after: str
    text: str

    @property
    def name(self) -> str:
        """Identifies the mutant as long as the line stays the same."""
        digest = hashlib.sha256(f"{self.before}\n{self.after}".encode()).hexdigest()[:8]
        return f"{self.file}:{self.line}:{digest}"


def make_mutants(path: Path) -> list[Mutant]:
    """Return the mutants of a file that change more than a comment."""
    source = path.read_text(encoding="utf-8").splitlines(keepends=True)
    with contextlib.redirect_stdout(io.StringIO()):
        made = mutator.mutants_regexp(source, ruleFiles=[str(RULES)], ignorePatterns=[], ignoreStringOnly=False)
    name = str(path.relative_to(LUA).with_suffix(""))
    found: dict[str, Mutant] = {}
    for number, line, *_ in made:
        before = source[number - 1]
        if _COMMENT.sub("", before) != _COMMENT.sub("", line):
            text = "".join([*source[: number - 1], line, *source[number:]])
            mutant = Mutant(name, number, before.strip(), line.strip(), text)
            found.setdefault(mutant.name, mutant)
    return list(found.values())


def use_scripts(root: Path) -> None:
    """Let this process load its scripts from `root/lua`."""
    setattr(script_files, "files", lambda _: root)  # noqa: B010 - a function of another type
    script_files.all_scripts.cache_clear()


class Workshop:
    """A copy of `lua/` in which one file is changed at a time, and a server that compiles scripts."""

    def __init__(self, folder: Path, client: redis.Redis, *, server: int) -> None:
        self._root, self._client, self.server = folder, client, server
        shutil.copytree(LUA, folder / "lua")
        self._plain = {name: script.text for name, script in script_files.all_scripts().items()}

    def load(self, mutant: Mutant | None) -> None:
        """Make the scripts of this process those of the copy, with one file changed."""
        if mutant is not None:
            (self._root / "lua" / f"{mutant.file}.lua").write_text(mutant.text, encoding="utf-8")
        use_scripts(self._root)

    def restore(self, mutant: Mutant) -> None:
        """Undo `load`."""
        shutil.copy(LUA / f"{mutant.file}.lua", self._root / "lua" / f"{mutant.file}.lua")
        script_files.all_scripts.cache_clear()

    def changed_scripts(self, mutant: Mutant) -> list[str] | None:
        """Return the scripts that the mutant changes, or None if one of them cannot be loaded."""
        self.load(mutant)
        try:
            changed = [s for name, s in script_files.all_scripts().items() if s.text != self._plain.get(name)]
            for script in changed:
                self._client.script_load(script.text)
        except (ScriptError, redis.ResponseError):
            return None
        finally:
            self.restore(mutant)
        return [script.name for script in changed]


def add_markers(file: str, text: str) -> str:
    """Let a script log each block that it executes: its top level, functions, branches and loops."""
    lines: list[str] = []
    top = not file.startswith("includes/")
    for number, line in enumerate(text.splitlines(), 1):
        if top and number > 1 and not re.match(r"--|local \w+\s*= .*(KEYS|ARGV)\[|$", line):
            lines.append(f"redis.log(2, '{MARK}{file}:0 ')")
            top = False
        lines.append(line)
        if _OPENS.search(_COMMENT.sub("", line)):
            indentation = " " * (len(line) - len(line.lstrip()) + 2)
            lines.append(f"{indentation}redis.log(2, '{MARK}{file}:{number} ')")
    return "\n".join(lines) + "\n"


def block_of(mutant: Mutant) -> str:
    """Return the innermost block around the mutant's line."""
    source = (LUA / f"{mutant.file}.lua").read_text(encoding="utf-8").splitlines()
    indentation = len(source[mutant.line - 1]) - len(source[mutant.line - 1].lstrip())
    for number in range(mutant.line - 1, 0, -1):
        line = source[number - 1]
        if _OPENS.search(_COMMENT.sub("", line)) and len(line) - len(line.lstrip()) < indentation:
            return f"{mutant.file}:{number}"
    return f"{mutant.file}:0"


class Recorder:
    """Pytest plugin: records which blocks of scripts each test executes, and how long it takes."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, Any]] = {}
        self._servers: dict[RedisServer, int] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the time of one phase."""
        entry = self.tests.setdefault(report.nodeid, {"seconds": 0.0, "blocks": [], "passed": True})
        entry["seconds"] += report.duration
        entry["passed"] &= not report.failed

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """Collect the blocks that the servers log meanwhile."""
        self._read_logs()
        result = yield
        self.tests[item.nodeid]["blocks"] = sorted(self._read_logs())
        return result

    def watch(self) -> None:
        """Note every server that this process starts."""
        start, servers = RedisServer.start, self._servers

        def noted(server: RedisServer) -> RedisServer:
            start(server)
            servers[server] = 0
            return server

        setattr(RedisServer, "start", noted)  # noqa: B010 - assignments to methods are no types

    def _read_logs(self) -> set[str]:
        found: set[str] = set()
        for server, offset in list(self._servers.items()):
            try:
                log = server.process.output_path
            except RuntimeError:  # it was closed
                del self._servers[server]
                continue
            with log.open("rb") as file:
                file.seek(offset)
                text = file.read().decode(errors="replace")
                self._servers[server] = file.tell()
            found |= set(re.findall(rf"{MARK}(\S+) ", text))
        return found


def record_tests() -> dict[str, dict[str, Any]]:
    """Return which blocks each test executes; runs all once, in a child, unless that was done before."""
    if not COVERAGE.exists():
        COVERAGE.parent.mkdir(parents=True, exist_ok=True)
        if (child := os.fork()) == 0:
            recorder = Recorder()
            recorder.watch()
            with tempfile.TemporaryDirectory() as folder:
                shutil.copytree(LUA, Path(folder) / "lua")
                for path in LUA.glob("*/*.lua"):
                    name = path.relative_to(LUA)
                    text = add_markers(str(name.with_suffix("")), path.read_text(encoding="utf-8"))
                    (Path(folder) / "lua" / name).write_text(text, encoding="utf-8")
                use_scripts(Path(folder))
                arguments = [one for one in ARGUMENTS if one != "-x"]
                pytest.main([*arguments, *TESTS], plugins=[recorder])
            # A test that fails without a mutant says nothing about mutants.
            passed = {id_: test for id_, test in recorder.tests.items() if test["passed"]}
            COVERAGE.write_text(json.dumps(passed), encoding="utf-8")
            os._exit(0)
        os.waitpid(child, 0)
    found: dict[str, dict[str, Any]] = json.loads(COVERAGE.read_text(encoding="utf-8"))
    return found


def choose_tests(tests: dict[str, dict[str, Any]], mutant: Mutant, scripts: list[str], budget_s: float) -> list[str]:
    """Return tests that execute the mutant's block, within a time: the shortest, on the newest server first."""
    block = block_of(mutant)
    candidates = [id_ for id_, test in tests.items() if block in test["blocks"]]
    if block.startswith("includes/") and block.endswith(":0"):  # a constant
        called = {f"{script}:0" for script in scripts}
        candidates = [id_ for id_, test in tests.items() if called.intersection(test["blocks"])]
    candidates.sort(key=lambda id_: ("redis7" in id_, tests[id_]["seconds"]))
    chosen, left_s = candidates[:1], budget_s
    for id_ in candidates[1:]:
        if tests[id_]["seconds"] <= left_s:
            chosen.append(id_)
            left_s -= tests[id_]["seconds"]
    return chosen


def run_tests(workshop: Workshop, mutant: Mutant, tests: list[str], limit_s: float) -> tuple[str, str]:
    """Run the tests in a child with the mutant in place; return the status and the first failure."""
    output = BUILD / f"output-{os.getpid()}.txt"
    if (child := os.fork()) == 0:
        os.setsid()
        with output.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        workshop.load(mutant)
        os._exit(int(pytest.main([*ARGUMENTS, "--timeout=20", *tests])))
    ends_s = time.monotonic() + limit_s
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > ends_s:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.01)
    reap_orphans(workshop.server)
    workshop.restore(mutant)
    if not ended[0]:
        return "timeout", ""
    failures = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output.read_text(errors="replace"), re.MULTILINE)
    return ("survived" if os.waitstatus_to_exitcode(ended[1]) == 0 else "killed"), (failures or [""])[0]


def reap_orphans(kept: int) -> None:
    """Kill what a killed child left to this process: servers whose scripts never end."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
    for pid in map(int, children):
        if pid != kept:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def preload_tests() -> None:
    """Import the tests here, so that no child does; let hypothesis stop at the first failure that it finds."""
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile("mutants", phases=phases, database=None, derandomize=True)
    hypothesis.settings.load_profile("mutants")
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main([*ARGUMENTS, "--collect-only", *TESTS])


def score(results: dict[str, dict[str, Any]]) -> str:
    """Return a table: mutants, killed and survivors per folder."""
    rows = collections.defaultdict[str, collections.Counter[str]](collections.Counter)
    for name, result in results.items():
        rows[name.partition("/")[0]][result["status"]] += 1
    lines = ["| folder | mutants | killed | time-outs | survived | no test | score |", "|---|---|---|---|---|---|---|"]
    total = sum(rows.values(), collections.Counter[str]())
    for folder, counts in [*sorted(rows.items()), ("all", total)]:
        valid = sum(number for status, number in counts.items() if status not in {"invalid", "equal"})
        killed = sum(counts[status] for status in KILLED)
        lines.append(
            f"| {folder} | {valid} | {counts['killed']} | {counts['timeout']} | {counts['survived']} "
            f"| {counts['no test']} | {killed / max(1, valid):.1%} |"
        )
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """Run the mutants that have no result yet."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants lua", description=__doc__)
    parser.add_argument("--only", nargs="*", default=["*"], help="files below lua/, as tasks/finish or includes/*")
    parser.add_argument("--sample", type=int, default=0, help="at most so many mutants of each file, chosen at random")
    parser.add_argument("--budget", type=float, default=6.0, help="seconds of tests for one mutant")
    parser.add_argument("--again", action="store_true", help="run survivors again, with the budget that is given")
    parser.add_argument("--report", action="store_true", help="print the score and the survivors, run nothing")
    options = parser.parse_args(arguments)
    if options.report:
        report({name: result for path in RESULTS.rglob("*.json") for name, result in read_results(path).items()})
        return
    os.chdir(ROOT)
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    hypothesis.configuration.set_hypothesis_home_dir(BUILD / "hypothesis")
    tests = record_tests()
    preload_tests()
    files = [
        path
        for pattern in options.only
        for path in sorted(LUA.glob("*/*.lua"))
        if fnmatch.fnmatch(str(path.relative_to(LUA).with_suffix("")), pattern)
    ]
    with tempfile.TemporaryDirectory() as folder, RedisServer() as server, server.client() as client:
        workshop = Workshop(Path(folder), client, server=server.process.pid)
        for path in dict.fromkeys(files):
            mutants = make_mutants(path)
            if options.sample and len(mutants) > options.sample:
                mutants = random.Random(1).sample(mutants, options.sample)
            stored = (RESULTS / path.relative_to(LUA)).with_suffix(".json")
            known = read_results(stored)
            # Results of lines that have changed since are dropped.
            results = {mutant.name: known[mutant.name] for mutant in mutants if mutant.name in known}
            for mutant in mutants:
                if (result := results.get(mutant.name)) and not (options.again and result["status"] == "survived"):
                    continue
                results[mutant.name] = result = judge(workshop, mutant, tests, options.budget)
                stored.parent.mkdir(parents=True, exist_ok=True)
                stored.write_text(json.dumps(results, indent=1), encoding="utf-8")
                if result["status"] == "survived":
                    print(f"{mutant.name}\n    {mutant.before}\n    {mutant.after}", flush=True)
            print(score(results).splitlines()[2], flush=True)


def read_results(path: Path) -> dict[str, dict[str, Any]]:
    """Return the stored results of one file."""
    results: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return results


def judge(workshop: Workshop, mutant: Mutant, tests: dict[str, dict[str, Any]], budget_s: float) -> dict[str, Any]:
    """Test one mutant."""
    change = {key: value for key, value in asdict(mutant).items() if key in {"before", "after"}}
    changed = workshop.changed_scripts(mutant)
    if not changed:
        return {"status": "invalid" if changed is None else "equal", **change}
    chosen = choose_tests(tests, mutant, changed, budget_s)
    if not chosen:
        return {"status": "no test", **change}
    began_s = time.monotonic()
    status, by = run_tests(workshop, mutant, chosen, 20 + 4 * budget_s)
    took_s = round(time.monotonic() - began_s, 1)
    return {"status": status, "by": by, "tests": len(chosen), "seconds": took_s, **change}


def report(results: dict[str, dict[str, Any]]) -> None:
    """Print the score and the survivors."""
    print(score(results))
    for name, result in sorted(results.items()):
        if result["status"] in {"survived", "no test"}:
            print(f"{result['status']} {name}\n    {result['before']}\n    {result['after']}")
