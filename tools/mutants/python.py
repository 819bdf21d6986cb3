"""Runs mutmut on the modules that `[tool.mutmut]` in pyproject.toml names.

mutmut runs the selected tests once and records which of them call each function. A function of the main path has
hundreds of tests; `--budget` limits the seconds of tests that one mutant gets, the shortest tests first. Results are in
`mutants/`; a second run tests only mutants without a result.
"""

from __future__ import annotations

import argparse
import ast
import collections
import fnmatch
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = ROOT / "mutants"
STATS: Final = RESULTS / "mutmut-stats.json"
ALL_TESTS: Final = RESULTS / "all-tests.json"
FAILED: Final = RESULTS / "failed-tests.txt"
SAMPLE_SEED: Final = 1
FIRST: Final = "orchestrator.limits.scripts.x_check__mutmut_1"
"""Any mutant: mutmut makes all mutants and records the tests before it runs the first."""
STATUS: Final = {0: "survived", 1: "killed", 3: "killed", 5: "no test", 33: "no test", 36: "timeout"}
KILLED: Final = frozenset({"killed", "timeout"})
_SIGXCPU: Final = 24


def status_of(exit_code: int | None) -> str:
    """Return what a result of mutmut means."""
    if exit_code is None:
        return "not run"
    return "timeout" if abs(exit_code) == _SIGXCPU else STATUS.get(exit_code, "killed")


def read_results() -> dict[str, str]:
    """Return the status of each mutant that changes more than the letters of a text."""
    found: dict[str, str] = {}
    for path in sorted(RESULTS.glob("orchestrator/**/*.meta")):
        codes: dict[str, int | None] = json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
        texts = only_text(path.with_suffix("")) if codes else set()
        found |= {name: status_of(code) for name, code in codes.items() if name.rpartition(".")[2] not in texts}
    return found


def only_text(path: Path) -> set[str]:
    """Return the mutants of a module that change nothing but the letters of a text."""
    functions: dict[str, str] = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "__mutmut_" in node.name:
            name, node.name = node.name, ""
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    part.value = ""
            functions[name] = ast.dump(node)
    return {name for name, tree in functions.items() if tree == functions.get(f"{name.rpartition('_')[0]}_orig")} - {
        name for name in functions if name.endswith("_orig")
    }


def limit_tests(budget_s: float) -> None:
    """Leave each function the shortest of its tests that fit into a time, but at least one."""
    if not ALL_TESTS.exists():
        ALL_TESTS.write_text(STATS.read_text(encoding="utf-8"), encoding="utf-8")
    stats: dict[str, Any] = json.loads(ALL_TESTS.read_text(encoding="utf-8"))
    seconds: dict[str, float] = stats["duration_by_test"]
    failed = set(FAILED.read_text(encoding="utf-8").split()) if FAILED.exists() else set()
    for function, tests in stats["tests_by_mangled_function_name"].items():
        chosen: list[str] = []
        left_s = budget_s
        for test in sorted(set(tests) - failed, key=lambda test: (_is_general(function, test), seconds.get(test, 0.0))):
            if (left_s := left_s - seconds.get(test, 0.0)) < 0 and chosen:
                break
            chosen.append(test)
        stats["tests_by_mangled_function_name"][function] = chosen
    STATS.write_text(json.dumps(stats, indent=4), encoding="utf-8")


def _is_general(function: str, test: str) -> bool:
    """Return whether the name of the test's module has nothing of the function's module."""
    module = function.split(".")[-2]
    return not any(word in test for word in {module, module.rstrip("s"), function.split(".")[1].rstrip("s")})


def mutmut(*names: str) -> None:
    """Run mutmut on some mutants."""
    command = [str(Path(sys.executable).with_name("mutmut")), "run", *names, "--max-children", "1"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).with_name("plugin"))}
    with (RESULTS / "mutmut.log").open("wb") as log:
        subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=log, check=False)


def report(patterns: list[str]) -> None:
    """Print the score of each folder, and the survivors."""
    rows = collections.defaultdict[str, collections.Counter[str]](collections.Counter)
    results = {name: status for name, status in read_results().items() if _matches(name, patterns)}
    for name, status in results.items():
        rows[name.split(".")[1]][status] += 1
    print("| folder | mutants | run | killed | time-outs | survived | no test | score |")
    print("|---|---|---|---|---|---|---|---|")
    total = sum(rows.values(), collections.Counter[str]())
    for folder, counts in [*sorted(rows.items()), ("all", total)]:
        run = sum(counts.values()) - counts["not run"]
        killed = sum(counts[status] for status in KILLED)
        print(
            f"| {folder} | {sum(counts.values())} | {run} | {counts['killed']} | {counts['timeout']} "
            f"| {counts['survived']} | {counts['no test']} | {killed / max(1, run):.1%} |"
        )
    for name, status in results.items():
        if status in {"survived", "no test"}:
            print(f"{status} {name}")


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def main(arguments: list[str]) -> None:
    """Run mutants that have no result yet."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants python", description=__doc__)
    parser.add_argument("--only", nargs="*", default=["*"], help="mutants, as orchestrator.locks.*")
    parser.add_argument(
        "--sample", type=int, default=0, help="at most so many mutants of each module, chosen at random"
    )
    parser.add_argument("--budget", type=float, default=3.0, help="seconds of tests for one mutant")
    parser.add_argument("--again", action="store_true", help="run survivors again, with the budget that is given")
    parser.add_argument("--report", action="store_true", help="print the score and the survivors, run nothing")
    options = parser.parse_args(arguments)
    if not options.report:
        os.chdir(ROOT)
        if not STATS.exists():
            RESULTS.mkdir(exist_ok=True)
            mutmut(FIRST)
        limit_tests(options.budget)
        wanted = "survived" if options.again else "not run"
        modules = collections.defaultdict[str, list[str]](list)
        for name, status in read_results().items():
            if _matches(name, options.only):
                modules[name.rpartition(".")[0]].append(name if status == wanted else "")
        missing: list[str] = []
        for names in modules.values():
            chosen = (
                random.Random(SAMPLE_SEED).sample(names, options.sample) if 0 < options.sample < len(names) else names
            )
            missing += filter(None, chosen)
        if missing:
            mutmut(*missing)
    report(options.only)
