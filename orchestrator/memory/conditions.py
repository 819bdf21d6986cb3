"""Conditions of a query, as headers of records meet them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.memory.model import TIERS, MemoryQuery
from orchestrator.memory.queries import encode_query

if TYPE_CHECKING:
    from orchestrator.memory.headers import RecordHeader
    from orchestrator.memory.scripts import QueryRow


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions that a record must meet; names are encoded as in keys, and nothing given is no condition.

    Attributes:
        row: the conditions, as `lua/memory/query.lua` takes them.
        since: lowest step.
        until: highest step.
        importance: lowest importance.
        share: about which part of the records of all tiers meets those on kinds, actions and steps, which indices of
            vectors can compare.
        other_share: about which part of those meets the rest, too.
    """

    row: QueryRow
    since: int | None
    until: int | None
    importance: float | None
    share: float = 1.0
    other_share: float = 1.0

    @property
    def are_asked(self) -> bool:
        """True if there are any."""
        row = self.row
        asked = (row.kinds, row.actions, row.subject, row.importance, row.lo != "-inf", row.hi != "+inf")
        return any(asked) or len(row.tiers) < len(TIERS)

    @classmethod
    def of(cls, query: MemoryQuery | None) -> Conditions:
        """Return the conditions of a query; none without one.

        Raises:
            InvalidInput: an invalid condition.
        """
        asked = MemoryQuery() if query is None else query
        return cls(encode_query(asked), asked.since, asked.until, asked.min_importance)

    def meets(self, header: RecordHeader, tier: str, now_ms: int) -> bool:
        """Return whether a record of a tier is live, is not superseded, and meets the conditions."""
        row, step = self.row, header.score // 1
        return (
            header.deadline > now_ms
            and not header.superseded
            and tier in row.tiers
            and (self.since is None or step >= self.since)
            and (self.until is None or step <= self.until)
            and (not row.kinds or header.kind in row.kinds)
            and (not row.actions or header.action in row.actions)
            and row.subject in {"", header.subject}
            and (self.importance is None or header.importance >= self.importance)
        )
