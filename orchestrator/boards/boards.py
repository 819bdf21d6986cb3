"""Reads and updates daily boards. Days are in UTC, by the server's clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Final

from orchestrator.boards import scripts
from orchestrator.core.errors import InvalidInput
from orchestrator.core.ids import check_text
from orchestrator.core.reading import read_text, read_whole
from orchestrator.store.scoped import OpIds, read_many

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.store.keys import ScopeKeys
    from orchestrator.store.store import Store

MAX_MEMBERS: Final = 10_000
"""Members of one board on one day."""
MAX_TOP: Final = 1000
MAX_STEP: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Standing:
    """A place on a board.

    Attributes:
        place: 1 for the highest count; of equal counts, the last name in the alphabet comes first.
        member: name of the member.
        count: its count on this day.
    """

    place: int
    member: str
    count: int


class BoardView:
    """Reads the board of one day. Days are kept for eight days.

    Attributes:
        date: the day, or None for the server's current day.
    """

    __slots__ = ("_key", "_retry_for_s", "_store", "date")

    def __init__(self, store: Store, key: Callable[[str], str], *, date_: date | None, retry_for_s: float) -> None:
        self._store, self._key, self._retry_for_s = store, key, retry_for_s
        self.date: date | None = check_date(date_)

    async def top(self, n: int = 10) -> list[Standing]:
        """Return the members with the highest counts, the highest first.

        Args:
            n: maximum number of members, 1 to 1000.

        Raises:
            InvalidInput: `n` is out of range.
            StoreError: Redis did not reply.
        """
        if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MAX_TOP:
            raise InvalidInput(f"n must be a whole number from 1 to {MAX_TOP}, not {n!r:.80}")
        key = await self._today()
        flat = await self._store.read_with_retry(
            lambda: self._store.execute("ZRANGE", key, 0, n - 1, "REV", "WITHSCORES"), retry_for_s=self._retry_for_s
        )
        rows = zip(flat[::2], flat[1::2], strict=True)
        return [Standing(place, read_text(member), read_whole(score)) for place, (member, score) in enumerate(rows, 1)]

    async def rank(self, member: str) -> Standing | None:
        """Return the place of one member, or None if it has no count on this day.

        Raises:
            InvalidInput, StoreError: not a name; no reply.
        """
        check_text("member", member)
        key = await self._today()
        commands = [("ZREVRANK", key, member), ("ZSCORE", key, member)]
        place, score = await read_many(self._store, commands, retry_for_s=self._retry_for_s)
        return None if place is None or score is None else Standing(place + 1, member, read_whole(score))

    async def _today(self) -> str:
        if self.date is not None:
            return self._key(self.date.isoformat())
        seconds, _ = await self._store.read_with_retry(
            lambda: self._store.execute("TIME"), retry_for_s=self._retry_for_s
        )
        return self._key(datetime.fromtimestamp(read_whole(seconds), UTC).date().isoformat())


class Board(BoardView):
    """A board by name, shared by all programs with the same prefix."""

    __slots__ = ("_keys", "_op_ids")

    def __init__(self, store: Store, keys: ScopeKeys, *, date_: date | None, retry_for_s: float) -> None:
        super().__init__(store, lambda day: keys.key(keys.day_part(day)), date_=date_, retry_for_s=retry_for_s)
        self._keys, self._op_ids = keys, OpIds()

    async def add(self, member: str, by: int = 1, *, op_id: str | None = None) -> int:
        """Add to today's count of a member, for any date of this view, and return the new count.

        Args:
            member: any printable text of up to 256 bytes.
            by: number to add; may be negative.
            op_id: id of the event that is counted; repeated within ten minutes, it counts once.

        Raises:
            InvalidInput: an invalid name or number, or the day has 10,000 members.
            StoreError: Redis did not do it; a repeat with the same `op_id` counts once.
        """
        if not isinstance(by, int) or isinstance(by, bool) or not 0 < abs(by) <= MAX_STEP:
            raise InvalidInput(f"by must be a whole number other than 0, up to {MAX_STEP}, not {by!r:.80}")
        call = scripts.add(
            self._keys, op=self._op_ids.take(op_id), member=check_text("member", member), by=by, most=MAX_MEMBERS
        )
        added = await self._store.call(call, retry_for_s=self._retry_for_s)
        if added.status == "full":
            raise InvalidInput(f"board {self._keys.id!r} has {MAX_MEMBERS} members today; nothing was counted")
        return added.total


def check_date(value: date | None) -> date | None:
    """Return the day of a board.

    Raises:
        InvalidInput: not a `datetime.date`.
    """
    if value is not None and (not isinstance(value, date) or isinstance(value, datetime)):
        raise InvalidInput(f"date must be a datetime.date, not {value!r:.80}; a day begins at midnight UTC")
    return value
