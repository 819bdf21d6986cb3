"""Runs a list of cases inside one test, so that set-up and reports are paid once for the list."""

from __future__ import annotations

import functools
import inspect
import reprlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def each_case(
    names: str | tuple[str, ...], cases: Iterable[Any], *, ids: Iterable[str] = (), fresh: str = ""
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a test once per case, in place of `pytest.mark.parametrize`; a failure names its case.

    Use it where a case needs no fixture of its own, or where `fresh` names the fixture that holds the state.

    Args:
        names: arguments of the test that a case fills; with several names a case is a sequence.
        cases: the values.
        ids: names of the cases for messages; left out, their values.
        fresh: fixture whose method `start_afresh` is called before each further case.
    """
    single = isinstance(names, str) and "," not in names
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows, labels = list(cases), list(ids)
    named = list(zip(labels or map(reprlib.repr, rows), rows, strict=True))
    assert named, "no cases"

    def fold(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            for number, (name, case) in enumerate(named):
                if fresh and number:
                    fixtures[fresh].start_afresh()
                try:
                    test(**fixtures, **dict(zip(keys, (case,) if single else case, strict=True)))
                except BaseException as failure:
                    failure.add_note(f"case {number + 1} of {len(named)}: {name}")
                    raise

        signature = inspect.signature(test)
        kept = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return run

    return fold
