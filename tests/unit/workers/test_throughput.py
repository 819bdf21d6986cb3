"""How the wished backlog follows run times."""

from __future__ import annotations

from orchestrator.workers.runtime.throughput import ENOUGH, WINDOW, Throughput


class Told:
    """Counts how often a change was told."""

    def __init__(self, *, limited: bool = False) -> None:
        self.changes = 0
        self.throughput = Throughput(limited=limited, changed=self._changed)

    def _changed(self) -> None:
        self.changes += 1

    def record_duration(self, seconds: float, times: int = 1) -> None:
        """Note some attempts."""
        for _ in range(times):
            self.throughput.record_duration(seconds)


def test_nothing_waits_before_enough_is_known() -> None:
    """The backlog is zero until a few dozen run times are known, then one for fast tasks; told once."""
    told = Told()
    told.record_duration(0.001, ENOUGH - 1)
    assert (told.throughput.backlog, told.changes) == (0, 0)
    told.record_duration(0.001, 100)
    assert (told.throughput.backlog, told.changes) == (1, 1)


def test_one_slow_task_in_twenty_is_still_fast() -> None:
    """The 95th percentile decides: five per cent of slow tasks keep the backlog, more end it, whatever the mean."""
    told = Told()
    told.record_duration(0.001, WINDOW)
    told.record_duration(10.0, int(WINDOW * 0.05))
    assert told.throughput.backlog == 1
    told.record_duration(0.06)
    assert (told.throughput.backlog, told.changes) == (0, 2)


def test_slow_times_are_forgotten() -> None:
    """An agent that became fast gets its backlog back within one window."""
    told = Told()
    told.record_duration(1.0, 10 * WINDOW)
    assert told.throughput.backlog == 0
    told.record_duration(0.001, WINDOW)
    assert told.throughput.backlog == 1


def test_a_limited_agent_never_gets_a_backlog() -> None:
    """A grant must be a start, so nothing of a limited agent waits in its inbox."""
    told = Told(limited=True)
    told.record_duration(0.001, 10 * WINDOW)
    assert (told.throughput.backlog, told.changes) == (0, 0)
