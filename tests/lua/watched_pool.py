"""A pool that notes what each script made of the stored states of tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from tests.lua.pool import Pool, Row

if TYPE_CHECKING:
    from orchestrator.store.calls import Call

T = TypeVar("T")


class WatchedPool(Pool):
    """Notes (state before, script, state after) of every task that was submitted through it.

    A task that another attempt takes over keeps its state and gets a new generation: that is a step too.
    """

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__(url, prefix)
        self.steps: set[tuple[str | None, str, str | None]] = set()
        self._facts: dict[str, tuple[str | None, str | None]] = {}

    def start_afresh(self) -> None:
        """Switch to an empty pool and forget the steps."""
        super().start_afresh()
        self.steps, self._facts = set(), {}

    @property
    def known(self) -> list[str]:
        """The tasks that are watched."""
        return list(self._facts)

    def submit(self, *rows: Row, **options: Any) -> list[tuple[str, str]]:
        """Submit, and watch what is submitted."""
        self._facts = {each.id: (None, None) for each in rows} | self._facts
        return super().submit(*rows, **options)

    def call(self, call: Call[T]) -> T:
        """Run a script, and note what it did."""
        answer = super().call(call)
        for id_, before in self._facts.items():
            state, generation = self.execute("HMGET", self.keys.task(id_), "state", "gen")
            after = (state and state.decode(), generation and generation.decode())
            if after != before:
                self._facts[id_] = after
                self.steps.add((before[0], call.script.rpartition("/")[2], after[0]))
        return answer
