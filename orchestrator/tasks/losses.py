"""Reads which confirmed writes Redis has lost, after a failover or a restart without its last writes.

Two kinds of observers notice a loss. A client that has connected again looks for the tasks that it submitted last. A
supervisor knows how many requests for the leader's lease there were. docs/internals/adr/0036 has the reasons.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from orchestrator.core.ids import task_ms
from orchestrator.core.reading import read_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.store.store import Store

CLIENT: Final = "client"
SUPERVISOR: Final = "supervisor"
_AROUND_MS: Final = 60_000
"""A task may be lost although it is this much older than the oldest loss that is known, and clocks differ."""


@dataclass(frozen=True, slots=True)
class LostWrites:
    """Writes that Redis had confirmed and has lost, as noticed in the last day.

    Attributes:
        submits: tasks that are known to be lost, at least; 0 if other writes are.
        since: time of the oldest lost write that is known.
        noticed_at: time at which the latest loss was noticed.
        reports: clients and supervisors that noticed one.
    """

    submits: int
    since: datetime
    noticed_at: datetime
    reports: int

    @property
    def text(self) -> str:
        """Describe the loss in one line."""
        what = f"{self.submits} submits" if self.submits else "writes"
        since, noticed = (f"{moment:%Y-%m-%d %H:%M:%S} UTC" for moment in (self.since, self.noticed_at))
        return f"{what} that Redis had confirmed, from {since} on (noticed {noticed})"

    def may_have(self, id_: str) -> bool:
        """Return whether a task that is unknown may be one of them, by the time in its id."""
        since_ms, noticed_ms = (moment.timestamp() * 1000 for moment in (self.since, self.noticed_at))
        return since_ms - _AROUND_MS <= task_ms(id_) <= noticed_ms + _AROUND_MS


async def read_losses(store: Store) -> LostWrites | None:
    """Return what Redis has lost, as noticed in the last day; None if nothing was noticed."""
    return summarize(await store.execute("HVALS", store.keys.losses))


def summarize(reports: Iterable[bytes]) -> LostWrites | None:
    """Add up reports. Clients count their own tasks, supervisors all, so the greater sum counts.

    Later versions may have other observers and further fields; what this version cannot read does not count.
    """
    submits = {CLIENT: 0, SUPERVISOR: 0}
    since_ms, noticed_ms = [], []
    for report in reports:
        observer, *fields = read_text(report).split(" ")
        try:
            noticed, from_ms, count = map(int, fields[:3])
        except ValueError:
            continue
        if observer not in submits:
            continue
        submits[observer] += count
        since_ms.append(from_ms)
        noticed_ms.append(noticed)
    if not since_ms:
        return None
    return LostWrites(max(submits.values()), _moment(min(since_ms)), _moment(max(noticed_ms)), len(since_ms))


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
