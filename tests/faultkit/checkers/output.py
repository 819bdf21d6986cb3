"""I3: no confirmed chunk of output is lost or doubled, and none comes from a stale attempt."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tests.faultkit.checkers.check_result import SLACK_MS, CheckResult, check_result
from tests.faultkit.checkers.history import EmitConfirmed, EmitStarted, History, RunStarted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.faultkit.checkers.final_state import FinalState, StoredChunk
    from tests.faultkit.checkers.rules import Rules


def check_output(history: History, final: FinalState, rules: Rules) -> CheckResult:
    """Compare the stored chunks of each attempt with its emits and confirmations."""
    meant, confirmed = _by_attempt(history.of(EmitStarted)), _by_attempt(history.of(EmitConfirmed))
    stored = defaultdict[tuple[str, int], list[int]](list)
    generations = defaultdict[str, set[int]](set)
    for one in history.of(RunStarted):
        generations[one.task].add(int(one.generation))
    wrong: list[str] = []
    for id_, chunks in final.outputs.items():
        wrong += _stale(id_, chunks, generations[id_])
        for chunk in chunks:
            if chunk.kind == "output":
                stored[id_, chunk.generation].append(chunk.number)
    for attempt in stored.keys() | confirmed.keys():
        faults = _faults(
            stored.get(attempt, []),
            meant=meant.get(attempt, set()),
            confirmed=confirmed.get(attempt, set()),
        )
        wrong += [f"task {attempt[0]}, generation {attempt[1]}: {fault}" for fault in faults]
    for task in final.tasks.values():
        chunks_due = rules.skill(task.skill).chunks
        if task.state == "succeeded" and chunks_due:
            count = len(stored.get((task.id, task.generation), []))
            if count != chunks_due:
                wrong.append(f"task {task.id} succeeded with {count} chunks of {chunks_due}")
    return check_result("I3 output neither lost nor doubled", len(confirmed), wrong)


def _by_attempt(events: Sequence[EmitStarted | EmitConfirmed]) -> dict[tuple[str, int], set[int]]:
    found = defaultdict[tuple[str, int], set[int]](set)
    for one in events:
        found[one.task, int(one.generation)].add(one.number)
    return dict(found)


def _faults(numbers: list[int], *, meant: set[int], confirmed: set[int]) -> list[str]:
    found = []
    if numbers != list(range(1, len(numbers) + 1)):
        found.append(f"its chunks are numbered {numbers}")
    if lost := confirmed - set(numbers):
        found.append(f"chunks {sorted(lost)} were confirmed and are lost")
    if strange := set(numbers) - meant:
        found.append(f"chunks {sorted(strange)} were never emitted")
    return found


def _stale(id_: str, chunks: Sequence[StoredChunk], generations: set[int]) -> list[str]:
    """Return chunks that an attempt wrote after the next generation had the task."""
    wrong: list[str] = []
    for chunk in chunks:
        if chunk.kind not in {"output", "progress"}:
            continue
        written_ms = int(chunk.entry.partition("-")[0])
        lost_ms = min((one for one in generations if one > chunk.generation), default=written_ms)
        if written_ms > lost_ms + SLACK_MS:
            wrong.append(f"task {id_}: generation {chunk.generation} was lost at {lost_ms} and wrote {chunk.entry}")
    return wrong
