"""Reads budgets, and what attempts hold of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from orchestrator.budgets.model import SOFT, BudgetState
from orchestrator.core.amounts import MOST, Amounts
from orchestrator.core.errors import StoreError
from orchestrator.core.reading import read_score, read_text, read_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.store.calls import Argument
    from orchestrator.store.keys import PoolKeys
    from orchestrator.store.store import Store

_FIELDS: Final = ("limit", "spent", "held", "soft", "at_hard", "per", "lost", "day", "other")
DAY_S: Final = 86_400
"""Seconds of a day, which begins at 0:00 UTC."""


async def read_budgets(store: Store, names: Sequence[str]) -> dict[str, BudgetState | str]:
    """Read budgets by name; in place of one that is not set or damaged, `undefined` or `damaged`.

    Raises:
        StoreError: Redis did not answer.
    """
    if not names:
        return {}
    time, *rows = await store.pipeline([("TIME",), *budget_reads(store.keys, names)])
    if isinstance(time, StoreError):
        raise time
    return parse_budgets(names, rows, seconds=read_whole(time[0]))


def budget_reads(keys: PoolKeys, names: Sequence[str]) -> list[Sequence[Argument]]:
    """Return the commands that read budgets, one for each, for `parse_budgets`."""
    return [("HMGET", keys.budget(name), *_FIELDS) for name in names]


def parse_budgets(names: Sequence[str], rows: Sequence[Any], *, seconds: int) -> dict[str, BudgetState | str]:
    """Return budgets as `read_budgets` does, from the replies to `budget_reads` at a time of Redis."""
    return {name: _read(name, row, seconds // DAY_S) for name, row in zip(names, rows, strict=True)}


def read_held(stored: bytes | None) -> tuple[Amounts, int]:
    """Return what an attempt holds of a budget, and with how many open calls; nothing for a damaged value."""
    held, calls = [0] * len(Amounts()), 0
    for part in read_text(stored or b"").split(";")[1:]:
        number, _, amounts = part.partition(" ")
        try:
            open_ = _amounts(amounts) if amounts else Amounts()
        except ValueError:
            return Amounts(), 0
        # Number 0 has what the start of the attempt has reserved.
        calls += bool(amounts) and number != "0"
        held = [before + more for before, more in zip(held, open_, strict=True)]
    return Amounts(*held), calls


def read_amounts(stored: str) -> Amounts:
    """Return amounts from four whole numbers; none for a damaged value."""
    try:
        return _amounts(stored)
    except ValueError:
        return Amounts()


def _read(name: str, row: Any, day: int) -> BudgetState | str:
    if isinstance(row, StoreError) or not isinstance(row, list):
        return "damaged"
    limit, spent, held, soft, at_hard, per, lost, stored_day, other = (read_text(word or b"") for word in row)
    if not limit:
        return "undefined"
    try:
        state = BudgetState(
            name,
            tuple(None if word == "-" else _whole(word) for word in _four(limit)),
            _amounts(spent),
            _amounts(held),
            soft=read_score(soft, SOFT),
            at_hard=at_hard or "stop",
            per_day=per == "day",
            lost=lost or "spent",
        )
        return replace(state, spent=_spent_on(day, stored_day, state.spent, other)) if state.per_day else state
    except ValueError:
        return "damaged"


def _spent_on(day: int, stored_day: str, spent: Amounts, other: str) -> Amounts:
    """Return what is spent of a budget by day, as the next call of a script stores it (`turn_day`)."""
    if not stored_day.isdigit():
        return Amounts()
    before = read_whole(stored_day)
    if day == before:
        return spent
    for account in other.split(";"):
        other_day, _, amounts = account.partition(" ")
        if other_day.isdigit() and read_whole(other_day) == day:
            return _amounts(amounts)
    return Amounts() if day > before else spent


def _amounts(text: str) -> Amounts:
    return Amounts(*map(_whole, _four(text)))


def _four(text: str) -> list[str]:
    words = text.split(" ")
    if len(words) != 4:
        raise ValueError(text)
    return words


def _whole(word: str) -> int:
    number = read_whole(word, -1)
    if not word.isascii() or not word.isdigit() or not 0 <= number <= MOST:
        raise ValueError(word)
    return number
