"""What the command line says of the server that it read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.cli.terminal.source import say_source
from orchestrator.views.source import ViewSource
from tests.helpers.cases import each_case

if TYPE_CHECKING:
    import pytest

ONE, TWO = ("r:1",), ("r:1", "r:2")


@each_case(
    ("source", "said"),
    [
        (ViewSource(), ""),
        (ViewSource((), ("p:1",), "no replica is known"), "read from the primary p:1: no replica is known"),
        (ViewSource(ONE, age_s=0.01), "read from the replica r:1, at most 0.1 s old"),
        (ViewSource(TWO, age_s=2.34), "read from 2 replicas, at most 2.3 s old"),
        (
            ViewSource(ONE, ("p:1", "p:2"), "replica r:2 does not answer", age_s=1.0),
            "read from the replica r:1, at most 1.0 s old; the rest read from 2 primaries: replica r:2 does not answer",
        ),
        (ViewSource(ONE, age_s=None, lacks_bytes=7), "read from the replica r:1, 7 bytes behind its primary"),
        (
            ViewSource(ONE, age_s=None),
            "read from the replica r:1, of unknown age, because its primary does not say how far it is behind",
        ),
        (
            ViewSource(ONE, age_s=None, link_down_s=9),
            "read from the replica r:1, older than 9 s, because it has no link to its primary",
        ),
    ],
)
def test_source(source: ViewSource, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It names replicas, and says how old the view may be."""
    say_source(source)
    assert capsys.readouterr().err == (f"{said}\n" if said else "")
