"""Runs scripts that check scopes, many in one round trip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import ServerRefused
from orchestrator.repair.findings import RepairFinding

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from orchestrator.repair.scripts import Answer
    from orchestrator.store.calls import Call
    from orchestrator.store.keys import ScopeKeys
    from orchestrator.store.store import Store

CALLS_AT_ONCE: Final = 50


@dataclass(frozen=True, slots=True)
class ScopeCheck:
    """A call of a script that checks rows of one scope.

    Attributes:
        subjects: names of the rows, for people; empty: the call is about the scope, as a row of -1 is.
    """

    keys: ScopeKeys
    call: Call[Answer]
    subjects: Sequence[str] = ()

    def findings(self, answer: Answer) -> list[RepairFinding]:
        """Return the answer for people."""
        if isinstance(answer, ServerRefused):
            return [RepairFinding("unreadable", self.keys.root, str(answer), repaired=False)]
        return [
            RepairFinding(
                found.code,
                self.subjects[found.row] if self.subjects and found.row >= 0 else self.keys.root,
                found.place,
                repaired=found.repaired,
            )
            for found in answer
        ]


async def run_checks(
    store: Store, checks: Iterable[ScopeCheck]
) -> AsyncIterator[tuple[ScopeCheck, list[RepairFinding]]]:
    """Run checks, many in one round trip; one that Redis refuses leaves the others alone."""
    waiting = list(checks)
    for first in range(0, len(waiting), CALLS_AT_ONCE):
        batch = waiting[first : first + CALLS_AT_ONCE]
        answers: list[Answer] = []
        try:
            answers += await store.call_all([check.call for check in batch])
        except ServerRefused:
            answers = []
            for check in batch:
                try:
                    answers.append(await store.call(check.call))
                except ServerRefused as refusal:
                    answers.append(refusal)
        for check, answer in zip(batch, answers, strict=True):
            yield check, check.findings(answer)
