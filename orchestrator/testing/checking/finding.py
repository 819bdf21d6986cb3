"""What a checker answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """The judgement of one checker.

    Attributes:
        invariant: which promise was judged.
        judged: over how many things it was judged; a run that judged nothing shows nothing.
        violations: a sentence each.
    """

    invariant: str
    judged: int
    violations: tuple[str, ...]


def finding(invariant: str, judged: int, violations: list[str]) -> Finding:
    """Make a finding of a list that was gathered; each sentence once."""
    return Finding(invariant, judged, tuple(dict.fromkeys(violations)))
