"""Envelopes: what stays of one when its task has succeeded."""

from __future__ import annotations

from msgspec.structs import replace

from orchestrator.tasks.model import Envelope, encode_envelope, without_arguments
from tests.helpers.cases import each_case


@each_case("skill_chars", [1, 31, 32, 128])
@each_case("argument_bytes", [2, 255, 256, 65_535, 65_536])
def test_without_arguments(skill_chars: int, argument_bytes: int) -> None:
    """The envelope without its arguments is the one that would have been packed without them, whatever its options."""
    args = b"x" * argument_bytes
    for options in ({}, {"session": "s"}, {"tags": ("a", "b"), "trace": "t"}, {"parent": "p", "depth": 3}):
        envelope = Envelope("s" * skill_chars, args, **options)
        expected = encode_envelope(replace(envelope, args=b""))
        assert without_arguments(encode_envelope(envelope), envelope) == expected
        assert without_arguments(b"", envelope) == expected
        # The worker put the arguments in place of a reference to those that are stored apart.
        apart = replace(envelope, args=b"y" * 7)
        assert without_arguments(encode_envelope(apart), envelope) == expected
