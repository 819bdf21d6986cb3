"""Wraps the scripts in `lua/budgets/`, one function per script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.budgets.model import MOST_CALLS, BudgetState, read_state
from orchestrator.core.reading import read_text
from orchestrator.store.calls import Arguments, Call

if TYPE_CHECKING:
    from orchestrator.core.amounts import Amounts
    from orchestrator.store.keys import PoolKeys

SWEEP_LIMIT = 100
"""Waiting tasks, and about as many holds, that one call looks at."""


class Reserved(NamedTuple):
    """Outcome of `reserve`: `lua/budgets/reserve.lua` documents each status and reason."""

    status: str
    budget: str = ""
    reason: str = ""
    unfunded: bool = False
    states: tuple[BudgetState, ...] = ()


class BookedCall(NamedTuple):
    """Outcome of `settle`."""

    status: str
    states: tuple[BudgetState, ...]


class Swept(NamedTuple):
    """Outcome of `sweep`.

    Attributes:
        left: whether to call again, at the places `next_first`, or `next_behind` with `anew`, and `next_cursor`, with
            `next_taken`.
        booked: number of holds of attempts that did not run.
        moved: number of tasks that went back to their queues.
    """

    left: bool
    booked: int
    moved: int
    next_first: int
    next_cursor: str
    next_behind: str
    next_taken: str


def reserve(
    keys: PoolKeys, *, id_: str, generation: str, number: int, amounts: Amounts, last: bool = False, now_us: str = ""
) -> Call[Reserved]:
    """Take amounts from all budgets of an attempt, or from none."""

    def parse(reply: list[Any]) -> Reserved:
        if len(reply) == 1:
            return Reserved(read_text(reply[0]))
        status, budget, reason, unfunded, rows = reply
        return Reserved(
            read_text(status), read_text(budget), read_text(reason), unfunded == 1, tuple(map(read_state, rows))
        )

    args: Arguments = {
        "pool": keys.root,
        "id": id_,
        "generation": generation,
        "number": number,
        "amounts": amounts.packed,
        "last": "1" if last else "",
        "most": MOST_CALLS,
        "now_arg": now_us,
    }
    return Call("budgets/reserve", args, parse)


def settle(
    keys: PoolKeys, *, id_: str, generation: str, number: int, amounts: Amounts | None, now_us: str = ""
) -> Call[BookedCall]:
    """Book what a call has used; None: it is unknown whether it was made."""

    def parse(reply: list[Any]) -> BookedCall:
        return BookedCall(read_text(reply[0]), tuple(map(read_state, reply[1])))

    args: Arguments = {
        "pool": keys.root,
        "id": id_,
        "generation": generation,
        "number": number,
        "amounts": "" if amounts is None else amounts.packed,
        "now_arg": now_us,
    }
    return Call("budgets/settle", args, parse)


def sweep(
    keys: PoolKeys,
    *,
    name: str,
    first: int = 0,
    limit: int = SWEEP_LIMIT,
    anew: bool = False,
    behind: str = "",
    cursor: str = "",
    taken: str = "",
    now_us: str = "",
) -> Call[Swept]:
    """Move waiting tasks that fit to their queues; with `anew` all of them. With a cursor, book lost holds."""

    def parse(reply: list[Any]) -> Swept:
        left, booked, moved, next_first, *texts = reply
        return Swept(left == 1, booked, moved, next_first, *map(read_text, texts))

    args: Arguments = {
        "pool": keys.root,
        "name": name,
        "first": first,
        "limit": limit,
        "anew": "1" if anew else "",
        "behind": behind,
        "cursor": cursor,
        "taken": taken,
        "now_arg": now_us,
    }
    return Call("budgets/sweep", args, parse)
