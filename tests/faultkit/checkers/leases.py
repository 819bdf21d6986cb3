"""I7: the supervisors' lease is never held by two, and the generations of a task only grow."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from tests.faultkit.checkers.check_result import CheckResult, check_result
from tests.faultkit.checkers.history import History, LeaderSeen, RunStarted

if TYPE_CHECKING:
    from collections.abc import Sequence

SLACK_MS: Final = 5


def check_leases(history: History) -> CheckResult:
    """Judge samples of the lease, taken on the server, and the grants of attempts.

    Supervisors that end in order give their lease back, so only samples from before that may be in the history.
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
