"""I14, I15: after a single kill the lost tasks end within bounds, and fresh tasks do not wait for them.

Ends are judged, because a task that only starts again may be one of many that run one after another.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.faultkit.checkers.check_result import CheckResult, check_result
from tests.faultkit.checkers.history import History, Killed, RunEnded, RunStarted, SubmitAccepted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.faultkit.checkers.final_state import FinalState
    from tests.faultkit.checkers.rules import Rules


@dataclass(frozen=True, slots=True)
class KillOutcome:
    """What followed a kill.

    Attributes:
        ended_ms: by lost task, the time from its loss to its end. A loss by a poison counts from the start of the
            attempt, because only the kernel knows when the process died.
        waited_ms: by task that was submitted after the kill, the time until its first attempt began.
    """

    kill: Killed
    ended_ms: Mapping[str, int]
    waited_ms: Mapping[str, int]

    def __str__(self) -> str:
        lost, fresh, kill = len(self.ended_ms), len(self.waited_ms), self.kill
        return (
            f"{kill.how} killed at handlers of up to {kill.handler_ms / 1000:.1f} s: {lost} lost tasks ended within "
            f"{max(self.ended_ms.values(), default=0) / 1000:.1f} s, {fresh} fresh ones waited for at most "
            f"{max(self.waited_ms.values(), default=0) / 1000:.1f} s; the load lagged by {kill.lag_ms / 1000:.1f} s"
        )


def kill_outcomes(history: History, final: FinalState) -> list[KillOutcome]:
    """Return the outcome of every kill."""
    stopped = {one.run for one in history.of(RunEnded)}
    runs = defaultdict[str, list[tuple[int, RunStarted]]](list)
    for at_ms, begun in history.lines_of(RunStarted):
        runs[begun.task].append((at_ms, begun))
    accepted = history.lines_of(SubmitAccepted)
    return [
        KillOutcome(
            kill,
            {
                id_: ended_ms - lost_ms
                for id_, lost_ms in _lost(kill, runs, stopped).items()
                if (task := final.tasks.get(id_)) is not None and (ended_ms := task.ended_ms) is not None
            },
            {
                one.task: runs[one.task][0][0] - at_ms
                for at_ms, one in accepted
                if kill.server_ms <= at_ms <= kill.until_ms and runs[one.task]
            },
        )
        for kill in history.of(Killed)
    ]


def _lost(kill: Killed, runs: Mapping[str, list[tuple[int, RunStarted]]], stopped: set[str]) -> dict[str, int]:
    """Return the first loss of each task."""
    lost: dict[str, int] = {}
    for id_, attempts in runs.items():
        for at_ms, one in attempts:
            if one.run in stopped or id_ in lost:
                continue
            if kill.how == "poison":
                if kill.server_ms - kill.handler_ms <= at_ms <= kill.until_ms:
                    lost[id_] = at_ms
            elif one.pid in kill.pids and at_ms <= kill.server_ms:
                lost[id_] = kill.server_ms
    return lost


def check_ends_after_kills(history: History, final: FinalState, rules: Rules) -> CheckResult:
    """Check how long after its loss each task has ended."""
    outcomes = kill_outcomes(history, final)
    wrong: list[str] = []
    for one in outcomes:
        poison = one.kill.how == "poison"
        # The loss is at most one handler after the start that it is counted from.
        handlers = rules.bounds.poison_handlers + 1 if poison else rules.bounds.ended_handlers
        allowed_ms = _allowed_ms(one.kill, handlers, rules) + (rules.bounds.poison_margin_ms if poison else 0)
        for id_, took_ms in one.ended_ms.items():
            task = final.tasks[id_]
            if took_ms > allowed_ms and not (poison and rules.skill(task.skill).kills):
                wrong.append(
                    f"task {id_} ({task.op}) ended only {took_ms} ms after a {one.kill.how} was killed; "
                    f"{allowed_ms} are allowed"
                )
    return check_result("I14 lost tasks end in time", sum(len(one.ended_ms) for one in outcomes), wrong)


def check_fresh_after_kills(history: History, final: FinalState, rules: Rules) -> CheckResult:
    """Check how long each task waited that was submitted after a kill."""
    outcomes = kill_outcomes(history, final)
    wrong: list[str] = []
    for one in outcomes:
        allowed_ms = _allowed_ms(one.kill, rules.bounds.fresh_handlers, rules)
        wrong += [
            f"task {id_} was submitted after a {one.kill.how} was killed and waited {waited_ms} ms; "
            f"{allowed_ms} are allowed"
            for id_, waited_ms in one.waited_ms.items()
            if waited_ms > allowed_ms
        ]
    return check_result("I15 fresh tasks do not starve", sum(len(one.waited_ms) for one in outcomes), wrong)


def _allowed_ms(kill: Killed, handlers: float, rules: Rules) -> int:
    noticed_ms = rules.bounds.machine_ms if kill.how == "machine" else 0
    return noticed_ms + int(handlers * kill.handler_ms) + rules.bounds.margin_ms + kill.lag_ms
