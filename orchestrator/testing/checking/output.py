"""I3, as far as it exists today: output of attempts: no confirmed chunk lost, none doubled, none of a stale attempt."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from orchestrator.testing.checking.finding import Finding, finding
from orchestrator.testing.checking.history import EmitRefused, Emitted, Emitting, History

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.testing.checking.final_state import FinalState, StoredChunk
    from orchestrator.testing.checking.rules import Rules


def check_output(history: History, final: FinalState, rules: Rules) -> Finding:
    """Hold the stored chunks of each attempt against what it meant to emit and what was confirmed."""
    meant, confirmed = _by_attempt(history.of(Emitting)), _by_attempt(history.of(Emitted))
    refused = _by_attempt(history.of(EmitRefused))
    stored = defaultdict[tuple[str, int], list[int]](list)
    wrong: list[str] = []
    for id_, chunks in final.outputs.items():
        wrong += _out_of_turn(id_, chunks)
        for chunk in chunks:
            if chunk.kind == "output":
                stored[id_, chunk.generation].append(chunk.number)
    for attempt in stored.keys() | confirmed.keys():
        faults = _faults(
            stored.get(attempt, []),
            meant=meant.get(attempt, set()),
            confirmed=confirmed.get(attempt, set()),
            refused=refused.get(attempt, set()),
        )
        wrong += [f"task {attempt[0]}, generation {attempt[1]}: {fault}" for fault in faults]
    for task in final.tasks.values():
        chunks_due = rules.skill(task.skill).chunks
        if task.state == "succeeded" and chunks_due:
            count = len(stored.get((task.id, task.generation), []))
            if count != chunks_due:
                wrong.append(f"task {task.id} succeeded with {count} chunks of {chunks_due}")
    return finding("I3 output neither lost nor doubled", len(confirmed), wrong)


def _by_attempt(events: Sequence[Emitting | Emitted | EmitRefused]) -> dict[tuple[str, int], set[int]]:
    found = defaultdict[tuple[str, int], set[int]](set)
    for one in events:
        found[one.task, int(one.generation)].add(one.number)
    return dict(found)


def _faults(numbers: list[int], *, meant: set[int], confirmed: set[int], refused: set[int]) -> list[str]:
    found = []
    if numbers != list(range(1, len(numbers) + 1)):
        found.append(f"its chunks are numbered {numbers}")
    if lost := confirmed - set(numbers):
        found.append(f"chunks {sorted(lost)} were confirmed and are lost")
    if strange := set(numbers) - meant:
        found.append(f"chunks {sorted(strange)} were emitted by nobody")
    if late := set(numbers) & refused:
        found.append(f"chunks {sorted(late)} were refused and are stored")
    return found


def _out_of_turn(id_: str, chunks: Sequence[StoredChunk]) -> list[str]:
    highest = 0
    wrong: list[str] = []
    for chunk in chunks:
        if chunk.kind in {"output", "progress"} and chunk.generation < highest:
            wrong.append(f"task {id_}: generation {chunk.generation} wrote {chunk.entry} after generation {highest}")
        highest = max(highest, chunk.generation)
    return wrong
