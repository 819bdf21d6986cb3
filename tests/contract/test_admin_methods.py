"""The generated methods of `orc.admin` match the declared commands."""

from __future__ import annotations

from tools.admin_methods import TARGET, rendered


def test_methods_are_up_to_date() -> None:
    """`make generate` would change nothing."""
    source = TARGET.read_text(encoding="utf-8")
    assert rendered(source) == source, "run `make generate`"
