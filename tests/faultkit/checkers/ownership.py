"""I4, I7: only the owner of a task has effects, and no lease has two holders."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from tests.faultkit.checkers.check_result import SLACK_MS, CheckResult, check_result
from tests.faultkit.checkers.history import History, LeaderSeen, RunStarted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.faultkit.checkers.final_state import FinalState, StoredTask

_RUN: Final = re.compile(r"\brun=(\w+)")


def check_ownership(history: History, final: FinalState) -> CheckResult:
    """Compare stored results and failures with the attempts.

    A JSON object with `run` as result, or `run=…` in the text of a failure, names its execution.
    """
    begun = history.of(RunStarted)
    runs = {one.run: one for one in begun}
    by_task = defaultdict[str, list[RunStarted]](list)
    for one in begun:
        by_task[one.task].append(one)
    counted = Counter((one.task, one.generation) for one in begun)
    wrong = [
        f"task {task}: the attempt of generation {generation} was executed {count} times"
        for (task, generation), count in counted.items()
        if count > 1
    ]
    for one in begun:
        stored = final.tasks.get(one.task)
        if stored is not None and int(one.generation) > stored.generation:
            wrong.append(f"task {one.task} is of generation {stored.generation}, but {one.generation} was executed")
    for task in final.tasks.values():
        wrong += _result(task, runs, by_task[task.id])
        wrong += _failures(task, runs)
    return check_result("I4 effects only by the owner", len(begun), wrong)


def _result(task: StoredTask, runs: dict[str, RunStarted], begun: list[RunStarted]) -> list[str]:
    if task.state != "succeeded":
        return []
    if not any(int(one.generation) == task.generation for one in begun):
        return [f"task {task.id} succeeded in generation {task.generation}, which no worker executed"]
    run = _run_of(task)
    if run is None:
        return []
    owner = runs.get(run)
    if owner is None or owner.task != task.id:
        return [f"task {task.id} has a result of run {run}, which belongs to another task"]
    if int(owner.generation) != task.generation:
        whose = f"generation {owner.generation} (worker {owner.worker})"
        return [f"task {task.id} has the result of {whose}, and is of generation {task.generation}"]
    return []


def _run_of(task: StoredTask) -> str | None:
    try:
        value = json.loads(task.result or "null")
    except ValueError:
        return None
    run = value.get("run") if isinstance(value, dict) else None
    return run if isinstance(run, str) else None


def _failures(task: StoredTask, runs: dict[str, RunStarted]) -> list[str]:
    wrong: list[str] = []
    if task.fails != len(task.errors):
        wrong.append(f"task {task.id} counts {task.fails} failures and has the texts of {sorted(task.errors)}")
    seen = set[str]()
    for attempt, text in task.errors.items():
        found = _RUN.search(text)
        if found is None:
            continue
        run = found[1]
        if run in seen:
            wrong.append(f"task {task.id} counts the failure of run {run} more than once")
        seen.add(run)
        owner = runs.get(run)
        if owner is None or owner.task != task.id:
            wrong.append(f"task {task.id} has a failure of run {run}, which belongs to another task")
        elif owner.attempt != attempt:
            wrong.append(f"task {task.id} has the failure of attempt {owner.attempt} as that of attempt {attempt}")
    return wrong


def check_leases(history: History) -> CheckResult:
    """Check samples of the supervisors' lease, and the grants of attempts.

    An orderly end of a supervisor releases its lease, so the history may only have samples from before that.
    """
    seen = sorted(history.of(LeaderSeen), key=lambda sample: sample.server_ms)
    by_task = defaultdict[str, list[RunStarted]](list)
    for one in history.of(RunStarted):
        by_task[one.task].append(one)
    wrong = _taken_early(seen)
    for id_, attempts in by_task.items():
        granted = sorted((one.granted_ms, int(one.generation)) for one in attempts)
        generations = [generation for _, generation in granted]
        if generations != sorted(set(generations)):
            wrong.append(f"task {id_} was granted in the generations {generations}, in this order")
    return check_result("I7 no lease is held by two", len(seen) + len(by_task), wrong)


def _taken_early(seen: Sequence[LeaderSeen]) -> list[str]:
    wrong: list[str] = []
    for before, after in itertools.pairwise(seen):
        until_ms = before.server_ms + before.left_ms
        if after.holder != before.holder and after.server_ms < until_ms - SLACK_MS:
            wrong.append(
                f"{after.holder} led at {after.server_ms}, while the lease of {before.holder} ran until {until_ms}"
            )
    return wrong
