"""Plans a search of vectors with conditions: few records are compared one by one, many are searched by an index."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from orchestrator.memory import scripts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.memory.conditions import Conditions
    from orchestrator.store.scoped import ScopedStore

FEW: Final = 500
"""Records that are compared one by one in any case."""
SEVERAL: Final = 2500
"""Records that are compared one by one if they are a small share of all."""
MANY: Final = 10_000
"""Records that are compared one by one if an index of vectors would have to look at more than `MAX_EFFORT`."""
MAX_EFFORT: Final = 10_000


class SearchPlan(NamedTuple):
    """Place and conditions of a search.

    Attributes:
        ids: the records that meet the conditions; None if an index has to search.
        conditions: the conditions, with the share of records that meets them.
    """

    ids: Sequence[str] | None
    conditions: Conditions


async def plan_search(scope: ScopedStore, conditions: Conditions, count: int) -> SearchPlan:
    """Return the records that meet conditions if they are few, else about how many do."""
    if not conditions.are_asked:
        return SearchPlan(None, conditions)
    found = await _narrow(scope, conditions, FEW, SEVERAL)
    if found.ids is not None:
        return SearchPlan(found.ids, conditions)
    planned = _estimate(conditions, found)
    # A search of the index looks at this many vectors until enough of them meet all conditions.
    if count > MAX_EFFORT * planned.share * planned.other_share:
        found = await _narrow(scope, conditions, MANY, MANY)
    return SearchPlan(found.ids, planned)


async def _narrow(scope: ScopedStore, conditions: Conditions, few: int, most: int) -> scripts.Narrowed:
    row = conditions.row
    names = (row.tiers, row.kinds, row.actions, row.subject)
    asked = scripts.NarrowRow(*names, row.lo, row.hi, row.importance, few, most)
    return await scope.call(scripts.narrow(scope.keys, row=asked))


def _estimate(conditions: Conditions, found: scripts.Narrowed) -> Conditions:
    """Return conditions with their shares. Those that are asked for are taken as independent."""
    records, in_tiers = max(found.records, 1), max(found.in_tiers, 1)
    in_steps = in_tiers if found.in_steps < 0 else max(found.in_steps, 1)
    share, other_share = in_steps / in_tiers, in_tiers / records
    # The script has counted kinds, actions and the subject in the range of steps.
    for count in (found.of_kinds, found.of_actions):
        share *= 1 if count < 0 else min(max(count, 1) / in_steps, 1)
    other_share *= 1 if found.of_subject < 0 else min(max(found.of_subject, 1) / in_steps, 1)
    other_share *= 1 if found.of_importance < 0 else min(max(found.of_importance, 1) / in_tiers, 1)
    return replace(conditions, share=share, other_share=other_share)
