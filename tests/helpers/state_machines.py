"""State machines of Hypothesis that must have done everything that they can do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable

    from hypothesis.stateful import RuleBasedStateMachine

ROUNDS: Final = 10


def run_until_all_fired(
    machine: type[RuleBasedStateMachine], rules: settings, fired: Counter[str], must_fire: Iterable[str]
) -> None:
    """Run a machine, and again with other steps while something has not happened yet.

    The first steps are the same in each run of the same tests, unless ORC_TEST_EXAMPLES asks for more. Hypothesis draws
    from constants of all modules that are loaded, so that the steps change with the tests that run beside them, and may
    then lack a kind.

    Raises:
        AssertionError: something did not happen in ten rounds.
    """
    run_state_machine_as_test(machine, settings=settings(rules, derandomize="ORC_TEST_EXAMPLES" not in os.environ))
    for _ in range(ROUNDS - 1):
        if all(fired[name] for name in must_fire):
            return
        run_state_machine_as_test(machine, settings=settings(rules, derandomize=False))
    never = [name for name in must_fire if not fired[name]]
    assert never == [], "never happened"
